"""Small pieces that several parts of the model share: RMSNorm (3.0) and gather with padding.

Called by the other files of this room. Tensors are fp32; rounding is `numerics`' business.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from deodar.model.numerics import Numerics


def rms_scale(x: Tensor, eps: float) -> Tensor:
    """(mean(x^2) + eps)^-0.5 over the last axis, kept: [..., d] -> [..., 1]."""
    return (x.square().mean(-1, keepdim=True) + eps).rsqrt()


def rms_norm(x: Tensor, weight: Tensor, eps: float, numerics: Numerics) -> Tensor:
    """x [..., d] normed and weighted, one rounding at the end (3.0). Zeros stay zeros."""
    return numerics.bf16(F.rms_norm(x, weight.shape, weight, eps))


def lowest_id_top_k(scores: Tensor, k: int) -> Tensor:
    """Ids of the k largest scores of each row, ties to the lowest id (7i), ascending.

    scores: [n, m] with -inf for what may not be chosen. Returns int64 [n, k]; places that found
    nothing to choose hold -1, at the end.
    """
    m = scores.shape[1]
    taken = min(k, m)
    ordered, ids = scores.sort(dim=-1, descending=True, stable=True)
    ids = torch.where(ordered[:, :taken] > -torch.inf, ids[:, :taken], m).sort(dim=-1).values
    return F.pad(torch.where(ids < m, ids, -1), (0, k - taken), value=-1)
