"""The noise of sampling: published vectors, exactness of the logarithm, the distribution."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numba
import numpy as np

from deodar.decoding import noise

DOCUMENT = Path(__file__).parents[2] / "docs" / "sampling.md"


@numba.njit
def words(c0, c1, c2, c3, k0, k1):
    return noise.philox(c0, c1, c2, c3, k0, k1)


@numba.njit
def logarithms(values):
    out = np.empty(values.size)
    for i in range(values.size):
        out[i] = noise.ln(values[i])
    return out


def philox(*numbers: int) -> list[int]:
    return [int(word) for word in words(*(np.uint64(n) for n in numbers))]


def test_philox_published_vectors() -> None:
    assert philox(0, 0, 0, 0, 0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    expected = [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    assert philox(ones, ones, ones, ones, ones, ones) == expected
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)
    assert philox(*pi) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def test_logarithm_within_two_units_in_the_last_place() -> None:
    rng = np.random.default_rng(0)
    edges = [1 - 2.0**-n for n in range(2, 34)] + [2.0**-n for n in range(34)] + [1 + 2.0**-20]
    x = np.concatenate([rng.random(20000), rng.random(2000) * 30, edges])
    x = x[x > 0]
    exact = np.array([math.log(v) for v in x])
    off = np.abs(logarithms(x) - exact)
    assert (off <= 2 * np.spacing(np.abs(exact))).all()


def test_noise_is_gumbel() -> None:
    draws = noise.gumbel_rows(12345, 0, 7, 200_000)
    assert abs(draws.mean() - 0.5772156649) < 4 * math.sqrt(1.6449 / 200_000)
    assert abs(draws.var() - math.pi**2 / 6) < 0.03
    below = np.mean(draws[:, None] < np.array([-1.0, 0.0, 1.0, 3.0]), axis=0)
    exact = np.exp(-np.exp(-np.array([-1.0, 0.0, 1.0, 3.0])))
    assert np.abs(below - exact).max() < 0.004


def test_every_key_part_matters_and_nothing_else() -> None:
    base = noise.gumbel_rows(5, 0, 0, 9)
    np.testing.assert_array_equal(base, noise.gumbel_rows(5, 0, 0, 4000)[:9])
    for other in ((6, 0, 0), (5, 1, 0), (5, 0, 1), (5 + 2**32, 0, 0), (5 + 2**62, 0, 0)):
        assert not np.isin(noise.gumbel_rows(*other, 9), base).any()


def test_the_document_holds_the_vectors_of_this_code() -> None:
    rows = re.findall(
        r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (0x[0-9a-f]{8}) \| (-?0x1\.[0-9a-f]+p[+-]\d+) \|",
        DOCUMENT.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert len(rows) >= 6
    for seed, choice, index, token, word, value in rows:
        draw = noise.gumbel_rows(int(seed), int(choice), int(index), int(token) + 1)[-1]
        assert float.hex(float(draw)) == value
        s, block = int(seed), int(token) // 4
        bits = philox(block, int(index), int(choice), 0, s & 0xFFFFFFFF, s >> 32)
        assert f"0x{bits[int(token) % 4]:08x}" == word
