"""The sampler against its definition (docs/sampling.md), written out slowly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deodar.decoding.noise import gumbel_rows
from deodar.decoding.sampler import sample
from deodar.types import SamplingParams

RNG = np.random.default_rng(2)


def slow(z: np.ndarray, params: SamplingParams, seed: int, index: int, choice: int = 0) -> int:
    """Design D4 literally, in float64, by full sorts."""
    wide = z.astype(np.float64)
    if params.temperature == 0:
        return int(np.argmax(wide))
    p = np.exp((wide - wide.max()) / params.temperature)
    p /= p.sum()
    order = np.lexsort((np.arange(len(z)), -wide))
    keep = np.zeros(len(z), bool)
    before = np.concatenate([[0.0], np.cumsum(p[order])[:-1]])
    for rank, token in enumerate(order):
        keep[token] = (
            (params.top_k == 0 or rank < params.top_k)
            and (params.top_p == 1 or before[rank] < params.top_p)
            and p[token] >= params.min_p * p.max()
        )
    noisy = wide / params.temperature + gumbel_rows(seed, choice, index, len(z))
    return int(np.argmax(np.where(keep, noisy, -np.inf)))


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 1.0, 2.0]), st.sampled_from([0, 1, 3, 50]),
    st.sampled_from([1.0, 0.95, 0.5, 0.01]), st.sampled_from([0.0, 0.05, 1.0]),
    st.sampled_from([0.1, 3.0, 30.0]), st.integers(0, 2**63 - 1), st.integers(0, 3),
)  # fmt: skip
def test_equals_the_definition(
    draw: int, temperature: float, top_k: int, top_p: float, min_p: float, scale: float, seed: int,
    choice: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(draw)
    z = (rng.standard_normal(301) * scale).astype(np.float32)
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for index in range(5):
        token = sample(z, params, seed, index, choice).token_id
        assert token == slow(z, params, seed, index, choice)


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-40, 1e-38, 1e-20])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_lowest_temperatures_draw_the_best_token(
    temperature: float, filters: dict[str, float], sign: int
) -> None:
    z = sign * (1 + RNG.random(600)).astype(np.float32)
    params = SamplingParams(temperature=temperature, **filters)  # type: ignore[arg-type]
    assert sample(z, params, 0, 0).token_id == int(np.argmax(z))


def test_skipping_hopeless_noise_changes_nothing() -> None:
    z = (RNG.standard_normal(5000) * 4).astype(np.float32)
    for index in range(300):
        params = SamplingParams(temperature=(0.2, 1.0, 2.0)[index % 3])
        expected = int(np.argmax(z / params.temperature + gumbel_rows(9, 0, index, 5000)))
        wide = z.astype(np.float64) / params.temperature + gumbel_rows(9, 0, index, 5000)
        assert sample(z, params, 9, index).token_id == int(np.argmax(wide)) == expected


def test_draws_follow_the_softmax() -> None:
    z = np.log(np.array([0.5, 0.25, 0.15, 0.07, 0.03], np.float32))
    draws = [sample(z, SamplingParams(), 77, i).token_id for i in range(20_000)]
    counts = np.bincount(draws, minlength=5)
    expected = np.exp(z.astype(np.float64)) * 20_000
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 23.5  # 4 degrees of freedom, p = 1e-4


def test_ties_take_the_lowest_id() -> None:
    z = np.zeros(40, np.float32)
    z[[7, 21, 33]] = 2.0
    assert sample(z, SamplingParams(temperature=0), 0, 0).token_id == 7
    kept = {sample(z, SamplingParams(top_k=2), 0, i).token_id for i in range(100)}
    assert kept == {7, 21}
    assert sample(z, SamplingParams(top_p=1e-9), 0, 3).token_id == 7


@pytest.mark.parametrize("temperature", [0.0, 0.3, 2.0])
def test_the_log_probability_is_that_of_the_raw_logits(temperature: float) -> None:
    z = (RNG.standard_normal(8192) * 5).astype(np.float32)
    drawn = sample(z, SamplingParams(temperature=temperature, top_p=0.9), 3, 1)
    wide = z.astype(np.float64)
    exact = wide[drawn.token_id] - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    assert drawn.logprob == pytest.approx(exact, abs=2e-6)


def test_extreme_logits_stay_finite() -> None:
    z = np.full(64, -3e38, np.float32)
    z[5] = 3e38
    drawn = sample(z, SamplingParams(), 1, 0)
    assert (drawn.token_id, drawn.logprob) == (5, 0.0)
    flat = sample(np.full(64, -1e30, np.float32), SamplingParams(temperature=0), 1, 0)
    assert flat.logprob == pytest.approx(-np.log(64), abs=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("place", [0, 7, 63])
def test_a_row_that_is_no_number_is_an_error(value: float, temperature: float, place: int) -> None:
    z = RNG.normal(size=64).astype(np.float32)
    z[place] = value
    for top_p in (1.0, 0.9):
        with pytest.raises(ArithmeticError, match="NaN or infinity"):
            sample(z, SamplingParams(temperature=temperature, top_p=top_p), 1, 0)
