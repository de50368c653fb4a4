"""The compiled model: equal to the reference and its goldens, and a row's bits are its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from deodar.checkpoint.loader import Checkpoint
from deodar.checkpoint.tiny import make_tiny, prompt_ids
from deodar.model.cpu import CpuModel
from deodar.model.reference import Reference

CASES = json.loads(
    (Path(__file__).parents[1] / "model" / "tiny_kv_golden.json").read_text(encoding="utf-8")
)["cases"]
TOLERANCE = 2e-4


@pytest.fixture(scope="module")
def model(tiny: Checkpoint) -> CpuModel:
    return CpuModel(tiny, slots=66, context=256, max_rows=80, keep_taps=True, poison=True)


def forward(
    model: CpuModel, ids: Sequence[int], sizes: Sequence[int] = (64,), slot: int = 0
) -> np.ndarray:
    """Logits of all positions, run in pieces of `sizes`, the last one repeated."""
    out, start, queue = [], 0, list(sizes)
    while start < len(ids):
        part = ids[start : start + (queue.pop(0) if len(queue) > 1 else queue[0])]
        rows = range(len(part))
        positions = range(start, start + len(part))
        out.append(model.run_rows(part, [slot] * len(part), positions, rows))
        start += len(part)
    return np.concatenate(out)


def some_ids(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 512, count).tolist()


@pytest.mark.parametrize("case", CASES, ids=[f"{c['name']}-{len(c['ids'])}" for c in CASES])
@pytest.mark.parametrize("sizes", [(64,), (1,), (5, 13, 6), (7,), (2, 3)])
def test_kv_goldens(model: CpuModel, case: dict, sizes: Sequence[int]) -> None:
    logits = forward(model, case["ids"], sizes)
    assert logits.argmax(1).tolist() == case["argmax"]
    for position, expected in case["logits_first8"].items():
        np.testing.assert_allclose(logits[int(position), :8], expected, atol=TOLERANCE)


@pytest.mark.parametrize("case", CASES, ids=[f"{c['name']}-{len(c['ids'])}" for c in CASES])
def test_all_logits_and_taps_equal_the_reference(
    model: CpuModel, tiny: Checkpoint, case: dict
) -> None:
    torch.set_num_threads(1)
    reference = Reference(tiny, "kv")
    state = reference.new_state()
    expected = reference.forward(case["ids"], state)
    np.testing.assert_allclose(forward(model, case["ids"]), expected.logits.numpy(), atol=TOLERANCE)
    taps = model.taps(0, len(case["ids"]) - 1)
    np.testing.assert_allclose(taps, expected.taps.numpy()[-len(taps) :], atol=TOLERANCE)


@pytest.mark.parametrize("threads", [1, 3])
def test_taps_stay_while_a_step_runs_past_their_window(tiny: Checkpoint, threads: int) -> None:
    """A step of 64 rows over a window of 8; the threads write rows that are 8 and more apart."""
    ids = some_ids(11, 110)
    one_by_one = CpuModel(tiny, slots=1, context=128, max_rows=64, keep_taps=True)
    expected = []
    for position, token in enumerate(ids):
        one_by_one.run_rows([token], [0], [position], [])
        expected.append(one_by_one.taps(0, position))
    at_once = CpuModel(tiny, slots=1, context=128, max_rows=64, threads=threads, keep_taps=True)
    forward(at_once, ids, (46, 64))
    for position in range(len(ids) - 64, len(ids)):
        np.testing.assert_array_equal(at_once.taps(0, position), expected[position])


def test_hidden_memory_equals_the_reference(model: CpuModel, tiny: Checkpoint) -> None:
    ids = CASES[0]["ids"]
    reference = Reference(tiny, "kv")
    expected = reference.forward(ids, reference.new_state(), hide_memory=True).logits.numpy()
    rows = range(len(ids))
    got = model.run_rows(ids, [0] * len(ids), rows, rows, hide_memory=True)
    np.testing.assert_allclose(got[:16], expected[:16], atol=TOLERANCE)
    assert np.abs(got - forward(model, ids)).max() > 0.1


@pytest.mark.parametrize("sizes", [(1,), (2,), (3,), (7,), (8,), (9,), (5, 1, 31, 2), (33, 64)])
def test_any_chunking_has_the_same_bits(model: CpuModel, sizes: Sequence[int]) -> None:
    ids = some_ids(3, 150)
    np.testing.assert_array_equal(forward(model, ids, sizes, slot=1), forward(model, ids))


@pytest.mark.parametrize("mates", [1, 2, 3, 5, 16, 31, 64])
def test_a_row_has_the_same_bits_alone_and_among_others(model: CpuModel, mates: int) -> None:
    """The same token after the same prompt, in any place of a step with 1 to 64 other sequences."""
    ids, token = some_ids(4, 50), 77
    forward(model, ids, slot=0)
    alone = model.run_rows([token], [0], [50], [0])[0].copy()
    rng = np.random.default_rng(mates)
    lengths = rng.integers(1, 40, mates).tolist()
    for other, length in enumerate(lengths):
        forward(model, some_ids(100 + other, length), slot=2 + other)
    for place in {0, mates // 2, mates}:
        forward(model, ids, slot=1)
        tokens, slots, positions = (
            rng.integers(0, 512, mates).tolist(), list(range(2, 2 + mates)), list(lengths)
        )  # fmt: skip
        tokens.insert(place, token)
        slots.insert(place, 1)
        positions.insert(place, 50)
        together = model.run_rows(tokens, slots, positions, range(mates + 1))
        np.testing.assert_array_equal(together[place], alone)


def test_a_row_has_the_same_bits_beside_a_prompt(model: CpuModel) -> None:
    ids = some_ids(5, 20)
    forward(model, ids, slot=0)
    alone = model.run_rows([9], [0], [20], [0])[0].copy()
    forward(model, ids, slot=1)
    prompt = some_ids(6, 63)
    mixed = model.run_rows([9, *prompt], [1] + [2] * 63, [20, *range(63)], [0, 63])
    np.testing.assert_array_equal(mixed[0], alone)
    np.testing.assert_array_equal(mixed[1], forward(model, prompt, slot=3)[-1])


def test_a_used_slot_gives_the_bits_of_a_fresh_one(model: CpuModel) -> None:
    ids = some_ids(7, 60)
    first = forward(model, ids, slot=60)
    forward(model, some_ids(8, 200), slot=60)
    np.testing.assert_array_equal(forward(model, ids, (7,), slot=60), first)


def test_threads_change_no_bit(tiny: Checkpoint, model: CpuModel) -> None:
    two = CpuModel(tiny, slots=2, context=256, max_rows=128, threads=2)
    three = CpuModel(tiny, slots=2, context=256, max_rows=128, threads=3)
    ids = some_ids(9, 250)
    expected = forward(model, ids)
    for other in (two, three):
        np.testing.assert_array_equal(forward(other, ids, (128, 65, 64)), expected)


def test_real_head_sizes(tmp_path: Path) -> None:
    """Heads of 512, window 128, 32 index heads: bits under chunking, and the reference's start."""
    make_tiny(tmp_path, gpu_heads=True)
    checkpoint = Checkpoint.open(tmp_path)
    model = CpuModel(checkpoint, slots=2, context=256, max_rows=200)
    ids = list(prompt_ids(200))
    whole = forward(model, ids, (200,))
    np.testing.assert_array_equal(forward(model, ids, (1, 130, 3, 66), slot=1), whole)
    reference = Reference(checkpoint, "kv")
    expected = reference.forward(ids, reference.new_state()).logits.numpy()
    error = np.abs(whole - expected).max(axis=1)
    # Noise of 1e-6 flips a stored code here and there, and a flip stays in the memory.
    assert error[:8].max() < TOLERANCE
    assert np.median(error) < 0.3
