"""Products of rows with a stored matrix, bit-equal for any number of rows.

out[r, j] = fma(x[r, K-1], w[K-1, j], ... fma(x[r, 1], w[1, j], fma(x[r, 0], w[0, j], 0))): fused
multiply-adds one after another in the order of the inner dimension. Vectors run along j and tiles
along r, so no shape can change a sum. The inner loop is written as vector instructions in the
compiler's own language, because left to itself it misses most of the speed on narrow matrices.

A stored matrix is packed (`pack`) so that one row reads it from front to back:

    panel 0: w[0, 0:64], w[1, 0:64], ... w[K-1, 0:64];  panel 1: the next 64 columns; ...
    the last panel is as wide as what is left, a multiple of 16 (missing columns are zeros)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from deodar.kernels.cpu.elementary import keep_apart
from deodar.kernels.cpu.jit import part

PANEL = 64
GRAIN = 16
FIRST = np.int64(0)  # column 0; a literal 0 would make numba compile everything once more


def padded(width: int) -> int:
    """Columns of a packed matrix: `width` rounded up to 16."""
    return -(-width // GRAIN) * GRAIN


def pack(matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The packed form, one-dimensional, of a matrix [in, out] of any dtype."""
    wide = np.zeros((matrix.shape[0], padded(matrix.shape[1])), matrix.dtype)
    wide[:, : matrix.shape[1]] = matrix
    panels = [wide[:, at : at + PANEL].ravel() for at in range(0, wide.shape[1], PANEL)]
    return np.concatenate(panels)


def _tile(rows: int, width: int) -> Any:
    """A kernel for `rows` rows and `width` columns with all its sums in registers."""

    @intrinsic
    def tile(typing_context, x, x_at, x_step, w, w_at, w_step, depth, out, out_at, out_step):  # type: ignore[no-untyped-def]
        narrow = w.dtype == types.uint16
        count = types.intp
        signature = types.void(x, count, count, w, count, count, count, out, count, count)

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            x_ptr, w_ptr, out_ptr = (
                context.make_array(sig.args[i])(context, builder, args[i]).data for i in (0, 3, 7)
            )
            shape = (args[1], args[2], args[4], args[5], args[6], args[8], args[9])
            _emit(builder, rows, width, narrow, x_ptr, w_ptr, out_ptr, *shape)
            return context.get_dummy_value()

        return signature, generate

    return tile


def _emit(
    builder: Any, rows: int, width: int, narrow: bool, x_ptr: Any, w_ptr: Any, out_ptr: Any,
    x_at: Any, x_step: Any, w_at: Any, w_step: Any, depth: Any, out_at: Any, out_step: Any,
) -> None:  # fmt: skip
    """For k in order: v = w[w_at + k w_step :][:width] and, for every row r,

    sum[r] = fma(x[x_at + r x_step + k], v, sum[r]); at last out[out_at + r out_step :] = sum[r].
    """
    lanes = ir.VectorType(ir.FloatType(), width)
    fma_type = ir.FunctionType(lanes, [lanes, lanes, lanes])
    fma = cgutils.get_or_insert_function(builder.module, fma_type, f"llvm.fma.v{width}f32")
    zeros = ir.Constant(lanes, [0.0] * width)
    zero_mask = ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width)
    first_lane = ir.Constant(ir.IntType(32), 0)
    row_numbers = [ir.Constant(x_step.type, r) for r in range(rows)]
    starts = [builder.add(x_at, builder.mul(x_step, r)) for r in row_numbers]
    sums = [cgutils.alloca_once_value(builder, zeros) for _ in range(rows)]
    for total in sums:  # the slots are made once per function: clear them at every use
        builder.store(zeros, total)
    with cgutils.for_range(builder, depth) as loop:
        place = builder.gep(w_ptr, [builder.add(w_at, builder.mul(loop.index, w_step))])
        weights = _load_lanes(builder, place, width, narrow)
        for start, total in zip(starts, sums, strict=True):
            value = builder.load(builder.gep(x_ptr, [builder.add(start, loop.index)]))
            single = builder.insert_element(ir.Constant(lanes, ir.Undefined), value, first_lane)
            spread = builder.shuffle_vector(single, ir.Constant(lanes, ir.Undefined), zero_mask)
            builder.store(builder.call(fma, [spread, weights, builder.load(total)]), total)
    for r, total in zip(row_numbers, sums, strict=True):
        at = builder.add(out_at, builder.mul(out_step, r))
        place = builder.bitcast(builder.gep(out_ptr, [at]), lanes.as_pointer())
        builder.store(builder.load(total), place, align=4)


