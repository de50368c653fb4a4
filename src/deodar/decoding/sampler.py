"""Logits to one token (design D4): filters on softmax(z / T), then argmax(z / T + noise).

Called once per sampled row, by the engine and later by the drafter with its own logits. The result
depends on the row, the parameters, the seed and the output index only. Definition and test
vectors: docs/sampling.md.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from deodar.decoding.noise import gumbel, noise_bits
from deodar.kernels.cpu.elementary import F32, exp, lane_sum
from deodar.kernels.cpu.jit import entry, part
from deodar.types import SampledToken, SamplingParams

_FORBIDDEN = np.float32(-1e30)  # finite, so that differences are
_COLDEST = 1e-30  # a lower temperature draws the same, but 1 / T would overflow
_NEGLIGIBLE = 26.5  # noise lies between -3.2 and 22.9: a token so far below the best cannot win


def sample(
    logits: NDArray[np.float32], params: SamplingParams, seed: int, index: int, choice: int = 0
) -> SampledToken:
    """Draw the token of output `index` from raw logits [vocab].

    seed: 0 .. 2^64 - 1; index, choice: 0 .. 2^32 - 1. The log-probability is that of the raw
    logits at temperature 1, before any filter. ArithmeticError if the row holds NaN or +infinity:
    arg-max would take such a row for an answer.
    """
    token, logprob = _draw(
        logits,
        float(params.temperature),
        params.top_k,
        float(params.top_p),
        float(params.min_p),
        np.uint64(seed),
        np.uint64(choice),
        np.uint64(index),
    )
    if math.isnan(logprob):
        raise ArithmeticError("the logits hold NaN or infinity")
    return SampledToken(token, logprob)


def sample_masked(
    logits: NDArray[np.float32],
    allowed: NDArray[np.bool_],
    params: SamplingParams,
    seed: int,
    index: int,
    choice: int = 0,
) -> SampledToken:
    """`sample` among the allowed tokens, bool [vocab]; the log-probability is still the raw one."""
    best = sample(logits, replace(params, temperature=0.0), seed, index, choice)
    token = sample(np.where(allowed, logits, _FORBIDDEN), params, seed, index, choice).token_id
    above = float(logits[token]) - float(logits[best.token_id])
    return SampledToken(token, above + best.logprob)


@entry
def _draw(z, temperature, top_k, top_p, min_p, seed, choice, index):
    best = _arg_max(z)
    parts = np.empty(z.size, np.float32)
    for i in range(z.size):
        parts[i] = exp(z[i] - z[best])
    normalizer = math.log(lane_sum(parts))
    token = best
    if temperature > 0:
        temperature = max(temperature, _COLDEST)
        kept = _kept(z, best, temperature, top_k, top_p, min_p, parts)
        token = _noisy_best(z, best, kept, temperature, seed, choice, index)
    return token, (np.float64(z[token]) - np.float64(z[best])) - normalizer


@part
def _arg_max(z):
    best = 0
    for i in range(z.size):
        if z[i] > z[best]:
            best = i
    return best


@part
def _kept(z, best, temperature, top_k, top_p, min_p, parts):
    """Ids that the filters leave, ascending. All three look at the same softmax(z / T).

    min_p: at least min_p times the largest probability. top_k: the k largest. top_p: the shortest
    run of the largest whose sum reaches top_p. Order: larger z first, lowest id on ties.
    """
    scale = F32(1.0 / temperature)
    total = 0.0
    for i in range(z.size):
        parts[i] = exp((z[i] - z[best]) * scale)
    for i in range(z.size):
        total += parts[i]
    floor = min_p
    if top_p < 1.0:  # all tokens below this weigh too little together to belong to the run
        floor = max(floor, (1.0 - top_p) * total / z.size)
    ids = np.empty(z.size, np.int64)
    count = np.int64(0)  # a literal 0 would make numba compile what follows once more
    for i in range(z.size):
        if parts[i] >= floor and (z[best] - z[i]) / temperature < _NEGLIGIBLE:
            ids[count] = i
            count += 1
    if top_p >= 1.0 and (top_k <= 0 or top_k >= count):
        return ids[:count]
    return _run_of_largest(z, ids, count, top_k if top_k > 0 else count, top_p * total, parts)


@part
def _run_of_largest(z, heap, count, top_k, mass_wanted, parts):
    """The first ids of the total order, ascending: top_k at most, until their parts reach the mass.

    heap holds `count` ids and is overwritten; it is ordered only as far as needed.
    """
    for at in range(count // 2 - 1, -1, -1):
        _sift(z, heap, at, count)
    taken = np.zeros(z.size, np.uint8)
    rank, mass = 0, 0.0
    while rank < top_k and count > 0 and (rank == 0 or mass < mass_wanted):
        taken[heap[0]] = 1
        mass += parts[heap[0]]
        rank += 1
        count -= 1
        heap[0] = heap[count]
        _sift(z, heap, np.int64(0), count)
    kept = np.empty(rank, np.int64)
    count = 0
    for i in range(z.size):
        if taken[i] != 0:
            kept[count] = i
            count += 1
    return kept


@part
def _sift(z, heap, at, count):
    """Let heap[at] sink until no child of it comes before it: larger z first, then lower id."""
    item = heap[at]
    while 2 * at + 1 < count:
        child = 2 * at + 1
        if child + 1 < count and _before(z, heap[child + 1], heap[child]):
            child += 1
        if not _before(z, heap[child], item):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = item


@part
def _before(z, a, b):
    return z[a] > z[b] or (z[a] == z[b] and a < b)


@part
def _noisy_best(z, best, ids, temperature, seed, choice, index):
    """argmax over ids of z / T + noise, lowest id on ties; ids ascending."""
    token, score = -1, -np.inf
    block = -1
    words = (np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0))
    for id in ids:
        if id // 4 != block:
            block = id // 4
            words = noise_bits(seed, choice, index, np.uint64(block))
        value = np.float64(z[id]) / temperature
        gap = score - value  # the noise must exceed this
        if gap >= 1.0 and np.float64(~words[id % 4] & np.uint64(0xFFFFFFFF)) >= math.ldexp(
            1.0, 32 - int(min(gap * 1.44, 40.0))
        ):
            continue  # -ln u >= 1 - u >= 2^-(1.44 gap) > e^-gap: too small without computing it
        value += gumbel(words[id % 4])
        if value > score:
            token, score = id, value
    return token
