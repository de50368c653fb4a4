"""The roundings of section 5 and the bytes in which compressed memory is kept (4.3, 4.4).

Called by `numerics` (which says where a rounding happens) and by faster stores. Every rounding is
to nearest, ties to even. A stored vector is its codes followed by its scales:

    window key   head_dim e4m3 codes,      one e8m0 scale per 32 values    512 -> 512 + 16 = 528 B
    main entry   head_dim / 2 e2m1 pairs,  one e4m3 scale per 16 values    512 -> 256 + 32 = 288 B
    index key    head_dim / 2 e2m1 pairs,  one e8m0 scale per 32 values    128 ->  64 +  4 =  68 B

In an e2m1 pair the low nibble is the even column, as in the checkpoint (2.1). What must hold:
`decode_*(encode_*(x))` equals `*_round(x)`, the value that the model computes with, bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

FP8_GROUP = 32
FP8_MAX = 448.0
FP8_FLOOR = 1e-4
FP4_MAX = 6.0
INDEX_GROUP = 32
INDEX_FLOOR = 6.0 * 2.0**-126
ENTRY_GROUP = 16
ENTRY_FLOOR = 6.0 * 2.0**-9
E8M0_BIAS = 127

E2M1_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_E2M1_BY_CODE = torch.cat([E2M1_VALUES, -E2M1_VALUES])


def _just_below(value: float) -> float:
    return float(torch.nextafter(torch.tensor(value), torch.tensor(0.0)))


# A magnitude takes the code "number of borders strictly below it". Codes alternate between odd
# and even, so every second border lies just below the tie to send the tie itself upwards.
_E2M1_BORDERS = torch.tensor(
    [0.25, _just_below(0.75), 1.25, _just_below(1.75), 2.5, _just_below(3.5), 5.0]
)


def pow2ceil_exponent(v: Tensor) -> Tensor:
    """Exponent e of the smallest power of two >= v, for normal v > 0; int32 of v's shape."""
    mantissa, exponent = torch.frexp(v)
    return exponent - (mantissa == 0.5).to(exponent.dtype)


def _groups(x: Tensor, size: int) -> Tensor:
    """[..., d] -> [..., d / size, size]."""
    return x.unflatten(-1, (-1, size))


def _amax(groups: Tensor, floor: float) -> Tensor:
    return groups.abs().amax(-1, keepdim=True).clamp(min=floor)


def e2m1_encode(x: Tensor) -> Tensor:
    """fp32 values -> codes 0..15 (uint8), nearest, ties to the even code, sign kept (5)."""
    magnitude = torch.bucketize(x.abs(), _E2M1_BORDERS.to(x.device), out_int32=True)
    return (magnitude + 8 * torch.signbit(x)).to(torch.uint8)


def e2m1_decode(codes: Tensor) -> Tensor:
    """Codes 0..15 -> fp32 values."""
    return _E2M1_BY_CODE.to(codes.device)[codes.int()]


def _pack(codes: Tensor) -> Tensor:
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def _unpack(packed: Tensor) -> Tensor:
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)


def _pow2(exponent: Tensor) -> Tensor:
    """2^exponent from its bits, exact; int32 exponents in -126..127."""
    return ((exponent + E8M0_BIAS) << 23).view(torch.float32)


def _e8m0_decode(scales: Tensor) -> Tensor:
    return _pow2(scales.to(torch.int32) - E8M0_BIAS).unsqueeze(-1)


def _fp8_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """[..., d] fp32 -> e4m3 codes [..., d / 32, 32] and scale exponents [..., d / 32, 1] (5.1)."""
    groups = _groups(x, FP8_GROUP)
    exponent = pow2ceil_exponent(_amax(groups, FP8_FLOOR) * (1.0 / FP8_MAX))
    scaled = (groups * _pow2(-exponent)).clamp(-FP8_MAX, FP8_MAX)
    return scaled.to(torch.float8_e4m3fn), exponent


def fp8_round(x: Tensor) -> Tensor:
    """Input of an fp8 or fp4 matrix (5.1), and a window key as it is attended to (5.2).

    x: fp32 [..., d], d a multiple of 32. Returns fp32 of the same shape, exact in bf16.
    """
    codes, exponent = _fp8_parts(x)
    return (codes.float() * _pow2(exponent)).flatten(-2)