def _load_lanes(builder: Any, place: Any, width: int, narrow: bool) -> Any:
    """`width` float32 weights; bfloat16 bits are widened in registers."""
    lanes = ir.VectorType(ir.FloatType(), width)
    if not narrow:
        return builder.load(builder.bitcast(place, lanes.as_pointer()), align=4)
    halves = ir.VectorType(ir.IntType(16), width)
    words = ir.VectorType(ir.IntType(32), width)
    bits = builder.load(builder.bitcast(place, halves.as_pointer()), align=2)
    upper = builder.shl(builder.zext(bits, words), ir.Constant(words, [16] * width))
    return builder.bitcast(upper, lanes)


_one_by_64, _one_by_48, _one_by_32, _one_by_16 = (_tile(1, w) for w in (64, 48, 32, 16))
_four_by_32, _four_by_16 = _tile(4, 32), _tile(4, 16)


@part
def matmul(x, w, out, column):
    """out[:, column : column + N] = x @ w.

    x float32 [R, K], w packed [K * N] float32 or bfloat16 bits as uint16, out float32 [R, >= N].
    N, a multiple of 16, follows from the size of w.
    """
    keep_apart()
    rows, depth = x.shape
    width = w.size // depth
    fours = rows // 4 * 4
    for start in range(0, width, PANEL):
        n = min(PANEL, width - start)
        for r in range(0, fours, 4):
            _four_rows(x, r, w, start * depth, n, out, column + start)
        for r in range(fours, rows):
            _one_row(x, r, w, start * depth, n, n, out, column + start)


@part
def matmul_plain(x, w, stride, out):
    """out[R, N] = x [R, K] @ w[k * stride + j], float32, N a multiple of 16; w is not packed."""
    keep_apart()
    rows, depth = x.shape
    width = out.shape[1]
    fours = rows // 4 * 4
    for start in range(0, width, PANEL):
        n = min(PANEL, width - start)
        for at in range(start, start + n, 32):
            m = min(32, start + n - at)
            for r in range(0, fours, 4):
                _four_rows_strided(x, r, w, at, stride, m, out, at)
        for r in range(fours, rows):
            _one_row(x, r, w, start, stride, n, out, start)


@part
def _one_row(x, r, w, w_at, w_step, n, out, column):
    keep_apart()
    depth = x.shape[1]
    x_at, out_at = r * depth, r * out.shape[1] + column
    if n == 64:
        _one_by_64(x, x_at, 0, w, w_at, w_step, depth, out, out_at, 0)
    elif n == 48:
        _one_by_48(x, x_at, 0, w, w_at, w_step, depth, out, out_at, 0)
    elif n == 32:
        _one_by_32(x, x_at, 0, w, w_at, w_step, depth, out, out_at, 0)
    else:
        _one_by_16(x, x_at, 0, w, w_at, w_step, depth, out, out_at, 0)


@part
def _four_rows(x, r, w, w_at, n, out, column):
    keep_apart()
    for at in range(0, n, 32):
        _four_rows_strided(x, r, w, w_at + at, n, min(32, n - at), out, column + at)


@part
def _four_rows_strided(x, r, w, w_at, w_step, n, out, column):
    keep_apart()
    depth, out_step = x.shape[1], out.shape[1]
    x_at, out_at = r * depth, r * out_step + column
    if n == 32:
        _four_by_32(x, x_at, depth, w, w_at, w_step, depth, out, out_at, out_step)
    else:
        _four_by_16(x, x_at, depth, w, w_at, w_step, depth, out, out_at, out_step)
