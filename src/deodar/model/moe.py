"""Mixture of experts (3.9): a router, routed experts and one shared expert.

Called by `block` and `draft`. Outputs of routed experts are added in fp32 in ascending expert
order, then the shared expert, then one rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from deodar.model.numerics import Numerics

RENORM_EPS = 1e-20


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """w1 (gate) and w3 (up) [inter, hidden], w2 [hidden, inter]."""

    w1: Tensor
    w2: Tensor
    w3: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeWeights:
    """Router gate [experts, hidden], its biases [experts], experts, and sizes of the choice."""

    gate: Tensor
    bias: Tensor
    bias_vl: Tensor
    experts: tuple[ExpertWeights, ...]
    shared: ExpertWeights
    top_k: int
    scale: float
    limit: float


def route(z: Tensor, bias: Tensor, top_k: int, scale: float) -> tuple[Tensor, Tensor]:
    """Router logits z [n, experts] -> chosen ids [n, top_k] ascending, and their weights.

    bias [experts] or [n, experts] moves the choice only; weights are the unbiased scores, summing
    to `scale`. Ties go to the lowest expert id.
    """
    s = F.softplus(z).sqrt()
    order = (s + bias).sort(dim=-1, descending=True, stable=True).indices
    chosen = order[:, :top_k].sort(dim=-1).values
    weight = s.gather(1, chosen)
    return chosen, weight / (weight.sum(dim=-1, keepdim=True) + RENORM_EPS) * scale


def expert(
    x: Tensor, weight: Tensor | None, w: ExpertWeights, limit: float, numerics: Numerics
) -> Tensor:
    """One expert on x [n, hidden]; the routing weight [n, 1] goes in before w2 (7g)."""
    gate = numerics.linear8(x, w.w1).clamp(max=limit)
    up = numerics.linear8(x, w.w3).clamp(-limit, limit)
    h = F.silu(gate) * up
    if weight is not None:
        h = h * weight
    return numerics.linear8(numerics.bf16(h), w.w2)


def moe(x: Tensor, image: Tensor | None, w: MoeWeights, numerics: Numerics) -> Tensor:
    """x [n, hidden] -> [n, hidden]. image: bool [n], tokens that take bias_vl; None for text."""
    bias = w.bias if image is None else torch.where(image[:, None], w.bias_vl, w.bias)
    chosen, weight = route(F.linear(x, w.gate), bias, w.top_k, w.scale)
    routed = torch.zeros_like(x)
    for e in chosen.unique().tolist():
        row, place = (chosen == e).nonzero(as_tuple=True)
        routed[row] += expert(x[row], weight[row, place, None], w.experts[e], w.limit, numerics)
    return numerics.bf16(routed + expert(x, None, w.shared, w.limit, numerics))
