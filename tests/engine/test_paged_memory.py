"""Pages, starts and snapshots of the compiled model change no bit; whatever is void shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deodar.cache.geometry import Geometry
from deodar.cache.resume import EXACT, LayerPlan, Resume, Rules, Saved, choose_resume
from deodar.checkpoint.engram import TOKEN_MAP_FILE
from deodar.checkpoint.loader import Checkpoint
from deodar.checkpoint.tiny import make_tiny, tiny_config, tiny_tensors
from deodar.checkpoint.writer import write_checkpoint, write_json
from deodar.config import V4_1_FLASH, ModelConfig
from deodar.model.cpu import CpuModel
from deodar.model.cpu_memory import page_shapes, shape_bytes, slot_shapes
from deodar.types import Chunk, PageCopy, SamplingParams, SlotRestore, SlotSave, StepPlan

GREEDY = SamplingParams(temperature=0.0, seed=0)
CONTEXT = 512

SEEDLING = replace(
    tiny_config(),
    num_hidden_layers=8,
    sliding_window=128,
    compress_ratios=(0, 0, 2, 2, 2, 1, 1, 1, 0, 0, 0),
    kv_source_layer_ids=(2, 5),
    index_source_layer_ids=(2, 5, 7),
    candidate_source_layer_id=5,
    engram_layer_ids=(1,),
    engram_num_embeddings=(660,),
    dspark_target_layer_ids=(5, 6, 7),
)
"""Depth, window and sources of the shipped model, small in everything else."""


class Runner:
    """Runs prompts through a poisoned model by the starts of `choose_resume`."""

    def __init__(self, checkpoint: Checkpoint, *, context: int = CONTEXT, **options: bool) -> None:
        self.plan = LayerPlan.from_config(checkpoint.config)
        self.page = Geometry.from_config(checkpoint.config).page_tokens
        self.pages = 4 * -(-context // self.page)
        self.model = CpuModel(
            checkpoint, slots=4, context=context, max_rows=context, pages=self.pages, poison=True,
            **options,
        )  # fmt: skip
        self.whole_model = CpuModel(checkpoint, slots=1, context=context, max_rows=context)
        self.rng = np.random.default_rng(5)

    def whole(self, ids: list[int], prompt: int) -> np.ndarray:
        """Logits of the last prompt row and all later ones: one chunk, all rows, own pages."""
        rows = range(len(ids))
        return self.whole_model.run_rows(ids, [0] * len(ids), rows, rows[prompt - 1 :])

    def table(self, tokens: int) -> tuple[int, ...]:
        """Pages anywhere, in any order."""
        return tuple(self.rng.permutation(self.pages)[: -(-tokens // self.page)].tolist())

    def answer(
        self,
        ids: list[int],
        resume: Resume,
        *,
        slot: int,
        pages: tuple[int, ...],
        save: tuple[SlotSave, ...] = (),
        **orders: object,
    ) -> np.ndarray:
        """Logits as of `whole`: the prompt in random chunks by `resume`, then token by token."""
        start, prompt, out = resume.first_row, resume.prompt_tokens, []
        saves = {s.position: s for s in save}
        cuts = sorted({s.stop for s in resume.segments} | set(saves))
        before = self.model.layer_rows
        while start < len(ids):
            if start < prompt:
                stop = min(start + int(self.rng.integers(1, 40)), *[c for c in cuts if c > start])
            else:
                stop = start + 1
            chunk = Chunk(
                request_id="",
                slot=slot,
                kind="prefill",
                start=start,
                token_ids=tuple(ids[start:stop]),
                sampling=GREEDY if stop >= prompt else None,
                pages=pages,
                layer_starts=resume.chunk_starts(start, stop) if stop <= prompt else None,
                hit_tokens=resume.hit_tokens,
                save=saves.get(stop),
            )
            out.extend(self.model.run(StepPlan(step_no=0, chunks=(chunk,), **orders)))
            orders = {}
            if stop == prompt:
                assert self.model.layer_rows - before == resume.layer_rows
            start = stop
        return np.array(out)


@pytest.fixture(scope="module")
def runner(tiny: Checkpoint) -> Runner:
    return Runner(tiny)


def some_ids(seed: int, count: int, vocab: int = 512) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, count).tolist()


def cold(runner: Runner, prompt: int, **options: object) -> Resume:
    return choose_resume(runner.plan, prompt_tokens=prompt, **options)


@pytest.mark.parametrize("prompt", [1, 2, 7, 8, 9, 60, 113, 200])
@pytest.mark.parametrize("rules", [EXACT, Rules(trim="off")], ids=["trimmed", "all rows"])
def test_cold_prompts_anywhere_in_the_pool(runner: Runner, prompt: int, rules: Rules) -> None:
    ids = some_ids(prompt, prompt + 30)
    resume = cold(runner, prompt, rules=rules)
    got = runner.answer(
        ids, resume, slot=prompt % 4, pages=runner.table(len(ids)), reset_slots=(prompt % 4,)
    )
    np.testing.assert_array_equal(got, runner.whole(ids, prompt))


@pytest.mark.parametrize("seed", range(12))
def test_every_kind_of_start(runner: Runner, seed: int) -> None:
    """One text is computed and saved; others that share some of it start in every way there is."""
    check_starts(runner, seed, longest=260, vocab=512)


def check_starts(runner: Runner, seed: int, *, longest: int, vocab: int) -> None:
    """At a drawn hit: cold, halo, from full snapshots at N and N - 1, encoder, and a branch."""
    rng = np.random.default_rng(seed)
    window = runner.plan.window_tokens
    base = some_ids(1000 + seed, longest, vocab)
    prompt = int(rng.integers(longest // 2, longest - 20))
    full = int(rng.integers(2, prompt))
    saves = {"full": SlotSave(seed * 10, 0, "full", prompt)}
    resume = cold(runner, prompt, keep=(full,))
    saves["kept"] = SlotSave(seed * 10 + 1, 0, "full", full)
    reach = runner.plan.decoder_reach_tokens
    encoder = max(2, prompt - reach - int(rng.integers(0, window)))
    saves["encoder"] = SlotSave(seed * 10 + 2, 0, "encoder", encoder)
    pages = runner.table(longest)
    got = runner.answer(
        base, resume, slot=0, pages=pages, save=tuple(saves.values()), reset_slots=(0,)
    )
    np.testing.assert_array_equal(got, runner.whole(base, prompt))
    used = set()
    for hit, saved in (
        (int(rng.integers(1, prompt)), None),
        (prompt, Saved("full", prompt, seed * 10)),
        (prompt - 1, Saved("full", prompt - 1, seed * 10)),
        (full, Saved("full", full, seed * 10 + 1)),
        (min(full + window, prompt), Saved("full", full, seed * 10 + 1)),
        (full - 1, Saved("full", full - 1, seed * 10 + 1)),
        (prompt, Saved("encoder", encoder, seed * 10 + 2)),
    ):
        ids = base[:hit] + some_ids(2000 + seed, longest - hit - int(rng.integers(0, 9)), vocab)
        end = int(rng.integers(hit + 1, len(ids)))
        way = choose_resume(
            runner.plan, prompt_tokens=end, hit_tokens=hit, saved=[saved] if saved else ()
        )
        used.add((way.kind, saved is not None and saved.position == prompt - 1))
        own, orders = shared_pages(runner, pages, hit, len(ids))
        if way.snapshot_id is None:
            orders["reset_slots"] = (1,)
        else:
            orders["restores"] = (SlotRestore(1, way.snapshot_id, way.position),)
        got = runner.answer(ids, way, slot=1, pages=own, **orders)
        np.testing.assert_array_equal(got, runner.whole(ids, end))
    assert any(kind == "full" for kind, _ in used)


@pytest.mark.parametrize("seed", [20, 21])
def test_every_kind_of_start_at_the_seedlings_shape(tmp_path: Path, seed: int) -> None:
    write_checkpoint(tmp_path, SEEDLING, tiny_tensors(SEEDLING))
    compressed = SEEDLING.engram_compressed_vocab_size
    token_map = {"map": [i % compressed for i in range(SEEDLING.vocab_size)]}
    write_json(tmp_path / TOKEN_MAP_FILE, token_map)
    runner = Runner(Checkpoint.open(tmp_path), context=640)
    assert runner.page == 128
    check_starts(runner, seed, longest=620, vocab=512)


def shared_pages(
    runner: Runner, pages: tuple[int, ...], hit: int, tokens: int
) -> tuple[tuple[int, ...], dict[str, object]]:
    """A table that shares the whole pages of a hit and copies the one that it ends in."""
    whole = hit // runner.page
    free = [p for p in range(runner.pages) if p not in pages]
    own = pages[:whole] + tuple(free[: -(-tokens // runner.page) - whole])
    if hit % runner.page == 0:
        return own, {}
    return own, {"page_copies": (PageCopy(pages[whole], own[whole], hit % runner.page),)}


def test_the_kinds_are_all_met(tiny: Checkpoint) -> None:
    """The tiny plan really uses each kind at such positions: the test above has a point."""
    plan = LayerPlan.from_config(tiny.config)
    ways = [
        choose_resume(plan, prompt_tokens=260, hit_tokens=hit, saved=saved).kind
        for hit, saved in (
            (250, [Saved("full", 250)]), (250, [Saved("encoder", 225)]), (150, []), (0, []),
        )
    ]  # fmt: skip
    assert ways == ["full", "encoder", "halo", "cold"]


def test_a_wrong_start_shows(runner: Runner) -> None:
    """One row less in any layer that needs it is NaN or another answer, never a silent success."""
    ids = some_ids(1, 210)
    hit, prompt = 150, 200
    pages = runner.table(210)
    runner.answer(ids, cold(runner, prompt), slot=0, pages=pages, reset_slots=(0,))
    way = choose_resume(runner.plan, prompt_tokens=prompt, hit_tokens=hit)
    assert way.kind == "halo"
    expected = runner.whole(ids, prompt)
    starts = way.layer_starts
    for layer in range(1, len(starts) - 1):
        if starts[layer] + 1 > starts[layer + 1]:
            continue
        wrong = (*starts[:layer], starts[layer] + 1, *starts[layer + 1 :])
        segments = (replace(way.segments[0], layer_starts=wrong),)
        own, orders = shared_pages(runner, pages, hit, 210)
        got = runner.answer(
            ids, replace(way, segments=segments), slot=1, pages=own, reset_slots=(1,), **orders
        )
        assert not np.array_equal(got, expected), layer


def test_void_pages_and_slots_show(runner: Runner) -> None:
    ids = some_ids(2, 100)
    full = choose_resume(runner.plan, prompt_tokens=90, hit_tokens=80, saved=[Saved("full", 80, 7)])
    assert full.kind == "full"
    never_written = runner.answer(
        ids, cold(runner, 80), slot=0, pages=runner.table(100),
        save=(SlotSave(7, 0, "full", 80),), reset_slots=(0,),
    )  # fmt: skip
    assert not np.isnan(never_written).any()
    pages = runner.table(100)
    for page in pages:
        runner.model.memory.copy_page(PageCopy(page, page, 0))  # all void
    orders = {"restores": (SlotRestore(1, 7, 80),)}
    assert np.isnan(runner.answer(ids, full, slot=1, pages=pages, **orders)).all()
    own = runner.table(100)
    runner.answer(ids, cold(runner, 80), slot=0, pages=own, reset_slots=(0,))
    assert np.isnan(runner.answer(ids, full, slot=1, pages=own, reset_slots=(1,))).all()


def test_snapshots_go_to_the_host_and_come_back(runner: Runner) -> None:
    ids, memory = some_ids(3, 60), runner.model.memory
    pages = runner.table(60)
    save = (SlotSave(70, 0, "full", 50),)
    runner.answer(ids, cold(runner, 50), slot=0, pages=pages, save=save, reset_slots=(0,))
    kept = memory.device[70].rings.copy()
    runner.model.run(StepPlan(step_no=0, spills=(70,)))
    runner.model.run(StepPlan(step_no=0, unloads=(70,)))
    assert 70 not in memory.device
    runner.model.run(StepPlan(step_no=0, loads=(70,)))
    np.testing.assert_array_equal(memory.device[70].rings, kept)
    runner.model.run(StepPlan(step_no=0, dropped=(70,)))
    assert 70 not in memory.device
    assert 70 not in memory.host
    with pytest.raises(AssertionError, match="snapshot 70 is not on the device"):
        memory.restore(SlotRestore(1, 70, 50))


def test_a_snapshot_serves_its_position_and_the_one_before(runner: Runner) -> None:
    memory = runner.model.memory
    memory.save(SlotSave(71, 0, "full", 50))
    for position in (48, 51):
        with pytest.raises(AssertionError, match=f"cannot serve position {position}"):
            memory.restore(SlotRestore(1, 71, position))


def test_slots_park_and_go_on(runner: Runner) -> None:
    """Saved in the middle of a trimmed prompt and restored elsewhere."""
    ids = some_ids(4, 150)
    prompt, cut, pages = 140, 100, runner.table(150)
    resume = cold(runner, prompt)
    head = Chunk(
        request_id="", slot=2, kind="prefill", start=0, token_ids=tuple(ids[:cut]), pages=pages,
        layer_starts=resume.chunk_starts(0, cut), save=SlotSave(72, 2, "full", cut),
    )  # fmt: skip
    runner.model.run(StepPlan(step_no=0, chunks=(head,), reset_slots=(2,)))
    tail = replace(
        head, slot=3, start=cut, token_ids=tuple(ids[cut:prompt]), sampling=GREEDY, save=None,
        layer_starts=resume.chunk_starts(cut, prompt),
    )  # fmt: skip
    got = runner.model.run(
        StepPlan(step_no=1, chunks=(tail,), restores=(SlotRestore(3, 72, cut),), reset_slots=(2,))
    )
    np.testing.assert_array_equal(got, runner.whole(ids[:prompt], prompt))


def test_discarded_rows_leave_no_trace(runner: Runner) -> None:
    """Rows past the committed ones, as drafts are, then the right tokens at the same positions."""
    ids, pages = some_ids(5, 120), runner.table(130)
    expected = runner.whole(ids, 100)
    got = list(runner.answer(ids[:100], cold(runner, 100), slot=0, pages=pages, reset_slots=(0,)))
    room = runner.model.config.dspark_block_size + 1
    for start in range(100, 120):
        wrong = (ids[start], *some_ids(start, room - 1))
        chunk = Chunk(
            request_id="", slot=0, kind="decode", start=start, token_ids=wrong, pages=pages
        )
        runner.model.run(StepPlan(step_no=0, chunks=(chunk,)))
        right = replace(chunk, token_ids=(ids[start],), sampling=GREEDY)
        got.extend(runner.model.run(StepPlan(step_no=0, chunks=(right,))))
    np.testing.assert_array_equal(np.array(got), expected)


def test_trimmed_chunks_side_by_side_and_in_threads(tiny: Checkpoint, runner: Runner) -> None:
    model = CpuModel(tiny, slots=3, context=256, max_rows=512, threads=2, poison=True)
    prompts = [some_ids(s, n) for s, n in ((6, 170), (7, 1), (8, 122))]
    ways = [cold(runner, len(p)) for p in prompts]
    chunks = tuple(
        Chunk(
            request_id="", slot=slot, kind="prefill", start=0, token_ids=tuple(ids),
            layer_starts=way.layer_starts, sampling=GREEDY,
        )
        for slot, (ids, way) in enumerate(zip(prompts, ways, strict=True))
    )  # fmt: skip
    got = model.run(StepPlan(step_no=0, chunks=chunks))
    expected = [runner.whole(p, len(p))[0] for p in prompts]
    np.testing.assert_array_equal(got, expected)
    assert model.layer_rows == sum(w.layer_rows for w in ways)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_with_chunks_of_their_own(tiny: Checkpoint, runner: Runner, threads: int) -> None:
    """Decode steps and short prompts of many sequences: the bits of each one alone."""
    model = CpuModel(tiny, slots=12, context=128, max_rows=256, threads=threads, poison=True)
    texts = [some_ids(50 + slot, 30 + slot) for slot in range(12)]
    got: list[list[np.ndarray]] = [[] for _ in texts]
    for start, count in ((0, 20), *((20 + i, 1) for i in range(10))):
        chunks = tuple(
            Chunk(
                request_id="",
                slot=slot,
                kind="prefill",
                start=start,
                token_ids=tuple(ids[start : start + count]),
                sampling=None if slot == 3 and start == 25 else GREEDY,
            )
            for slot, ids in enumerate(texts)
        )
        assert model._parts(model._lay_out(chunks), 12 * count) is not None
        rows = iter(model.run(StepPlan(step_no=0, chunks=chunks)))
        for slot, chunk in enumerate(chunks):
            if chunk.sampling is not None:
                got[slot].append(next(rows))
    for slot, ids in enumerate(texts):
        expected = runner.whole(ids[:30], 20)
        if slot == 3:
            expected = np.delete(expected, 6, axis=0)
        np.testing.assert_array_equal(np.array(got[slot]), expected)


def test_bounded_windows_are_cut_and_deterministic(tiny: Checkpoint) -> None:
    """The bounded rules replay one window: no void is read, and the answer is another one."""
    runner = Runner(tiny, cut_windows=True)
    ids, rules = some_ids(9, 210), Rules(trim="bounded", replay="bounded")
    pages = runner.table(210)
    first = runner.answer(ids, cold(runner, 200, rules=rules), slot=0, pages=pages,
                          reset_slots=(0,))  # fmt: skip
    way = choose_resume(runner.plan, prompt_tokens=200, hit_tokens=160, rules=rules)
    own, orders = shared_pages(runner, pages, 160, 210)
    once = runner.answer(ids, way, slot=1, pages=own, reset_slots=(1,), **orders)
    again = runner.answer(ids, way, slot=2, pages=own, reset_slots=(2,), **orders)
    np.testing.assert_array_equal(once, again)
    exact = runner.whole(ids, 200)
    for got in (first, once):
        assert not np.isnan(got).any()
        assert not np.array_equal(got, exact)


@pytest.mark.parametrize("config", [V4_1_FLASH, tiny_config(), SEEDLING],
                         ids=["released", "tiny", "seedling"])  # fmt: skip
def test_the_pools_have_the_bytes_of_the_formula(config: ModelConfig) -> None:
    g = Geometry.from_config(config)
    assert shape_bytes(page_shapes(config, 1000)) == 1000 * g.page_bytes
    assert shape_bytes(slot_shapes(config, 64)) == 64 * g.slot_bytes


def test_allocated_bytes_equal_the_formula(tiny: Checkpoint, runner: Runner) -> None:
    g, memory = Geometry.from_config(tiny.config), runner.model.memory
    state = memory.state
    assert state.entries.nbytes + state.index_keys.nbytes == runner.pages * g.page_bytes
    slots = state.rings.nbytes + state.unpaired.nbytes + state.history.nbytes
    assert slots == 4 * g.slot_bytes
    memory.save(SlotSave(90, 0, "full", 40))
    memory.save(SlotSave(91, 0, "encoder", 40))
    assert memory.device[90].nbytes == g.full_ring_bytes + g.snapshot_extra_bytes
    assert memory.device[91].nbytes == g.encoder_ring_bytes + g.snapshot_extra_bytes


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pages": (0,)}, "has only 1 pages"),
        ({"layer_starts": (0,) * 8 + (3,)}, "has the layer starts"),
        ({"layer_starts": (5,) + (4,) * 9}, "has the layer starts"),
        ({"start": CONTEXT - 2}, f"exceeds the context of {CONTEXT}"),
        ({"token_ids": (1,) * (CONTEXT + 1)}, f"exceeds the {CONTEXT} rows of a step"),
    ],
)
def test_chunks_that_do_not_fit_are_refused(
    runner: Runner, change: dict[str, object], words: str
) -> None:
    chunk = Chunk(
        request_id="", slot=0, kind="prefill", start=0, token_ids=tuple(range(20)),
        pages=runner.table(20),
    )  # fmt: skip
    with pytest.raises(ValueError, match=words):
        runner.model.run(StepPlan(step_no=0, chunks=(replace(chunk, **change),)))


def test_a_checkpoint_of_another_shape(tmp_path: Path) -> None:
    """Window 128 and heads of 512: pages of 128 tokens, the released byte rows."""
    make_tiny(tmp_path, gpu_heads=True)
    runner = Runner(Checkpoint.open(tmp_path), context=400)
    ids = some_ids(10, 390)
    resume = cold(runner, 380)
    got = runner.answer(ids, resume, slot=0, pages=runner.table(390), reset_slots=(0,))
    np.testing.assert_array_equal(got, runner.whole(ids, 380))
