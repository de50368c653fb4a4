"""Number formats of the released files (2.1), decoded and encoded with NumPy. All exact.

Called by the loader, the writer and the tiny generator. Stored bytes are uint8 arrays; bf16 is
uint16 bit patterns. Decoding gives float32; encoding rounds to nearest, ties to the even code.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from deodar.config import TILE

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def _e4m3_table() -> Floats:
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    normal = np.ldexp(1.0 + mantissa / 8.0, exponent - 7)
    value = np.where(exponent == 0, np.ldexp(mantissa / 8.0, -6), normal)
    value = np.where((code & 0x7F) == 0x7F, np.nan, value)
    return np.where(code & 0x80, -value, value).astype(np.float32)


E4M3 = _e4m3_table()
"""Value of every e4m3 "fn" byte: no infinity, NaN at 0x7F and 0xFF, largest 448."""
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
E2M1 = np.concatenate([E2M1, -E2M1])
"""Value of every 4-bit e2m1 code; bit 3 is the sign."""


def _e8m0_table() -> Floats:
    value = np.ldexp(1.0, np.arange(256) - 127)
    value[255] = np.nan
    return value.astype(np.float32)


E8M0 = _e8m0_table()
"""Value of every scale byte: 2^(byte - 127); 255 is NaN. Byte 0 is a float32 subnormal."""


def decode_bf16(bits: NDArray[np.uint16]) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def encode_bf16(values: Floats) -> NDArray[np.uint16]:
    """Round to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, (bits >> 16) | 0x40, rounded).astype(np.uint16)


def encode_e4m3(values: Floats) -> Bytes:
    """Nearest e4m3 byte; beyond 448 saturates, NaN becomes 0x7F."""
    magnitude = np.minimum(np.abs(values), np.float32(448)).astype(np.float32)
    bits = magnitude.view(np.uint32)
    # Normal: keep three mantissa bits, then move the exponent bias from 127 to 7.
    kept = (bits + (0x7FFFF + ((bits >> 20) & 1)).astype(np.uint32)) >> 20
    normal = kept.astype(np.int64) - (120 << 3)
    small = np.rint(np.nan_to_num(magnitude) * np.float32(512)).astype(np.int64)
    code = np.where(magnitude < np.float32(2.0**-6), small, normal)
    code = np.where(np.isnan(values), 0x7F, code)
    return (code | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


# Ties fall to the even code: strict where the lower code is even, inclusive where it is odd.
_E2M1_STRICT = np.array([0.25, 1.25, 2.5, 5.0], dtype=np.float32)
_E2M1_INCLUSIVE = np.array([0.75, 1.75, 3.5], dtype=np.float32)


def encode_e2m1(values: Floats) -> Bytes:
    """Nearest 4-bit code, one a byte; beyond 6 saturates. The caller keeps NaN out."""
    size = np.abs(values)
    code = np.zeros(size.shape, dtype=np.uint8)
    for step in _E2M1_STRICT:
        code += size > step
    for step in _E2M1_INCLUSIVE:
        code += size >= step
    return np.where(np.signbit(values), code | 8, code).astype(np.uint8)


def unpack_nibbles(packed: Bytes) -> Bytes:
    """[R, C/2] bytes to [R, C] codes: the low nibble is the even column (2.1)."""
    codes = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), dtype=np.uint8)
    codes[..., 0::2] = packed & 15
    codes[..., 1::2] = packed >> 4
    return codes


def pack_nibbles(codes: Bytes) -> Bytes:
    """[R, C] codes to [R, C/2] bytes; inverse of `unpack_nibbles`."""
    even: Bytes = codes[..., 0::2]
    odd: Bytes = codes[..., 1::2]
    packed: Bytes = even | (odd << np.uint8(4))
    return packed


def _ceil_scale(largest: Floats, top: float) -> Bytes:
    """Scale bytes: smallest power of two >= largest / top; groups of zeros get 1."""
    ratio = largest.astype(np.float64) / top
    mantissa, exponent = np.frexp(np.where(ratio > 0, ratio, 1.0))
    power: NDArray[np.int64] = exponent - (mantissa == 0.5)
    return np.clip(power + 127, 1, 254).astype(np.uint8)


def decode_tiles(weight: Bytes, scale: Bytes) -> Floats:
    """fp8 matrix [R, C] with scales [ceil(R/32), ceil(C/32)] to float32 [R, C]."""
    rows, columns = weight.shape
    factor = E8M0[scale].repeat(TILE, axis=0)[:rows].repeat(TILE, axis=1)[:, :columns]
    return np.asarray(E4M3[weight] * factor, dtype=np.float32)


def encode_tiles(values: Floats) -> tuple[Bytes, Bytes]:
    """float32 [R, C] to fp8 bytes and tile scales by the tile's largest value (pow2, up)."""
    rows, columns = values.shape
    high, wide = -(-rows // TILE), -(-columns // TILE)
    padded = np.zeros((high * TILE, wide * TILE), dtype=np.float32)
    padded[:rows, :columns] = np.abs(values)
    largest = padded.reshape(high, TILE, wide, TILE).max(axis=(1, 3))
    scale = _ceil_scale(largest, 448.0)
    factor = E8M0[scale].repeat(TILE, axis=0)[:rows].repeat(TILE, axis=1)[:, :columns]
    return encode_e4m3(values / factor), scale


def decode_fp4(packed: Bytes, scale: Bytes) -> Floats:
    """mxfp4 [R, C/2] bytes with scales [R, C/32] to float32 [R, C]."""
    factor = E8M0[scale].repeat(TILE, axis=1)
    return np.asarray(E2M1[unpack_nibbles(packed)] * factor, dtype=np.float32)


def encode_fp4(values: Floats) -> tuple[Bytes, Bytes]:
    """float32 [R, C], C a multiple of 32, to packed mxfp4 bytes [R, C/2] and scales [R, C/32]."""
    rows, columns = values.shape
    largest = np.abs(values).reshape(rows, columns // TILE, TILE).max(axis=2)
    scale = _ceil_scale(largest, 6.0)
    return pack_nibbles(encode_e2m1(values / E8M0[scale].repeat(TILE, axis=1))), scale


def decode_rows(weight: Bytes, scale: Bytes) -> Floats:
    """Engram rows [..., C] with one scale per 32 columns [..., C/32] to float32 [..., C] (2.4)."""
    return np.asarray(E4M3[weight] * E8M0[scale].repeat(TILE, axis=-1), dtype=np.float32)


def encode_rows(values: Floats) -> tuple[Bytes, Bytes]:
    """float32 [N, C], C a multiple of 32, to Engram row bytes and their scales."""
    rows, columns = values.shape
    largest = np.abs(values).reshape(rows, columns // TILE, TILE).max(axis=2)
    scale = _ceil_scale(largest, 448.0)
    return encode_e4m3(values / E8M0[scale].repeat(TILE, axis=1)), scale
