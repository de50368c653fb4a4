"""Rounding to the released formats: straight-through for training, exact bytes for export.

Called by model.py (every product of a quantised matrix), draft.py and export.py. What must hold:
the value that `*_codes` stores is exactly the value that the matching fake rounding computes
(model.md 2.1 and 5), so the exported files behave as the model did in training.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

E4M3 = torch.float8_e4m3fn
TINY = 2.0**-100  # floor of a weight scale, so that an all-zero tile has a legal scale byte


class Rounding(NamedTuple):
    """What is rounded: matrices, stored keys (5.2-5.4), inputs of products and index queries."""

    weights: bool = False
    keys: bool = False
    inputs: bool = False


EXACT = Rounding()
SERVED = Rounding(weights=True, keys=True, inputs=True)


def pow2ceil(v: Tensor) -> Tensor:
    """Smallest power of two >= v, from the exponent bits; v is positive fp32."""
    return ((v.view(torch.int32) + 0x7FFFFF) & 0x7F800000).view(torch.float32)


def round_e2m1(x: Tensor) -> Tensor:
    """Nearest of {0, .5, 1, 1.5, 2, 3, 4, 6} with ties to the even code; |x| <= 6."""
    a = x.abs()
    fine, mid, wide = torch.round(x * 2) * 0.5, torch.round(x), torch.round(x * 0.5) * 2
    return torch.where(a < 2, fine, torch.where(a < 4, mid, wide))


def _through(x: Tensor, rounded: Tensor) -> Tensor:
    """The rounded value in the forward pass, the identity in the backward pass."""
    return x + (rounded - x).detach()


def _fp8(x: Tensor, scale: Tensor) -> Tensor:
    return (x / scale).clamp(-448, 448).to(E4M3).float() * scale


def inputs_fp8(x: Tensor) -> Tensor:
    """5.1 and 5.2: groups of 32 of the last dimension, power-of-two scale, floor 1e-4."""
    g = x.float().unflatten(-1, (-1, 32))
    scale = pow2ceil(g.detach().abs().amax(-1, keepdim=True).clamp_min(1e-4) * (1 / 448))
    return _through(g, _fp8(g, scale)).flatten(-2).to(x.dtype)


def index_fp4(x: Tensor) -> Tensor:
    """5.3: groups of 32, e2m1 with a power-of-two scale."""
    g = x.float().unflatten(-1, (-1, 32))
    amax = g.detach().abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-126)
    scale = pow2ceil(amax * (1 / 6))
    return _through(g, round_e2m1((g / scale).clamp(-6, 6)) * scale).flatten(-2).to(x.dtype)


def entry_fp4(x: Tensor) -> Tensor:
    """5.4: groups of 16, e2m1 with an e4m3 scale."""
    g = x.float().unflatten(-1, (-1, 16))
    amax = g.detach().abs().amax(-1, keepdim=True).clamp_min(6 * 2.0**-9)
    scale = (amax / 6).to(E4M3).float()
    return _through(g, round_e2m1((g / scale).clamp(-6, 6)) * scale).flatten(-2).to(x.dtype)


def _tiles(w: Tensor) -> tuple[Tensor, Tensor]:
    """w [R, C] as [R/32, 32, C/32, 32] and the scale [R/32, 1, C/32, 1] of each tile."""
    t = w.float().unflatten(-1, (-1, 32)).unflatten(-3, (-1, 32))
    amax = t.detach().abs().amax((-3, -1), keepdim=True).clamp_min(448 * TINY)
    return t, pow2ceil(amax * (1 / 448))


def weight_fp8(w: Tensor) -> Tensor:
    """An fp8 matrix [R, C] rounded in 32x32 tiles (2.1)."""
    t, scale = _tiles(w)
    return _through(t, _fp8(t, scale)).flatten(-4, -3).flatten(-2)


def _groups(w: Tensor) -> tuple[Tensor, Tensor]:
    g = w.float().unflatten(-1, (-1, 32))
    amax = g.detach().abs().amax(-1, keepdim=True).clamp_min(6 * TINY)
    return g, pow2ceil(amax * (1 / 6))


def weight_fp4(w: Tensor) -> Tensor:
    """Expert matrices [..., R, C] rounded in groups of 32 columns (2.1)."""
    g, scale = _groups(w)
    return _through(g, round_e2m1((g / scale).clamp(-6, 6)) * scale).flatten(-2)


def rows_fp8(w: Tensor) -> Tensor:
    """Engram rows [..., 32·k]: one scale per row and 32 columns (2.4)."""
    g = w.float().unflatten(-1, (-1, 32))
    amax = g.detach().abs().amax(-1, keepdim=True).clamp_min(448 * TINY)
    return _through(g, _fp8(g, pow2ceil(amax * (1 / 448)))).flatten(-2)


def _scale_bytes(scale: Tensor) -> Tensor:
    return ((scale.contiguous().view(torch.int32) >> 23) & 0xFF).to(torch.uint8)


def fp8_codes(w: Tensor) -> tuple[Tensor, Tensor]:
    """(weight e4m3 [R, C], scale bytes uint8 [R/32, C/32]) of an fp8 matrix."""
    t, scale = _tiles(w)
    codes = (t / scale).clamp(-448, 448).flatten(-4, -3).flatten(-2).contiguous().to(E4M3)
    return codes, _scale_bytes(scale[:, 0, :, 0])


def row_codes(w: Tensor) -> tuple[Tensor, Tensor]:
    """(weight e4m3 [N, C], scale bytes uint8 [N, C/32]) of an Engram table."""
    g = w.float().unflatten(-1, (-1, 32))
    amax = g.abs().amax(-1, keepdim=True).clamp_min(448 * TINY)
    scale = pow2ceil(amax * (1 / 448))
    codes = (g / scale).clamp(-448, 448).flatten(-2).contiguous().to(E4M3)
    return codes, _scale_bytes(scale[..., 0])


def fp4_codes(w: Tensor) -> tuple[Tensor, Tensor]:
    """(packed int8 [R, C/2], scale bytes uint8 [R, C/32]); low nibble = even column."""
    g, scale = _groups(w)
    value = round_e2m1((g / scale).clamp(-6, 6)).flatten(-2)
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=w.device)
    code = torch.bucketize(value.abs().contiguous(), levels).to(torch.uint8)
    code = code | (torch.signbit(value).to(torch.uint8) << 3)
    packed = code[..., 0::2] | (code[..., 1::2] << 4)
    return packed.view(torch.int8), _scale_bytes(scale[..., 0])


def decode_fp4(packed: Tensor, scale: Tensor) -> Tensor:
    """The inverse of fp4_codes, fp32 [R, C]."""
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=packed.device)
    levels = torch.cat([levels, -levels])
    raw = packed.view(torch.uint8)
    value = torch.stack([levels[(raw & 15).long()], levels[(raw >> 4).long()]], -1).flatten(-2)
    return value * decode_scale(scale).repeat_interleave(32, -1)


def decode_scale(scale: Tensor) -> Tensor:
    """2^(byte - 127) as fp32."""
    return torch.exp2(scale.view(torch.uint8).float() - 127)


def decode_fp8(codes: Tensor, scale: Tensor, *, tile_rows: int = 32) -> Tensor:
    """The inverse of fp8_codes (tile_rows 32) and row_codes (tile_rows 1), fp32 [R, C]."""
    full = decode_scale(scale).repeat_interleave(tile_rows, 0).repeat_interleave(32, 1)
    return codes.float() * full
