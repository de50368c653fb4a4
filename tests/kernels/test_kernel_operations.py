"""Each kernel against the reference's operator, or NumPy, on identical inputs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from doors import door
from hypothesis import given, settings
from hypothesis import strategies as st

from deodar.checkpoint.tiny import tiny_config
from deodar.kernels.cpu import elementary, engram, hyper, moe, quant, select
from deodar.model import quant as reference_quant
from deodar.model.hyper import HyperWeights, mixes

RNG = np.random.default_rng(1)
F32 = np.float32


SELECT = door(select.select_top)


def floats(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RNG.standard_normal(shape) * scale).astype(F32)


def test_exp_is_within_two_units_in_the_last_place() -> None:
    call = door(elementary.exp)
    x = np.concatenate([np.linspace(-87, 88, 4001), floats(2000)]).astype(F32)
    got = np.array([call(v) for v in x], F32)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(got - exact) / exact).max() < 2.4e-7
    assert call(F32(0)) == 1.0
    assert call(F32(-1000)) == call(F32(-87))


@pytest.mark.parametrize("count", [1, 15, 16, 17, 64, 320])
def test_norm_and_sums(count: int) -> None:
    x, weight = floats(count), floats(count)
    out = np.empty(count, F32)
    door(elementary.rms_norm)(x, weight, F32(1e-20), out)
    exact = weight * x / math.sqrt(float((x.astype(np.float64) ** 2).mean()))
    np.testing.assert_allclose(out, exact, rtol=2e-6)
    assert door(elementary.lane_sum)(x) == pytest.approx(
        float(x.astype(np.float64).sum()), abs=1e-4
    )
    assert not np.isnan(out).any()
    zero = np.zeros(count, F32)
    door(elementary.rms_norm)(zero, weight, F32(1e-20), out)
    assert not out.any()


def test_rotation_and_its_inverse() -> None:
    x, angle = floats(24), floats(4)
    turned = x.copy()
    door(elementary.rotate)(turned, np.cos(angle), np.sin(angle))
    pairs = (x[16::2] + 1j * x[17::2]) * np.exp(1j * angle.astype(np.float64))
    np.testing.assert_allclose(turned[16::2], pairs.real, atol=1e-6)
    np.testing.assert_allclose(turned[17::2], pairs.imag, atol=1e-6)
    np.testing.assert_array_equal(turned[:16], x[:16])
    door(elementary.rotate_back)(turned, np.cos(angle), np.sin(angle))
    np.testing.assert_allclose(turned, x, atol=1e-6)


def samples(scale: float) -> np.ndarray:
    """Vectors of 64 with zeros, exact ties and signed zeros among them."""
    x = floats(200, 64, scale=scale)
    x[0], x[1, ::2] = 0, 0
    x[2] = np.tile([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6], 8) * scale
    x[3] = -x[2]
    x[4, ::3] *= 1e-4  # below the smallest normal numbers of the formats
    return x


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 300.0])
@pytest.mark.parametrize(
    ("encode", "decode", "name"),
    [
        (quant.encode_window_key, quant.decode_window_key, "window_key"),
        (quant.encode_entry, quant.decode_entry, "main_entry"),
    ],
)
def test_stored_bytes_equal_the_reference(encode, decode, name: str, scale: float) -> None:
    x = samples(scale)
    expected = getattr(reference_quant, f"encode_{name}")(torch.from_numpy(x))
    values = getattr(reference_quant, f"decode_{name}")(expected).numpy()
    got, back = np.zeros_like(expected.numpy()), np.zeros_like(x)
    write, read = door(encode), door(decode)
    for row, stored, out in zip(x, got, back, strict=True):
        write(row, stored)
        read(stored, 64, out, 0)
    np.testing.assert_array_equal(got, expected.numpy())
    np.testing.assert_array_equal(back, values)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 300.0])
@pytest.mark.parametrize(("keys", "count"), [(4, 3), (8, 8), (50, 33), (64, 64), (128, 70)])
def test_index_keys_lie_turned_in_their_page(scale: float, keys: int, count: int) -> None:
    x = samples(scale)[:count]
    expected = reference_quant.encode_index_key(torch.from_numpy(x))
    values = reference_quant.decode_index_key(expected).numpy()
    page, stride = np.full(keys * (64 // 2 + 2), 255, np.uint8), -(-keys // 16) * 16
    write = door(quant.encode_index_key)
    for column, row in enumerate(x):
        write(row, page, column, keys)
    np.testing.assert_array_equal(page.reshape(-1, keys)[:, :count].T, expected.numpy())
    out = np.full(64 * stride, 7, np.float32)
    door(quant.decode_index_keys)(page, 64, keys, count, out, stride)
    np.testing.assert_array_equal(out.reshape(64, stride)[:, :count].T, values)


def test_every_code_decodes_as_the_reference_says() -> None:
    codes = np.arange(256, dtype=np.uint8)
    scales = np.full(8, 127, np.uint8)
    stored = np.concatenate([codes, scales])
    expected = reference_quant.decode_window_key(torch.from_numpy(stored)).numpy()
    usable = ~np.isnan(expected)
    out = np.empty(256, F32)
    door(quant.decode_window_key)(stored, 256, out, 0)
    np.testing.assert_array_equal(out[usable], expected[usable])
    assert usable.sum() == 254
    for scale in range(127):
        stored = np.concatenate([codes[:8], np.array([scale], np.uint8)])
        expected = reference_quant.decode_main_entry(torch.from_numpy(stored)).numpy()
        door(quant.decode_entry)(stored, 16, out, 0)
        np.testing.assert_array_equal(out[:16], expected)


def test_what_is_void_stays_void() -> None:
    x = floats(64)
    x[5] = np.nan
    for encode, decode, size in (
        (quant.encode_window_key, quant.decode_window_key, 66),
        (quant.encode_entry, quant.decode_entry, 36),
    ):
        stored, out = np.zeros(size, np.uint8), np.zeros(64, F32)
        door(encode)(x, stored)
        assert (stored == 255).all()
        door(decode)(stored, 64, out, 0)
        assert np.isnan(out).all()
    page, out = np.zeros(34 * 16, np.uint8), np.zeros(64 * 16, F32)
    door(quant.encode_index_key)(x, page, 2, 16)
    door(quant.decode_index_keys)(page, 64, 16, 3, out, 16)
    out = out.reshape(64, 16)
    assert np.isnan(out[:, 2]).all()
    assert not np.isnan(out[:, :2]).any()
    ids = np.empty(2, np.int32)
    scores = np.array([1, -np.nan, 3, np.nan], F32)
    assert SELECT(scores, np.empty(4, np.uint32), 2, ids) == 2
    assert ids.tolist() == [1, 3]


def test_mixes_equal_the_reference() -> None:
    config = tiny_config()
    stream = floats(3, 4, config.hidden_size)
    w = HyperWeights(
        torch.from_numpy(floats(24, 4 * config.hidden_size, scale=0.05)),
        torch.from_numpy(floats(24)),
        torch.from_numpy(floats(3)),
    )
    expected = mixes(torch.from_numpy(stream), w, config)
    flat = torch.from_numpy(stream).flatten(1)
    raw = ((flat @ w.fn.T) * (flat.pow(2).mean(-1, keepdim=True) + 1e-20).rsqrt()).numpy()
    call = door(hyper.finish_mixes)
    for r in range(3):
        pre, post, comb = np.empty(4, F32), np.empty(4, F32), np.empty(16, F32)
        base, scale = w.base.numpy(), w.scale.numpy()
        call(raw[r], base, scale, config.hc_sinkhorn_iters, F32(config.hc_eps), pre, post, comb)
        np.testing.assert_allclose(pre, expected.pre[r], atol=2e-6)
        np.testing.assert_allclose(post, expected.post[r], atol=2e-6)
        np.testing.assert_allclose(comb.reshape(4, 4), expected.comb[r], atol=5e-6)
        np.testing.assert_allclose(comb.reshape(4, 4).sum(0), 1, atol=2e-6)


def test_write_back_sums_over_the_first_index() -> None:
    stream, y = floats(4, 8), floats(8)
    post, comb = floats(4), floats(4, 4)
    expected = post[:, None] * y + comb.T @ stream
    door(hyper.write_back)(stream, post, comb.ravel(), y)
    np.testing.assert_allclose(stream, expected, atol=1e-5)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(st.sampled_from([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, 0.5]),
                  st.floats(-(2.0**100), 2.0**100, width=32)),
        min_size=1, max_size=60,
    ),
    st.integers(1, 70),
)  # fmt: skip
def test_top_k_is_a_total_order(values: list[float], k: int) -> None:
    scores = np.array(values, F32)
    order = sorted(range(len(values)), key=lambda i: (-scores[i], i))
    best = sorted(i for i in order[:k] if scores[i] > -math.inf)
    ids = np.full(len(values), -1, np.int32)
    count = SELECT(scores, np.empty(len(values), np.uint32), k, ids)
    assert ids[:count].tolist() == best


def test_router_golden() -> None:
    z = np.array([-3, -1, 0, 0.5, 1, 2, 4, 8], F32)
    bias = np.array([0.9, 0.2, 0, 0, 0, -0.5, -1, -3], F32)
    ids, weights = np.empty(3, np.int32), np.empty(3, F32)
    door(moe.route)(z, bias, F32(1.5), np.empty(8, np.uint32), ids, weights)
    assert ids.tolist() == [0, 4, 6]
    np.testing.assert_allclose(weights, [0.09809, 0.50994, 0.89198], atol=1e-5)


def test_gated_clamps_the_gate_from_above_only() -> None:
    both = np.array([20, -20, 1, 1, 1, 1, 30, -30], F32)
    out = np.empty(4, F32)
    door(moe.gated)(both, F32(10), F32(0.5), out)
    silu = [v / (1 + math.exp(-v)) for v in (10, -20, 1, 1)]
    np.testing.assert_allclose(
        out, [silu[0] / 2, silu[1] / 2, silu[2] * 5, silu[3] * -5], rtol=1e-5
    )


@pytest.mark.parametrize(
    ("dot", "gate"),
    [(-4, 0.119203), (-0.25, 0.377541), (-1e-8, 0.49975), (0.25, 0.622459), (4, 0.880797)],
)
def test_engram_gate_golden(dot: float, gate: float) -> None:
    dim = 16
    stream, both = np.zeros((4, dim), F32), np.zeros(5 * dim, F32)
    stream[:, 0] = 1.0  # one over its rms is 4, so is the key's
    both[: 4 * dim : dim] = 1.0
    both[4 * dim :] = 1.0
    qk = np.full((4, dim), dot / 4, F32)  # 1 * qk * 1 * 4 * 4 / sqrt(16)
    door(engram.apply)(stream, both, qk, F32(1e-20), True, np.empty(dim, F32))
    np.testing.assert_allclose(stream[2, 1:], gate, atol=1e-6)
    before = stream.copy()
    door(engram.apply)(stream, both, qk, F32(1e-20), False, np.empty(dim, F32))
    np.testing.assert_array_equal(stream, before)
