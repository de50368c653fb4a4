"""Products: right, and bit-equal for any number of rows and any place of a row."""

from __future__ import annotations

import numpy as np
import pytest
from doors import door

from deodar.kernels.cpu.matmul import matmul, matmul_plain, pack, padded

RNG = np.random.default_rng(0)
call, call_plain = door(matmul), door(matmul_plain)


def weights(depth: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """A random matrix that bfloat16 holds exactly, and its bits."""
    bits = RNG.standard_normal((depth, width)).astype(np.float32).view(np.uint32) >> 16
    return (bits << 16).view(np.float32), bits.astype(np.uint16)


def run(x: np.ndarray, packed: np.ndarray, width: int) -> np.ndarray:
    out = np.full((len(x), padded(width)), np.nan, np.float32)
    call(x, packed, out, 0)
    return out[:, :width]


@pytest.mark.parametrize(
    ("depth", "width"), [(8, 1), (32, 24), (96, 64), (320, 96), (320, 360), (64, 1600)]
)
def test_it_is_the_product(depth: int, width: int) -> None:
    values, bits = weights(depth, width)
    x = RNG.standard_normal((7, depth)).astype(np.float32)
    exact = x.astype(np.float64) @ values.astype(np.float64)
    bound = 1e-6 * np.abs(x).astype(np.float64) @ np.abs(values)
    assert (np.abs(run(x, pack(bits), width) - exact) <= bound).all()
    np.testing.assert_array_equal(run(x, pack(bits), width), run(x, pack(values), width))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 17, 64])
def test_a_row_has_the_same_bits_alone_and_among_others(rows: int) -> None:
    _, bits = weights(320, 208)
    packed = pack(bits)
    x = RNG.standard_normal((rows, 320)).astype(np.float32)
    together = run(x, packed, 208)
    for r in range(rows):
        np.testing.assert_array_equal(run(x[r : r + 1], packed, 208)[0], together[r])


def test_the_sum_runs_in_the_order_of_the_inner_dimension() -> None:
    # 1e8 + 1 is 1e8 in float32: only this order gives these results
    x = np.ones((1, 8), np.float32)
    matrix = np.zeros((8, 16), np.float32)
    matrix[:4, 0] = [1e8, 1, -1e8, 3]
    matrix[:4, 1] = [1e8, -1e8, 1, 3]
    assert run(x, pack(matrix), 16)[0, :2].tolist() == [3.0, 4.0]


def test_columns_land_where_they_are_told() -> None:
    values, bits = weights(32, 16)
    out = np.zeros((5, 48), np.float32)
    x = RNG.standard_normal((5, 32)).astype(np.float32)
    call(x, pack(bits), out, 16)
    np.testing.assert_array_equal(out[:, 16:32], run(x, pack(bits), 16))
    assert not out[:, :16].any()
    assert not out[:, 32:].any()


@pytest.mark.parametrize("rows", [1, 3, 4, 8])
def test_the_unpacked_form_has_the_same_bits(rows: int) -> None:
    values, _ = weights(64, 80)
    x = RNG.standard_normal((rows, 64)).astype(np.float32)
    stride = 96
    stored = np.zeros((64, stride), np.float32)
    stored[:, :80] = values
    out = np.empty((rows, 80), np.float32)
    call_plain(x, stored.ravel(), stride, out)
    np.testing.assert_array_equal(out, run(x, pack(values), 80))
