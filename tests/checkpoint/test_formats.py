"""Byte formats against their definitions and against torch's casts as an independent oracle."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deodar.checkpoint import formats


def test_e4m3_table_is_torchs() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    wanted = codes.view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(formats.E4M3, wanted)
    assert formats.E4M3[0x7E] == 448
    assert np.isnan(formats.E4M3[[0x7F, 0xFF]]).all()


def test_e8m0_table() -> None:
    assert formats.E8M0[127] == 1
    assert formats.E8M0[0] == 2.0**-127
    assert formats.E8M0[254] == 2.0**127
    assert np.isnan(formats.E8M0[255])


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 100.0, 400.0])
def test_e4m3_encoding_rounds_as_torch(scale: float) -> None:
    values = (np.random.default_rng(1).standard_normal(50_000) * scale).astype(np.float32)
    values = np.clip(values, -448, 448)
    wanted = torch.from_numpy(values).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    np.testing.assert_array_equal(formats.encode_e4m3(values), wanted)


def test_e4m3_ties_and_edges() -> None:
    exact = formats.E4M3[:0x7F]
    ties = (exact[:-1] + exact[1:]) / 2
    codes = formats.encode_e4m3(ties)
    assert (codes % 2 == 0).all()
    np.testing.assert_array_equal(formats.encode_e4m3(exact), np.arange(0x7F))
    edges = np.array([1e9, -1e9, np.inf, np.nan, -0.0], dtype=np.float32)
    assert formats.encode_e4m3(edges).tolist() == [0x7E, 0xFE, 0x7E, 0x7F, 0x80]


def test_bf16_rounds_as_torch() -> None:
    values = np.random.default_rng(2).standard_normal(50_000).astype(np.float32)
    values[:4] = [np.inf, -np.inf, 3.3e38, -0.0]
    wanted = torch.from_numpy(values).to(torch.bfloat16)
    bits = formats.encode_bf16(values)
    np.testing.assert_array_equal(bits, wanted.view(torch.uint16).numpy())
    np.testing.assert_array_equal(formats.decode_bf16(bits), wanted.float().numpy())
    nan = formats.encode_bf16(np.array([np.nan], dtype=np.float32))
    assert np.isnan(formats.decode_bf16(nan)).all()


def test_e2m1_golden_of_10_2() -> None:
    values = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -2.5], dtype=np.float32)
    rounded = formats.E2M1[formats.encode_e2m1(values)]
    assert rounded.tolist() == [0, 1, 1, 2, 2, 4, 4, 0, -2]
    assert np.signbit(rounded[7])
    assert formats.E2M1[formats.encode_e2m1(np.float32([9, -9]))].tolist() == [6, -6]


def test_low_nibble_is_the_even_column() -> None:
    packed = np.array([[0x21, 0xF4]], dtype=np.uint8)
    assert formats.unpack_nibbles(packed).tolist() == [[1, 2, 4, 15]]
    assert formats.pack_nibbles(formats.unpack_nibbles(packed)).tolist() == packed.tolist()


@pytest.mark.parametrize("form", ["tiles", "fp4", "rows"])
def test_coding_twice_changes_nothing(form: str) -> None:
    encode, decode = getattr(formats, f"encode_{form}"), getattr(formats, f"decode_{form}")
    rng = np.random.default_rng(3)
    values = (rng.standard_normal((96, 64)) * 10.0 ** rng.integers(-6, 6, (96, 64))).astype("f4")
    values[:32, :32] = 0
    once = decode(*encode(values))
    np.testing.assert_array_equal(decode(*encode(once)), once)
    # 20 of section 10.1: values survive bf16.
    np.testing.assert_array_equal(formats.decode_bf16(formats.encode_bf16(once)), once)


def test_scales_round_up_so_that_nothing_saturates() -> None:
    tile = np.full((32, 32), 448.0, dtype=np.float32)
    assert formats.encode_tiles(tile)[1].tolist() == [[127]]
    tile[5, 7] = 449.0
    weight, scale = formats.encode_tiles(tile)
    assert scale.tolist() == [[128]]
    assert formats.decode_tiles(weight, scale)[5, 7] == 448.0
    group = np.zeros((1, 32), dtype=np.float32)
    group[0, 3] = 6.5
    assert formats.encode_fp4(group)[1].tolist() == [[128]]


def test_partial_tiles() -> None:
    values = np.arange(33 * 40, dtype=np.float32).reshape(33, 40)
    weight, scale = formats.encode_tiles(values)
    assert scale.shape == (2, 2)
    assert np.abs(formats.decode_tiles(weight, scale) - values).max() <= values.max() / 16
