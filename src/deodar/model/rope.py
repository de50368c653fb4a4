"""Rotary positions (3.4): two frequency tables, adjacent pairs of the last `rope` dimensions.

Called by attention, compressor, indexer and draft head. Window-only layers use the plain table;
every layer with a compressed memory uses the YaRN table for everything in it.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from deodar.config import ModelConfig, RopeScaling
from deodar.model.numerics import Numerics


def plain_frequencies(theta: float, rope_dims: int) -> Tensor:
    """f_i = theta^(-2i / rope_dims), fp32 [rope_dims / 2].

    The power is rounded to fp32, then inverted in fp32: this gives the published table to the
    last digit, and the same on every machine. At positions near a million one digit is visible.
    """
    exponents = np.arange(0, rope_dims, 2, dtype=np.float64) / rope_dims
    powers = np.power(np.float64(theta), exponents).astype(np.float32)
    return torch.from_numpy(np.float32(1.0) / powers)


def yarn_frequencies(theta: float, rope_dims: int, scaling: RopeScaling) -> Tensor:
    """The plain table blended with itself over `factor` along a ramp, fp32 [rope_dims / 2]."""

    def dimension_of(turns: float) -> float:
        length = scaling.original_max_position_embeddings
        return rope_dims * math.log(length / (2 * math.pi * turns)) / (2 * math.log(theta))

    low = max(math.floor(dimension_of(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension_of(scaling.beta_slow)), rope_dims - 1)
    base = plain_frequencies(theta, rope_dims)
    span = max(high - low, 0.001)
    ramp = ((torch.arange(rope_dims // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    return base / scaling.factor * ramp + base * (1 - ramp)


class RopeTables:
    """Both frequency tables of a model."""

    def __init__(self, config: ModelConfig) -> None:
        dims = config.qk_rope_head_dim
        self.plain = plain_frequencies(config.rope_theta, dims)
        self.yarn = yarn_frequencies(config.compress_rope_theta, dims, config.rope_scaling)

    def at(self, positions: Tensor, *, compressed: bool) -> Tensor:
        """e^(i p f) of int64 positions [n], complex64 [n, rope_dims / 2].

        `compressed` picks the table of ratio > 0 layers. The angle is one fp32 product without
        range reduction, as in training (3.4).
        """
        angle = positions.float()[:, None] * (self.yarn if compressed else self.plain)
        return torch.polar(torch.ones_like(angle), angle)


def rotate(x: Tensor, rotation: Tensor, numerics: Numerics) -> Tensor:
    """Rotate the tail of x [n, d] or [n, heads, d]: pair (2i, 2i + 1) is one complex number.

    rotation: complex [n, rope_dims / 2] of `RopeTables.at`; its conjugate rotates back.
    """
    width = 2 * rotation.shape[-1]
    if x.dim() == 3:
        rotation = rotation[:, None]
    head, tail = x.split([x.shape[-1] - width, width], dim=-1)
    turned = torch.view_as_real(torch.view_as_complex(tail.unflatten(-1, (-1, 2))) * rotation)
    return torch.cat([head, numerics.bf16(turned.flatten(-2))], dim=-1)
