"""A Hypothesis state machine over the cache room, with the symbolic engine as its judge.

Rules: admit, step (chunks of any cut, drafts right and wrong), finish, abort, park, unpark, spill,
load. After every rule: counts equal live holders; free + idle + held = all pages; every page that
the tree lists holds exactly its text; every answer is that of the text alone.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from symbolic import SymbolicEngine

from deodar.cache.geometry import Geometry
from deodar.cache.lease import Lease, Parked, Wait
from deodar.cache.manager import CacheManager
from deodar.cache.prefix import path_keys
from deodar.cache.resume import LayerPlan
from deodar.cache.snapshots import SnapshotStore

PLAN = LayerPlan(num_layers=6, window_tokens=4, writers=((1, 2), (3, 1)))
DRAFTS = 2
GEOMETRY = Geometry(
    page_tokens=4,
    entry_bytes=2,
    index_key_bytes=1,
    source_ratios=(2, 1),
    window_tokens=4,
    ring_tokens=4 + DRAFTS + 1,
    window_row_bytes=1,
    encoder_layers=3,
    ring_layers=6,
    unpaired_tokens=2 + DRAFTS + 1,
    unpaired_row_bytes=0,
    history_tokens=0,
)
PAGES, SLOTS, LONGEST_PROMPT, MOST_TOKENS = 12, 4, 34, 40


@dataclass
class Run:
    """One request: its text so far, and the rows it has run of those it was granted."""

    lease: Lease
    keys: list[int]
    logits: int
    rows: int = 0

    @property
    def decoding(self) -> bool:
        return self.lease.computed_tokens >= self.lease.prompt_tokens


class CacheMachine(RuleBasedStateMachine):
    manager_class = CacheManager
    plan = PLAN
    geometry = GEOMETRY
    pages = PAGES

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[Run] = []
        self.parked: list[tuple[Parked, Run]] = []
        self.copying: list[int] = []
        self.texts: list[list[int]] = []

    @initialize(device=st.sampled_from((0, 20, 45, 45)), host=st.sampled_from((0, 20)))
    def begin(self, device: int, host: int) -> None:
        self.store = SnapshotStore(
            full_bytes=10, encoder_bytes=5, device_budget_bytes=device, host_budget_bytes=host
        )
        self.manager = self.manager_class(
            self.plan,
            self.geometry,
            self.store,
            total_pages=self.pages,
            total_slots=SLOTS,
            stride_tokens=4,
        )
        self.engine = SymbolicEngine(self.plan, self.geometry, self.pages, SLOTS)

    # --- requests --------------------------------------------------------------------------------

    @rule(
        of=st.integers(0, 30),
        cut=st.integers(0, 30),
        tail=st.lists(st.integers(0, 2), min_size=1, max_size=20),
        salt=st.sampled_from(("a", "a", "a", "b")),
        early=st.sampled_from((None, None, None, 0, 5, 20)),
        mark=st.booleans(),
    )
    def admit(
        self, of: int, cut: int, tail: list[int], salt: str, early: int | None, mark: bool
    ) -> None:
        """A new text, or an old one up to `cut` with another tail."""
        base = self.texts[of % len(self.texts)] if self.texts else []
        keys = (base[:cut] + tail)[:LONGEST_PROMPT]
        logits = None if early is None else min(early, len(keys) - 1)
        got = self.manager.admit(
            tuple(keys),
            salt=salt,
            first_logit_row=logits,
            reuse_tokens=len(keys) if mark else None,
        )
        if not isinstance(got, Lease):
            self._wait(got)
            return
        assert got.resume.hit_tokens < len(keys), "one token must be left to compute"
        self.texts.append(keys)
        self._start(Run(got, keys, len(keys) - 1 if logits is None else logits))

    def _wait(self, wait: Wait | None) -> None:
        if wait is None:
            assert self.runs, "nothing may wait while the memory is empty"
            return
        if wait.reason == "prefix":
            assert any(r.lease.lease_id == wait.other and not r.decoding for r in self.runs)
            return
        assert self.store.place(wait.other) in ("host", "loading")
        if self.store.place(wait.other) == "loading" and wait.other not in self.copying:
            self.copying.append(wait.other)

    @precondition(lambda self: self.texts)
    @rule(back=st.sampled_from((2, 1, 2, 3)), tail=st.lists(st.integers(0, 2), max_size=4))
    def next_turn(self, back: int, tail: list[int]) -> None:
        """What clients do: the last text again, other from one of its last tokens on."""
        text = self.texts[-1]
        if not back < len(text) < 30:
            return
        keys = [*text[:-back], (text[-back] + 1) % 3, *tail]
        got = self.manager.admit(tuple(keys), salt="a")
        if isinstance(got, Lease):
            self._start(run := Run(got, keys, len(keys) - 1))
            self.texts.append(keys)
            while not run.decoding:
                self._prefill(run, 11)
        else:
            self._wait(got)

    def _start(self, run: Run) -> None:
        lease = run.lease
        if lease.restore is not None:
            assert self.store.on_device(lease.restore)
        self.engine.begin(lease, set(lease.pages[lease.shared_pages :]))
        self.runs.append(run)

    @precondition(lambda self: self.runs)
    @rule(
        which=st.integers(0, 3),
        budgets=st.lists(st.sampled_from((1, 2, 3, 4, 7, 40)), min_size=1, max_size=4),
        drafts=st.lists(st.integers(0, 2), max_size=DRAFTS),
    )
    def step(self, which: int, budgets: list[int], drafts: list[int]) -> None:
        run = self.runs[which % len(self.runs)]
        for budget in budgets:
            if run.decoding:
                self._decode(run, drafts)
            else:
                self._prefill(run, budget)

    def _prefill(self, run: Run, budget: int) -> None:
        lease, start = run.lease, run.lease.computed_tokens
        stop = min(start + budget, lease.next_cut(start))
        extension = self.manager.extend(lease, stop)
        assert extension is not None, "the prompt's pages were taken at admission"
        starts = lease.resume.chunk_starts(start, stop)
        out = self.engine.run(lease, run.keys[:stop], start, starts)
        run.rows += sum(stop - s for s in starts)
        if extension.save is not None:
            self.engine.save(extension.save)
        if stop < lease.prompt_tokens:
            self.manager.commit(lease, stop)
            return
        first = max(run.logits, starts[-1])
        wanted = [self.engine.names.of(lease.salt, run.keys, p) for p in range(first, stop)]
        assert out[first - stop :] == wanted, "the answer depends on the cache"
        assert run.rows == lease.resume.layer_rows
        run.keys.append(_next(run.keys))
        self.manager.commit(lease, stop, run.keys[-1:])

    def _decode(self, run: Run, drafts: list[int], commit: bool = True) -> None:
        lease, start = run.lease, run.lease.computed_tokens
        stop = start + 1 + len(drafts)
        if stop >= MOST_TOKENS:
            return
        extension = self.manager.extend(lease, stop)
        if extension is None:
            return
        self.engine.poison(set(extension.pages))
        tokens = run.keys + drafts
        out = self.engine.run(lease, tokens, start, (start,) * self.plan.num_layers)
        assert out[0] == self.engine.names.of(lease.salt, run.keys, start)
        if not commit:
            return
        new: list[int] = []
        for draft in [*drafts, -1]:
            new.append(_next(run.keys + new))
            if draft != new[-1]:
                break
        self.manager.commit(lease, start + len(new), new)
        run.keys += new

    @precondition(lambda self: self.runs)
    @rule(
        which=st.integers(0, 3),
        answer=st.integers(0, 3),
        drafts=st.lists(st.integers(0, 2), max_size=DRAFTS),
    )
    def finish(self, which: int, answer: int, drafts: list[int]) -> None:
        """The step after the last one was under way already when the stop was seen."""
        run = self.runs[which % len(self.runs)]
        while not run.decoding:
            self._prefill(run, 11)
        for _ in range(answer):
            self._decode(run, drafts)
        self._decode(run, [0] * DRAFTS, commit=False)
        self.runs.remove(run)
        self.texts.append(run.keys)
        save = self.manager.release(run.lease)
        if save is not None:
            self.engine.save(save)

    @precondition(lambda self: self.runs)
    @rule(which=st.integers(0, 3))
    def abort(self, which: int) -> None:
        run = self.runs.pop(which % len(self.runs))
        self.manager.release(run.lease, keep=False)

    @precondition(lambda self: self.runs)
    @rule(which=st.integers(0, 3))
    def park(self, which: int) -> None:
        run = self.runs.pop(which % len(self.runs))
        parked = self.manager.park(run.lease)
        if parked is not None:
            self.engine.save(parked.save)
            self.parked.append((parked, run))

    @precondition(lambda self: self.parked)
    @rule(which=st.integers(0, 3), give_up=st.booleans())
    def unpark(self, which: int, give_up: bool) -> None:
        parked, run = self.parked.pop(which % len(self.parked))
        if give_up:
            self.manager.drop_parked(parked)
            return
        try:
            got = self.manager.unpark(parked)
        except LookupError:
            return
        if isinstance(got, Lease):
            self._start(Run(got, run.keys, run.logits, run.rows))
            return
        self._wait(got)
        self.parked.append((parked, run))

    # --- tiers -----------------------------------------------------------------------------------

    @rule()
    def spill(self) -> None:
        snapshot_id = self.store.next_spill()
        if snapshot_id is not None:
            self.copying.append(snapshot_id)

    @precondition(lambda self: self.copying)
    @rule(which=st.integers(0, 5), ok=st.sampled_from((True, True, False)))
    def finish_copy(self, which: int, ok: bool) -> None:
        self.store.finish(self.copying.pop(which % len(self.copying)), ok=ok)

    # --- what must hold --------------------------------------------------------------------------

    @invariant()
    def counts_add_up(self) -> None:
        if not hasattr(self, "manager"):
            return
        manager = self.manager
        manager.check()
        pool = manager.pool
        assert pool.free_pages + pool.idle_pages + pool.held_pages == self.pages
        assert manager.slots.held_pages == len(self.runs)
        for snapshot_id in manager.take_dropped():
            self.engine.snapshots.pop(snapshot_id, None)

    @invariant()
    def listed_pages_hold_their_text(self) -> None:
        if not hasattr(self, "manager"):
            return
        for node in self.manager.tree.nodes():
            if isinstance(node.salt, int):
                continue
            text = path_keys(node)
            start = len(text) - len(node.run)
            assert start % self.geometry.page_tokens == 0
            for layer, ratio in self.engine.ratios.items():
                for entry in range(len(node.run) // ratio):
                    want = self.engine.names.of(node.salt, text, start + (entry + 1) * ratio - 1)
                    assert self.engine.pages[node.page][layer].get(entry) == want

    def teardown(self) -> None:
        if not hasattr(self, "manager") or sys.exc_info()[0] is not None:
            return  # what failed before says more than what is left behind
        while self.runs:
            self.manager.release(self.runs.pop().lease, keep=False)
        for parked, _ in self.parked:
            self.manager.drop_parked(parked)
        while self.copying:
            self.store.finish(self.copying.pop(), ok=True)
        assert (self.manager.pool.held_pages, self.manager.slots.held_pages) == (0, 0)
        self.manager.flush()
        assert self.manager.pool.free_pages == self.pages
        assert not self.store.ids()
        assert (self.store.device_bytes, self.store.host_bytes) == (0, 0)
        self.manager.check()


def _next(keys: list[int]) -> int:
    """The toy model: the next token is a function of the text."""
    return (sum(keys) + 2 * len(keys) + keys[-1]) % 3
