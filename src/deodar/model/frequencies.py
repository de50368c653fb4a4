"""Rotary frequencies (3.4) of both tables, for the reference and for its compiled twin.

What must hold: the published tables to the last digit, and the same on every machine. At positions
near a million one digit of a frequency is visible. NumPy only.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from deodar.config import ModelConfig, RopeScaling

Floats = NDArray[np.float32]


def frequency_tables(config: ModelConfig) -> tuple[Floats, Floats]:
    """float32 [rope / 2] each: of window-only layers, and of layers with a compressed memory."""
    dims = config.qk_rope_head_dim
    yarn = yarn_frequencies(config.compress_rope_theta, dims, config.rope_scaling)
    return plain_frequencies(config.rope_theta, dims), yarn


def plain_frequencies(theta: float, rope_dims: int) -> Floats:
    """f_i = theta^(-2i / rope_dims), float32 [rope_dims / 2].

    The power is rounded to float32, then inverted in float32: this gives the published table.
    """
    exponents = np.arange(0, rope_dims, 2, dtype=np.float64) / rope_dims
    return np.float32(1.0) / np.power(np.float64(theta), exponents).astype(np.float32)


def yarn_frequencies(theta: float, rope_dims: int, scaling: RopeScaling) -> Floats:
    """The plain table blended with itself over `factor` along a ramp, float32 [rope_dims / 2]."""

    def dimension_of(turns: float) -> float:
        length = scaling.original_max_position_embeddings
        return rope_dims * math.log(length / (2 * math.pi * turns)) / (2 * math.log(theta))

    low = max(math.floor(dimension_of(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension_of(scaling.beta_slow)), rope_dims - 1)
    base = plain_frequencies(theta, rope_dims)
    steps = np.arange(rope_dims // 2, dtype=np.float32)
    ramp = np.clip((steps - np.float32(low)) / np.float32(max(high - low, 0.001)), 0, 1)
    return base / np.float32(scaling.factor) * ramp + base * (np.float32(1) - ramp)