def encode_window_key(x: Tensor) -> Tensor:
    """fp32 [..., d] -> uint8 [..., d + d / 32] (5.2)."""
    codes, exponent = _fp8_parts(x)
    scales = (exponent.squeeze(-1) + E8M0_BIAS).to(torch.uint8)
    return torch.cat([codes.view(torch.uint8).flatten(-2), scales], dim=-1)


def decode_window_key(stored: Tensor) -> Tensor:
    """uint8 [..., d + d / 32] -> fp32 [..., d]."""
    d = stored.shape[-1] * FP8_GROUP // (FP8_GROUP + 1)
    codes, scales = stored[..., :d].contiguous(), stored[..., d:]
    values = codes.view(torch.float8_e4m3fn).float()
    return (_groups(values, FP8_GROUP) * _e8m0_decode(scales)).flatten(-2)


def _index_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [..., d / 32, 32] and scale exponents [..., d / 32, 1] (5.3)."""
    groups = _groups(x, INDEX_GROUP)
    exponent = pow2ceil_exponent(_amax(groups, INDEX_FLOOR) * (1.0 / FP4_MAX))
    return e2m1_encode((groups * _pow2(-exponent)).clamp(-FP4_MAX, FP4_MAX)), exponent


def index_round(x: Tensor) -> Tensor:
    """Index keys and queries [..., d] as they are scored (5.3)."""
    codes, exponent = _index_parts(x)
    return (e2m1_decode(codes) * _pow2(exponent)).flatten(-2)


def encode_index_key(x: Tensor) -> Tensor:
    """fp32 [..., d] -> uint8 [..., d / 2 + d / 32] (5.3)."""
    codes, exponent = _index_parts(x)
    scales = (exponent.squeeze(-1) + E8M0_BIAS).to(torch.uint8)
    return torch.cat([_pack(codes.flatten(-2)), scales], dim=-1)


def decode_index_key(stored: Tensor) -> Tensor:
    """uint8 [..., d / 2 + d / 32] -> fp32 [..., d]."""
    half = stored.shape[-1] * INDEX_GROUP // (INDEX_GROUP + 2)
    values = e2m1_decode(_unpack(stored[..., :half]))
    return (_groups(values, INDEX_GROUP) * _e8m0_decode(stored[..., half:])).flatten(-2)


def _entry_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [..., d / 16, 16] and e4m3 scales [..., d / 16, 1] (5.4).

    The scale is rounded to nearest, so a group's largest element may clamp at 6. Beyond the
    largest e4m3 number the scale stays there: saturation rather than NaN.
    """
    groups = _groups(x, ENTRY_GROUP)
    scales = (_amax(groups, ENTRY_FLOOR) / FP4_MAX).clamp(max=FP8_MAX).to(torch.float8_e4m3fn)
    return e2m1_encode((groups / scales.float()).clamp(-FP4_MAX, FP4_MAX)), scales


def entry_round(x: Tensor) -> Tensor:
    """Main entries [..., d] as they are attended to (5.4)."""
    codes, scales = _entry_parts(x)
    return (e2m1_decode(codes) * scales.float()).flatten(-2)


def encode_main_entry(x: Tensor) -> Tensor:
    """fp32 [..., d] -> uint8 [..., d / 2 + d / 16] (5.4)."""
    codes, scales = _entry_parts(x)
    return torch.cat([_pack(codes.flatten(-2)), scales.view(torch.uint8).squeeze(-1)], dim=-1)


def decode_main_entry(stored: Tensor) -> Tensor:
    """uint8 [..., d / 2 + d / 16] -> fp32 [..., d]."""
    half = stored.shape[-1] * ENTRY_GROUP // (ENTRY_GROUP + 2)
    values = e2m1_decode(_unpack(stored[..., :half]))
    scales = stored[..., half:].contiguous().view(torch.float8_e4m3fn).float().unsqueeze(-1)
    return (_groups(values, ENTRY_GROUP) * scales).flatten(-2)
