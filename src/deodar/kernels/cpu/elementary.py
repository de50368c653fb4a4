"""Scalar building blocks of the CPU kernels: fused multiply-add, bit views, exp, lane sums.

Called inside other kernels only. Everything is plain IEEE arithmetic in a written-down order, so a
loop gives the same bits whether the compiler makes vectors of it or not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from deodar.kernels.cpu.jit import part

F32 = np.float32
LANES = 16

_LOG2_E = F32(1.4426950408889634)
_LN2_HIGH = F32(0.693359375)
_LN2_LOW = F32(-2.12194440e-4)
_ROUND = F32(12582912.0)  # 1.5 * 2^23: adding it rounds to the nearest integer
_ROUND_BITS = np.int32(0x4B400000)
_EXP_LOW = F32(-87.0)
_EXP_HIGH = F32(88.0)
_P0 = F32(1.9875691500e-4)
_P1 = F32(1.3981999507e-3)
_P2 = F32(8.3334519073e-3)
_P3 = F32(4.1665795894e-2)
_P4 = F32(1.6666665459e-1)
_P5 = F32(5.0000001201e-1)
_ONE = F32(1.0)
_ZERO = F32(0.0)


@intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c with one rounding, float32."""
    signature = types.float32(types.float32, types.float32, types.float32)
    return signature, lambda context, builder, sig, args: builder.fma(*args)


@intrinsic
def widen(typing_context: Any, bits: Any) -> Any:
    """The float32 whose upper half is the uint16 `bits` (a bfloat16)."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        word = ir.IntType(32)
        upper = builder.shl(builder.zext(args[0], word), ir.Constant(word, 16))
        return builder.bitcast(upper, ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic
def as_int(typing_context: Any, value: Any) -> Any:
    """The bits of a float32 as int32."""
    return types.int32(types.float32), lambda c, b, s, a: b.bitcast(a[0], ir.IntType(32))


@intrinsic
def as_float(typing_context: Any, bits: Any) -> Any:
    """The float32 with the bits of an int32."""
    return types.float32(types.int32), lambda c, b, s, a: b.bitcast(a[0], ir.FloatType())


@intrinsic
def high_word(typing_context: Any, value: Any) -> Any:
    """The upper 32 bits of a float64 as int64."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        long = ir.IntType(64)
        return builder.lshr(builder.bitcast(args[0], long), ir.Constant(long, 32))

    return types.int64(types.float64), generate


@intrinsic
def with_exponent(typing_context: Any, value: Any, exponent: Any) -> Any:
    """A positive float64 with its biased exponent replaced."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        long = ir.IntType(64)
        fraction = builder.and_(builder.bitcast(args[0], long), ir.Constant(long, (1 << 52) - 1))
        upper = builder.shl(args[1], ir.Constant(long, 52))
        return builder.bitcast(builder.or_(fraction, upper), ir.DoubleType())

    return types.float64(types.float64, types.int64), generate


@intrinsic
def keep_apart(typing_context: Any) -> Any:
    """Forbid the compiler to copy the calling function into its callers: compilation time."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


@part
def exp(x):
    """e^x in float32, about one unit in the last place; the argument is cut to [-87, 88]."""
    x = min(max(x, _EXP_LOW), _EXP_HIGH)
    shifted = x * _LOG2_E + _ROUND
    n = shifted - _ROUND
    r = fma(n, -_LN2_HIGH, x)
    r = fma(n, -_LN2_LOW, r)
    p = fma(_P0, r, _P1)
    p = fma(p, r, _P2)
    p = fma(p, r, _P3)
    p = fma(p, r, _P4)
    p = fma(p, r, _P5)
    p = fma(p, r * r, r) + _ONE
    exponent = np.int32(as_int(shifted) - _ROUND_BITS + np.int32(127))
    return p * as_float(np.int32(exponent << np.int32(23)))


@part
def copy(source, target):
    """target[:] = source, same dtypes; numba's own assignment compiles ten times slower."""
    for i in range(source.size):
        target[i] = source[i]


@part
def sigmoid(x):
    """1 / (1 + e^-x), float32."""
    return _ONE / (_ONE + exp(-x))


@part
def lane_sum(x):
    """Sum of a float32 vector: 16 interleaved partial sums, then those in order."""
    keep_apart()
    lanes = np.zeros(LANES, np.float32)
    whole = x.size // LANES * LANES
    for start in range(0, whole, LANES):
        part = x[start : start + LANES]
        for i in range(LANES):
            lanes[i] += part[i]
    for i in range(x.size - whole):
        lanes[i] += x[whole + i]
    total = _ZERO
    for i in range(LANES):
        total += lanes[i]
    return total


@part
def lane_max(x):
    """The largest of a float32 vector whose size is a multiple of 16."""
    keep_apart()
    lanes = np.full(LANES, x[0], np.float32)
    for start in range(0, x.size, LANES):
        part = x[start : start + LANES]
        for i in range(LANES):
            lanes[i] = max(lanes[i], part[i])
    top = lanes[0]
    for i in range(1, LANES):
        top = max(top, lanes[i])
    return top


@part
def square_sum(x):
    """Sum of squares of a float32 vector, in the order of `lane_sum`."""
    keep_apart()
    lanes = np.zeros(LANES, np.float32)
    whole = x.size // LANES * LANES
    for start in range(0, whole, LANES):
        part = x[start : start + LANES]
        for i in range(LANES):
            lanes[i] = fma(part[i], part[i], lanes[i])
    for i in range(x.size - whole):
        lanes[i] = fma(x[whole + i], x[whole + i], lanes[i])
    total = _ZERO
    for i in range(LANES):
        total += lanes[i]
    return total


@part
def inverse_rms(x, eps):
    """(mean(x^2) + eps)^-0.5 of a float32 vector (model 3.0)."""
    keep_apart()
    return _ONE / np.sqrt(square_sum(x) / F32(x.size) + eps)


@part
def rms_norm(x, weight, eps, out):
    """out = weight * (x * inverse_rms(x)), float32 vectors of one size (model 3.0)."""
    keep_apart()
    scale = inverse_rms(x, eps)
    for i in range(x.size):
        out[i] = weight[i] * (x[i] * scale)


@part
def rotate(x, cos, sin):
    """Rotate adjacent pairs of the tail of `x` in place; len(cos) pairs (model 3.4)."""
    keep_apart()
    start = x.size - 2 * cos.size
    for i in range(cos.size):
        a = x[start + 2 * i]
        b = x[start + 2 * i + 1]
        x[start + 2 * i] = a * cos[i] - b * sin[i]
        x[start + 2 * i + 1] = a * sin[i] + b * cos[i]


@part
def rotate_back(x, cos, sin):
    """The inverse of `rotate` (model 3.6)."""
    keep_apart()
    start = x.size - 2 * cos.size
    for i in range(cos.size):
        a = x[start + 2 * i]
        b = x[start + 2 * i + 1]
        x[start + 2 * i] = a * cos[i] + b * sin[i]
        x[start + 2 * i + 1] = b * cos[i] - a * sin[i]
