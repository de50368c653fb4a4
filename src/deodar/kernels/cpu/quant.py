"""Fake quantization of the values that the `kv` numerics store rounded (model 5.2, 5.3, 5.4).

Each function rounds a float32 vector in place to what its released byte format can hold. All
roundings are to nearest, ties to even.
"""

from __future__ import annotations

import numpy as np

from deodar.kernels.cpu.elementary import F32, as_float, as_int, keep_apart
from deodar.kernels.cpu.jit import part

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
def round_e4m3(x):
    """The nearest e4m3 value of |x| <= 448."""
    size = abs(x)
    if size < _FP8_NORMAL:
        return round_whole(x / _FP8_STEP) * _FP8_STEP
    step = as_float(np.int32((as_int(size) & np.int32(0x7F800000)) - np.int32(3 << 23)))
    return round_whole(x / step) * step


@part
def round_e2m1(x):
    """The nearest e2m1 value of |x| <= 6: 0, 0.5, 1, 1.5, 2, 3, 4, 6."""
    size = abs(x)
    if size < _TWO:
        return round_whole(x * _TWO) * _HALF
    if size < _FOUR:
        return round_whole(x)
    return round_whole(x * _HALF) * _TWO


@part
def largest(x):
    """max |x| of a float32 vector."""
    top = F32(0)
    for i in range(x.size):
        top = max(top, abs(x[i]))
    return top


@part
def round_window_key(x):
    """5.2 in place: e4m3 with one power-of-two scale per 32 values."""
    keep_apart()
    for start in range(0, x.size, 32):
        part = x[start : start + 32]
        scale = power_above(max(largest(part), _FP8_FLOOR) * _FP8_INVERSE)
        for i in range(part.size):
            part[i] = round_e4m3(min(max(part[i] / scale, -_FP8_MAX), _FP8_MAX)) * scale


@part
def round_index_key(x):
    """5.3 in place: e2m1 with one power-of-two scale per 32 values."""
    keep_apart()
    for start in range(0, x.size, 32):
        part = x[start : start + 32]
        scale = power_above(max(largest(part), _FP4_TINY) * _FP4_INVERSE)
        for i in range(part.size):
            part[i] = round_e2m1(min(max(part[i] / scale, -_FP4_MAX), _FP4_MAX)) * scale


@part
def round_entry(x):
    """5.4 in place: e2m1 with one e4m3 scale per 16 values."""
    keep_apart()
    for start in range(0, x.size, 16):
        part = x[start : start + 16]
        scale = round_e4m3(min(max(largest(part), _FP4_FLOOR) / _FP4_MAX, _FP8_MAX))
        for i in range(part.size):
            part[i] = round_e2m1(min(max(part[i] / scale, -_FP4_MAX), _FP4_MAX)) * scale
