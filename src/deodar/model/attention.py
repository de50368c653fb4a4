"""Attention (3.5, 3.6, 3.7): one shared key-value vector per token, one softmax over two sets.

Called by `block` (window plus chosen entries) and `draft` (ring plus block rows). Both hand in
the keys that each row sees as one tensor with a mask; this file knows nothing of layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deodar.config import ModelConfig
from deodar.model.layers import rms_norm
from deodar.model.numerics import Numerics
from deodar.model.rope import rotate

MAX_FLOOR = -1e30


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeights:
    """Dense fp32 matrices [out, in] of 2.2 and the per-head sink [heads]."""

    wq_a: Tensor
    q_norm: Tensor
    wq_b: Tensor
    wkv: Tensor
    kv_norm: Tensor
    wo_a: Tensor
    wo_b: Tensor
    sink: Tensor


def low_rank_query(
    x: Tensor, w: AttentionWeights, config: ModelConfig, numerics: Numerics
) -> Tensor:
    """x [n, hidden] -> qr [n, q_lora], shared by attention and indexer (3.5)."""
    return rms_norm(numerics.linear8(x, w.wq_a), w.q_norm, config.rms_norm_eps, numerics)


def queries(
    qr: Tensor, w: AttentionWeights, rotation: Tensor, config: ModelConfig, numerics: Numerics
) -> Tensor:
    """qr [n, q_lora] -> rotated queries [n, heads, head_dim]; no norm per head."""
    q = numerics.linear8(qr, w.wq_b).unflatten(-1, (config.num_attention_heads, config.head_dim))
    return rotate(q, rotation, numerics)


def window_keys(
    x: Tensor, w: AttentionWeights, rotation: Tensor, config: ModelConfig, numerics: Numerics
) -> Tensor:
    """x [n, hidden] -> rotated and stored keys [n, head_dim]; they are the values too."""
    kv = rms_norm(numerics.linear8(x, w.wkv), w.kv_norm, config.rms_norm_eps, numerics)
    return numerics.window_key(rotate(kv, rotation, numerics))


def attend(q: Tensor, keys: Tensor, seen: Tensor, sink: Tensor, numerics: Numerics) -> Tensor:
    """One softmax per row and head, the sink in its denominator only (3.6).

    q [n, heads, d], keys [n, m, d], seen bool [n, m], sink [heads]. Returns [n, heads, d]; a row
    that sees nothing gives zeros. In `faithful` the weights are rounded to bf16 for the value
    product only, all against the final maximum.
    """
    scores = (q @ keys.transpose(1, 2)) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~seen[:, None, :], -torch.inf)
    top = scores.amax(dim=-1, keepdim=True).clamp(min=MAX_FLOOR)
    p = (scores - top).exp()
    denominator = p.sum(dim=-1, keepdim=True) + (sink[:, None] - top).exp()
    return numerics.bf16(numerics.bf16(p) @ keys / denominator)


def output(
    o: Tensor, w: AttentionWeights, rotation: Tensor, config: ModelConfig, numerics: Numerics
) -> Tensor:
    """Heads [n, heads, d] -> [n, hidden]: inverse rotation, grouped low rank projection (3.7).

    The input of wo_a is bf16, not fp8 (7c).
    """
    groups = config.o_groups
    o = rotate(o, rotation.conj(), numerics).flatten(1).unflatten(-1, (groups, -1))
    wo_a = w.wo_a.unflatten(0, (groups, config.o_lora_rank))
    z = numerics.bf16(torch.einsum("ngd,grd->ngr", o, wo_a))
    return numerics.linear8(z.flatten(1), w.wo_b)
