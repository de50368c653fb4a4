"""Compressor (3.8): what the KV source layers write into the shared memory.

Called by `block` for the layers in kv_source_layer_ids. Ratio 1 makes an entry of every token;
ratio 2 pools tokens 2j and 2j + 1, and keeps the unpaired last token between chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from deodar.config import ModelConfig
from deodar.model.layers import rms_norm
from deodar.model.numerics import Numerics
from deodar.model.rope import rotate

Unpaired = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressorWeights:
    """wkv and wgate [head_dim, hidden] (wgate only for ratio 2), wk [index_head_dim, head_dim]."""

    wkv: Tensor
    wgate: Tensor | None
    norm: Tensor
    index_wk: Tensor
    index_k_norm: Tensor


def latents(
    x: Tensor,
    unpaired: Unpaired | None,
    w: CompressorWeights,
    config: ModelConfig,
    numerics: Numerics,
) -> tuple[Tensor, Unpaired | None]:
    """Pooled and normed vectors of the entries that x [n, hidden] completes.

    Returns latents [new, head_dim] and the (a, g) [1, head_dim] of a last token still alone. The
    pooling is fp32 from bf16 inputs (3.8).
    """
    if w.wgate is None:
        pooled, left = numerics.linear16(x, w.wkv), None
    else:
        a, g = F.linear(x, w.wkv), F.linear(x, w.wgate)
        if unpaired is not None:
            a, g = torch.cat([unpaired[0], a]), torch.cat([unpaired[1], g])
        even = a.shape[0] // 2 * 2
        left = None if even == a.shape[0] else (a[even:], g[even:])
        pairs = (even // 2, 2)
        weight = g[:even].unflatten(0, pairs).softmax(dim=1)
        pooled = numerics.bf16((weight * a[:even].unflatten(0, pairs)).sum(dim=1))
    return rms_norm(pooled, w.norm, config.rms_norm_eps, numerics), left


def index_keys(
    latent: Tensor,
    w: CompressorWeights,
    rotation: Tensor,
    config: ModelConfig,
    numerics: Numerics,
) -> Tensor:
    """latents [new, head_dim] -> stored index keys [new, index_head_dim]. No Hadamard."""
    projected = numerics.linear16(latent, w.index_wk)
    keys = rms_norm(projected, w.index_k_norm, config.rms_norm_eps, numerics)
    return numerics.index_key(rotate(keys, rotation, numerics))


def main_entries(latent: Tensor, rotation: Tensor, numerics: Numerics) -> Tensor:
    """latents [new, head_dim] -> stored entries [new, head_dim], key and value at once."""
    return numerics.main_entry(rotate(latent, rotation, numerics))
