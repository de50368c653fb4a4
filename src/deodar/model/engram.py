"""Engram (3.10 e): rows fetched by n-gram hash, added to the stream through a gate.

Called by `reference` at the start of the layers in engram_layer_ids. Which rows a token fetches
is integer arithmetic and lives in `checkpoint.engram`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deodar.config import ModelConfig
from deodar.model.layers import rms_scale
from deodar.model.numerics import Numerics

GATE_FLOOR = 1e-6


@dataclass(frozen=True, slots=True)
class EngramWeights:
    """wkv [(c + 1) hidden, columns * head dim]; q_weight and k_weight [c, hidden]."""

    wkv: Tensor
    q_weight: Tensor
    k_weight: Tensor


def gate(dot: Tensor) -> Tensor:
    """sigmoid(sign(dot) sqrt(max(|dot|, 1e-6))); a zero keeps its sign."""
    return torch.sigmoid(torch.copysign(dot.abs().clamp(min=GATE_FLOOR).sqrt(), dot))


def engram(
    stream: Tensor,
    rows: Tensor,
    image: Tensor | None,
    w: EngramWeights,
    config: ModelConfig,
    numerics: Numerics,
) -> Tensor:
    """stream [n, c, hidden] and fetched rows [n, columns * head dim] -> new stream.

    image: bool [n], tokens of an image span, whose gate is shut; None for text.
    """
    eps, hidden = config.rms_norm_eps, config.hidden_size
    projected = numerics.linear8(numerics.bf16(rows), w.wkv)
    key, value = projected.split([config.hc_mult * hidden, hidden], dim=-1)
    key = key.unflatten(-1, (config.hc_mult, hidden))
    dot = (stream * (w.q_weight * w.k_weight) * key).sum(dim=-1, keepdim=True)
    dot = dot * rms_scale(stream, eps) * rms_scale(key, eps) * hidden**-0.5
    opened = gate(dot)
    if image is not None:
        opened = opened.masked_fill(image[:, None, None], 0.0)
    return numerics.bf16(stream + opened * value[:, None, :])
