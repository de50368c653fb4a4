"""Rotary positions (3.4): two frequency tables, adjacent pairs of the last `rope` dimensions.

Called by attention, compressor, indexer and draft head. Window-only layers use the plain table;
every layer with a compressed memory uses the YaRN table for everything in it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deodar.config import ModelConfig
from deodar.model.frequencies import frequency_tables
from deodar.model.numerics import Numerics


class RopeTables:
    """Both frequency tables of a model."""

    def __init__(self, config: ModelConfig) -> None:
        self.plain, self.yarn = map(torch.from_numpy, frequency_tables(config))

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
