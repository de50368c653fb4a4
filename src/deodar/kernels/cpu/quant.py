"""The released bytes of window keys, main entries and index keys (model 5.2, 5.3, 5.4).

`encode_*` rounds a float32 vector to nearest, ties to even, and writes its bytes; `decode_*` gives
the values that the model computes with. A vector with a NaN in it is stored as bytes 255, which
decode to NaN: what was computed from something void stays void.
"""

from __future__ import annotations

import numpy as np

from deodar.kernels.cpu.elementary import F32, as_float, as_int, keep_apart
from deodar.kernels.cpu.jit import part
from deodar.kernels.cpu.unpack import (
    ENTRY_SCALES,
    WINDOW_SCALES,
    e2m1_value,
    e4m3_value,
    e8m0_value,
    unpack_e2m1,
    unpack_e4m3,
    unpack_key_pair,
)

_FP8_MAX = F32(448.0)
_FP8_FLOOR = F32(1e-4)
_FP8_INVERSE = F32(1.0 / 448.0)
_FP8_NORMAL = F32(2.0**-6)
_FP8_STEP = F32(2.0**-9)
_FP4_MAX = F32(6.0)
_FP4_INVERSE = F32(1.0 / 6.0)
_FP4_TINY = F32(6.0 * 2.0**-126)
_FP4_FLOOR = F32(6.0 * 2.0**-9)
_ROUND = F32(12582912.0)  # 1.5 * 2^23: adding it rounds to the nearest integer
_HALF = F32(0.5)
_TWO = F32(2.0)
_FOUR = F32(4.0)
_ZERO = F32(0.0)
_VOID = np.uint8(255)


@part
def round_whole(x):
    """The nearest integer of |x| < 2^22, ties to even, as float32."""
    return (x + _ROUND) - _ROUND


@part
def power_above(x):
    """Smallest power of two >= x, for positive normal x, from the bits (section 5)."""
    bits = as_int(x)
    exponent = np.int32(bits >> np.int32(23))
    if bits & np.int32(0x7FFFFF):
        exponent = np.int32(exponent + np.int32(1))
    return as_float(np.int32(exponent << np.int32(23)))


@part
def e4m3_code(x):
    """The code of the e4m3 number nearest to x, |x| <= 448."""
    bits = as_int(x)
    size = abs(x)
    if size < _FP8_NORMAL:
        code = np.int32(round_whole(size / _FP8_STEP))
    else:
        step = as_float(np.int32((bits & np.int32(0x7F800000)) - np.int32(3 << 23)))
        rounded = round_whole(size / step) * step
        code = np.int32((as_int(rounded) >> np.int32(20)) - np.int32(120 << 3))
    return np.uint8(code | ((bits >> np.int32(24)) & np.int32(0x80)))


@part
def e2m1_code(x):
    """The code of the e2m1 number nearest to x, |x| <= 6: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign."""
    size = abs(x)
    if size < _TWO:
        code = np.int32(round_whole(size * _TWO))
    elif size < _FOUR:
        code = np.int32(round_whole(size)) + np.int32(2)
    else:
        code = np.int32(round_whole(size * _HALF)) + np.int32(4)
    return np.uint8(code | ((as_int(x) >> np.int32(28)) & np.int32(8)))


@part
def largest(x):
    """max |x| of a float32 vector."""
    top = F32(0)
    for i in range(x.size):
        top = max(top, abs(x[i]))
    return top


@part
def has_nan(x):
    """True if a number of a float32 vector is NaN."""
    count = 0
    for i in range(x.size):
        count += x[i] != x[i]
    return count > 0


@part
def e8m0_code(scale):
    """The byte of a normal power of two."""
    return np.uint8(as_int(scale) >> np.int32(23))


