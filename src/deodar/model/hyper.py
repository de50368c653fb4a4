"""Hyper-connections (3.3): the residual stream is `hc_mult` copies of the hidden vector.

Called by `block` and `draft`. What must hold: a half-block reads the copies with the `pre` that
the half before it produced, and writes with `post` and `comb` of its own input stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from deodar.config import ModelConfig
from deodar.model.layers import rms_scale
from deodar.model.numerics import Numerics

POST_FACTOR = 2.0


@dataclass(frozen=True, slots=True)
class HyperWeights:
    """fn [(2 + c) c, c hidden], base [(2 + c) c], scale [3], all fp32; c = hc_mult."""

    fn: Tensor
    base: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True)
class Mixes:
    """pre [n, c], post [n, c], comb [n, c, c]; comb[i, j] carries old copy i into new copy j."""

    pre: Tensor
    post: Tensor
    comb: Tensor


def sinkhorn(logits: Tensor, rounds: int, eps: float) -> Tensor:
    """Nearly doubly stochastic matrices from logits [n, c, c]; ends on a column step.

    The softmax over j is the row step of the first round. `baddbmm(e, a, b)` is e + a b, so
    `row_sums` and `column_sums` come with eps added.
    """
    n, c, _ = logits.shape
    floor, row = logits.new_full((), eps), logits.new_ones(n, 1, c)
    column = row.transpose(1, 2)
    comb = logits.softmax(dim=-1) + eps
    comb = comb / torch.baddbmm(floor, row, comb)
    for _ in range(rounds - 1):
        row_sums = torch.baddbmm(floor, comb, column)
        comb = comb / row_sums
        column_sums = torch.baddbmm(floor, row, comb)
        comb = comb / column_sums
    return comb


def split_mix(m: Tensor, weights: HyperWeights, config: ModelConfig) -> Mixes:
    """Mix vector m [n, (2 + c) c] -> read weights, write weights and copy mixing (3.3, 3 and 4)."""
    c = config.hc_mult
    s_pre, s_post, s_comb = weights.scale
    b_pre, b_post, b_comb = weights.base.split([c, c, c * c])
    m_pre, m_post, m_comb = m.split([c, c, c * c], dim=-1)
    return Mixes(
        pre=torch.sigmoid(m_pre * s_pre + b_pre) + config.hc_eps,
        post=POST_FACTOR * torch.sigmoid(m_post * s_post + b_post),
        comb=sinkhorn(
            (m_comb * s_comb + b_comb).unflatten(-1, (c, c)),
            config.hc_sinkhorn_iters,
            config.hc_eps,
        ),
    )


def mixes(stream: Tensor, weights: HyperWeights, config: ModelConfig) -> Mixes:
    """Mixes of a stream [n, c, hidden]; one statistic for all copies together."""
    v = stream.flatten(1)
    return split_mix(F.linear(v, weights.fn) * rms_scale(v, config.rms_norm_eps), weights, config)


def read(stream: Tensor, pre: Tensor, numerics: Numerics) -> Tensor:
    """Weighted sum of the copies: [n, c, hidden], [n, c] -> [n, hidden]."""
    return numerics.bf16(torch.einsum("nc,nch->nh", pre, stream))


def write(stream: Tensor, y: Tensor, mix: Mixes, numerics: Numerics) -> Tensor:
    """New stream: X[j] = post[j] y + sum over i of comb[i, j] X[i]."""
    kept = torch.einsum("nij,nih->njh", mix.comb, stream)
    return numerics.bf16(torch.einsum("nj,nh->njh", mix.post, y) + kept)
