"""Stored bytes to float32 values, 16 at a time in registers (model 5.2, 5.3, 5.4).

Called inside other kernels only. An e4m3 code is placed in the bits of a half, which the processor
widens exactly; an e2m1 code becomes a small integer, twice its value. Written as vector
instructions because the compiler's own attempt reads one code at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from deodar.kernels.cpu.elementary import F32, as_float
from deodar.kernels.cpu.jit import part

_LANES = 16
_CODES = ir.VectorType(ir.IntType(8), _LANES)
_HALVES = ir.VectorType(ir.IntType(16), _LANES)
_WORDS = ir.VectorType(ir.IntType(32), _LANES)
_FLOATS = ir.VectorType(ir.FloatType(), _LANES)
_NAN_SCALE = 255
_NAN_BITS = 0x7FC00000
_NAN = F32(float("nan"))


def _many(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * _LANES)


def _e4m3(builder: Any, codes: Any) -> Any:
    """16 codes to floats, 2^-8 of their values: a half has one more bit of exponent, bias 15."""
    signed = builder.shl(builder.sext(codes, _HALVES), _many(_HALVES, 7))
    bits = builder.and_(signed, _many(_HALVES, 0xBFFF))
    half = ir.VectorType(ir.HalfType(), _LANES)
    return builder.fpext(builder.bitcast(bits, half), _FLOATS)


def _e2m1(builder: Any, codes: Any) -> Any:
    """16 codes to floats, twice their values: 0 1 2 3 4 6 8 12 and a sign."""
    size = builder.and_(codes, _many(_CODES, 7))
    twice = builder.shl(size, _many(_CODES, 1))
    middle = builder.sub(twice, _many(_CODES, 4))
    upper = builder.sub(builder.shl(twice, _many(_CODES, 1)), _many(_CODES, 16))
    for other in (middle, upper):  # each part of the curve is the highest of the three lines
        size = builder.select(builder.icmp_signed(">", other, size), other, size)
    # The sign bit, spread over all bits, turns and subtracts: -x = (x ^ -1) - -1.
    sign = builder.ashr(builder.shl(codes, _many(_CODES, 4)), _many(_CODES, 7))
    return builder.sitofp(builder.sext(builder.sub(builder.xor(size, sign), sign), _WORDS), _FLOATS)


def _load(builder: Any, pointer: Any, at: Any, count: int) -> Any:
    """`count` bytes from pointer[at]."""
    kind = ir.VectorType(ir.IntType(8), count)
    place = builder.bitcast(builder.gep(pointer, [at]), kind.as_pointer())
    return builder.load(place, align=1)


def _store(builder: Any, values: Any, pointer: Any, at: Any) -> None:
    place = builder.bitcast(builder.gep(pointer, [at]), _FLOATS.as_pointer())
    builder.store(values, place, align=4)


def _spread(builder: Any, value: Any) -> Any:
    nothing = ir.Constant(_FLOATS, ir.Undefined)
    single = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(single, nothing, _many(_WORDS, 0))


def _pointers(context: Any, builder: Any, sig: Any, args: Any, *numbers: int) -> list[Any]:
    return [context.make_array(sig.args[i])(context, builder, args[i]).data for i in numbers]


@intrinsic
def unpack_e4m3(
    typing_context: Any, stored: Any, at: Any, scale: Any, out: Any, out_at: Any
) -> Any:
    """out[out_at + i] = 2^-8 * scale * the e4m3 number stored[at + i], i = 0..15."""
    place = types.intp
    signature = types.void(stored, place, types.float32, out, place)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        source, target = _pointers(context, builder, sig, args, 0, 3)
        codes = _load(builder, source, args[1], _LANES)
        values = builder.fmul(_e4m3(builder, codes), _spread(builder, args[2]))
        _store(builder, values, target, args[4])
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def unpack_e2m1(
    typing_context: Any, stored: Any, at: Any, scale: Any, out: Any, out_at: Any
) -> Any:
    """out[out_at + i] = 2 * scale * the i-th e2m1 number of the 8 bytes stored[at:]; low first."""
    place = types.intp
    signature = types.void(stored, place, types.float32, out, place)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        source, target = _pointers(context, builder, sig, args, 0, 3)
        half = ir.VectorType(ir.IntType(8), _LANES // 2)
        pairs = _load(builder, source, args[1], _LANES // 2)
        low = builder.and_(pairs, ir.Constant(half, [15] * (_LANES // 2)))
        high = builder.lshr(pairs, ir.Constant(half, [4] * (_LANES // 2)))
        order = [i // 2 + i % 2 * (_LANES // 2) for i in range(_LANES)]
        codes = builder.shuffle_vector(low, high, ir.Constant(_WORDS, order))
        values = _e2m1(builder, codes)
        _store(builder, builder.fmul(values, _spread(builder, args[2])), target, args[4])
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def unpack_key_pair(
    typing_context: Any, stored: Any, at: Any, scale_at: Any, out: Any, out_at: Any, step: Any
) -> Any:
    """Two columns of 16 index keys: out[out_at + j] and out[out_at + step + j].

    stored[at + j] holds both codes of key j, stored[scale_at + j] its e8m0 scale.
    """
    place = types.intp
    signature = types.void(stored, place, place, out, place, place)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        source, target = _pointers(context, builder, sig, args, 0, 3)
        scales = builder.zext(_load(builder, source, args[2], _LANES), _WORDS)
        unusable = builder.icmp_unsigned("==", scales, _many(_WORDS, _NAN_SCALE))
        bits = builder.shl(scales, _many(_WORDS, 23))
        bits = builder.select(unusable, _many(_WORDS, _NAN_BITS), bits)
        halves = ir.Constant(_FLOATS, [0.5] * _LANES)
        scales = builder.fmul(builder.bitcast(bits, _FLOATS), halves)
        pairs = _load(builder, source, args[1], _LANES)
        low = _e2m1(builder, builder.and_(pairs, _many(_CODES, 15)))
        high = _e2m1(builder, builder.lshr(pairs, _many(_CODES, 4)))
        _store(builder, builder.fmul(low, scales), target, args[4])
        second = builder.add(args[4], args[5])
        _store(builder, builder.fmul(high, scales), target, second)
        return context.get_dummy_value()

    return signature, generate


def _e4m3_number(code: int) -> float:
    exponent, mantissa = divmod(code & 127, 8)
    size = (mantissa + 8) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
    return float("nan") if code & 127 == 127 else -size if code & 128 else size


# By byte, for vectors of codes as unpacked above: powers of two times 2^8, e4m3 numbers halved.
WINDOW_SCALES = np.array([2.0 ** min(b - 119, 127) for b in range(255)] + [_NAN], np.float32)
ENTRY_SCALES = np.array([_e4m3_number(b) / 2 for b in range(256)], np.float32)


@part
def e2m1_value(code):
    """The number of one e2m1 code 0..15."""
    size = np.int32(code & 7)
    value = F32(size) * F32(0.5)
    if size >= 2:
        value = as_float(np.int32((size << 22) + np.int32(126 << 23)))
    return -value if code & 8 else value


@part
def e4m3_value(code):
    """The number of one e4m3 code; NaN for the two codes that stand for it."""
    size = np.int32(code & 127)
    value = F32(size) * F32(2.0**-9)
    if size == 127:
        value = _NAN
    elif size >= 8:
        value = as_float(np.int32((size << 20) + np.int32(120 << 23)))
    return -value if code & 128 else value


@part
def e8m0_value(code):
    """The power of two of an e8m0 byte (1..254), NaN for 255."""
    return _NAN if code == _NAN_SCALE else as_float(np.int32(np.int32(code) << 23))