@part
def encode_window_key(x, out):
    """5.2: float32 [d] to out uint8 [d + d / 32], e4m3 codes, then a power of two per 32 values."""
    keep_apart()
    if has_nan(x):
        out[:] = _VOID
        return
    for start in range(0, x.size, 32):
        scale = power_above(max(largest(x[start : start + 32]), _FP8_FLOOR) * _FP8_INVERSE)
        for i in range(start, start + 32):
            out[i] = e4m3_code(min(max(x[i] / scale, -_FP8_MAX), _FP8_MAX))
        out[x.size + start // 32] = e8m0_code(scale)


@part
def decode_window_key(stored, dim, out, at):
    """out[at : at + dim] = the values of a stored window key."""
    for start in range(0, dim, 32):
        scale = WINDOW_SCALES[stored[dim + start // 32]]
        unpack_e4m3(stored, start, scale, out, at + start)
        unpack_e4m3(stored, start + 16, scale, out, at + start + 16)


@part
def encode_entry(x, out):
    """5.4: float32 [d] to out uint8 [d / 2 + d / 16], e2m1 pairs, then an e4m3 scale per 16."""
    keep_apart()
    if has_nan(x):
        out[:] = _VOID
        return
    half = x.size // 2
    for start in range(0, x.size, 16):
        wide = max(largest(x[start : start + 16]), _FP4_FLOOR) / _FP4_MAX
        code = e4m3_code(min(wide, _FP8_MAX))
        scale = e4m3_value(code)
        out[half + start // 16] = code
        for i in range(start, start + 16, 2):
            low = e2m1_code(min(max(x[i] / scale, -_FP4_MAX), _FP4_MAX))
            high = e2m1_code(min(max(x[i + 1] / scale, -_FP4_MAX), _FP4_MAX))
            out[i // 2] = low | (high << 4)


@part
def decode_entry(stored, dim, out, at):
    """out[at : at + dim] = the values of a stored main entry."""
    for start in range(0, dim, 16):
        scale = ENTRY_SCALES[stored[dim // 2 + start // 16]]
        unpack_e2m1(stored, start // 2, scale, out, at + start)


@part
def encode_index_key(x, stored, column, keys):
    """5.3: float32 [d] to column `column` of a page's `keys` keys.

    stored is uint8 [d / 2 + d / 32, keys], flat: rows of e2m1 pairs, then a power of two per 32.
    """
    keep_apart()
    half = x.size // 2
    if has_nan(x):
        for row in range(half + x.size // 32):
            stored[row * keys + column] = _VOID
        return
    for start in range(0, x.size, 32):
        scale = power_above(max(largest(x[start : start + 32]), _FP4_TINY) * _FP4_INVERSE)
        stored[(half + start // 32) * keys + column] = e8m0_code(scale)
        for i in range(start, start + 32, 2):
            low = e2m1_code(min(max(x[i] / scale, -_FP4_MAX), _FP4_MAX))
            high = e2m1_code(min(max(x[i + 1] / scale, -_FP4_MAX), _FP4_MAX))
            stored[i // 2 * keys + column] = low | (high << 4)


@part
def decode_index_keys(stored, dim, keys, count, out, stride):
    """out[d * stride + j] = column d of key j of a page, for j < count.

    stored as in `encode_index_key`. Also writes what follows up to a multiple of 16: whatever the
    page holds there, or zeros.
    """
    keep_apart()
    half = dim // 2
    whole = count // 16 * 16
    if keys % 16 == 0:
        whole = (count + 15) // 16 * 16
    for pair in range(half):
        scales = (half + pair // 16) * keys
        at = 2 * pair * stride
        for j in range(0, whole, 16):
            unpack_key_pair(stored, pair * keys + j, scales + j, out, at + j, stride)
        for j in range(whole, (count + 15) // 16 * 16):
            low, high = _ZERO, _ZERO
            if j < count:
                both = stored[pair * keys + j]
                scale = e8m0_value(stored[scales + j])
                low, high = e2m1_value(both & 15) * scale, e2m1_value(both >> 4) * scale
            out[at + j] = low
            out[at + stride + j] = high
