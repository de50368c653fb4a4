"""The gate with a small budget, and the proof that it sees: every seeded fault is caught.

A fault is seeded by a patch of the real code; the same schedules that pass without it must then
show a difference, or trip over the accounting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gate import TINY, Gate

import deodar.cache.resume as resume_module
from deodar.cache.geometry import Geometry
from deodar.cache.lease import Lease
from deodar.cache.manager import CacheManager
from deodar.cache.pages import AccountingError
from deodar.cache.prefix import Match, Salt
from deodar.cache.resume import Saved
from deodar.config import ModelConfig
from deodar.model.cpu_memory import Memory
from deodar.types import SlotRestore, SlotSave

BUDGET = 12
FIRST, MOST = 0, 80  # seeds that a fault may hide from before it counts as missed

Patch = pytest.MonkeyPatch
FAULTS: dict[str, Callable[[Patch], None]] = {}


def fault(seed: Callable[[Patch], None]) -> Callable[[Patch], None]:
    FAULTS[seed.__name__] = seed
    return seed


@pytest.fixture(scope="module")
def gate(tiny_path: Path) -> Gate:
    return Gate(tiny_path, TINY)


def test_every_answer_is_the_one_that_the_request_gets_alone(gate: Gate) -> None:
    counts: dict[str, int] = {}
    for seed in range(BUDGET):
        play = gate.play(seed)
        assert play.differences == []
        for name, count in play.counts.items():
            counts[name] = counts.get(name, 0) + count
    for name in ("cached_tokens", "replayed_tokens", "preemptions", "recomputed_tokens", "abort"):
        assert counts[name] > 0, f"the schedules never had {name}"


@pytest.mark.parametrize("seed", [20976])
def test_schedules_that_once_differed(gate: Gate, seed: int) -> None:
    """20976: parked while forced rows, more than a ring has room for, were in flight."""
    assert gate.play(seed).differences == []


@pytest.mark.long
def test_the_gate_over_many_schedules(gate: Gate) -> None:
    assert [d for seed in range(500, 800) for d in gate.play(seed).differences] == []


def test_bounded_replay_fails(tiny_path: Path) -> None:
    gate = Gate(tiny_path, TINY, bounded=True)
    assert any(gate.play(seed, replay="bounded").differences for seed in seeds())


@fault
def halo_one_layer_short(patch: Patch) -> None:
    real = resume_module._first_rows

    def rows(*arguments):  # type: ignore[no-untyped-def]
        found = real(*arguments)
        return found and (found[1], found[2], *found[2:])

    patch.setattr(resume_module, "_first_rows", rows)


@fault
def decoder_windows_missing_on_resume(patch: Patch) -> None:
    patch.setattr(Saved, "covers", lambda self, plan, layer: True)


@fault
def odd_pair_dropped(patch: Patch) -> None:
    real = Memory.save

    def save(self: Memory, order: SlotSave) -> None:
        real(self, order)
        kept = self.device[order.snapshot_id]
        self.device[order.snapshot_id] = replace(kept, unpaired=np.zeros_like(kept.unpaired))

    patch.setattr(Memory, "save", save)


@fault
def ring_one_row_short(patch: Patch) -> None:
    """One row less than a window in every ring."""
    real = Geometry.from_config.__func__  # type: ignore[attr-defined]

    def from_config(cls: type[Geometry], config: ModelConfig) -> Geometry:
        geometry = real(cls, config)
        return replace(geometry, ring_tokens=geometry.window_tokens - 1)

    patch.setattr(Geometry, "from_config", classmethod(from_config))


@fault
def unpinned_match(patch: Patch) -> None:
    """Room is made before the matched pages are held."""
    real = CacheManager._grant

    def grant(self: CacheManager, match: Match, salt: Salt, keys: list[int], *rest):  # type: ignore[no-untyped-def]
        self.tree.evict(self.pages_for(len(keys)) - self.pool.free_pages)
        return real(self, match, salt, keys, *rest)

    patch.setattr(CacheManager, "_grant", grant)


@fault
def page_freed_while_read(patch: Patch) -> None:
    """A page that a lease shares is let go at admission."""
    real = CacheManager._grant

    def grant(self: CacheManager, *arguments) -> Lease | None:  # type: ignore[no-untyped-def]
        lease = real(self, *arguments)
        if lease is not None and lease.shared_pages:
            self.pool.unhold(lease.pages[0])
            self.tree.evict(self.pool.total_pages)
        return lease

    patch.setattr(CacheManager, "_grant", grant)


@fault
def stale_ngram_history(patch: Patch) -> None:
    """The history of the slot's last owner stays when a snapshot is restored."""
    real = Memory.restore

    def restore(self: Memory, order: SlotRestore) -> None:
        stale = self.state.history[order.slot].copy()
        real(self, order)
        self.state.history[order.slot] = stale

    patch.setattr(Memory, "restore", restore)


@fault
def draft_row_committed(patch: Patch) -> None:
    """One token more than was computed is published."""
    real = CacheManager._publish

    def publish(self: CacheManager, lease: Lease, tokens: int, *, partial: bool) -> None:
        real(self, lease, min(tokens + 1, len(lease.keys)), partial=partial)

    patch.setattr(CacheManager, "_publish", publish)


@fault
def page_copied_too_short(patch: Patch) -> None:
    """The last partial page is copied two tokens short."""
    real = CacheManager._grant

    def grant(self: CacheManager, *arguments) -> Lease | None:  # type: ignore[no-untyped-def]
        lease = real(self, *arguments)
        if lease is not None:
            lease.copies = tuple(replace(c, tokens=max(1, c.tokens - 2)) for c in lease.copies)
        return lease

    patch.setattr(CacheManager, "_grant", grant)


@pytest.mark.parametrize("name", FAULTS)
def test_the_gate_catches(name: str, tiny_path: Path, monkeypatch: Patch) -> None:
    FAULTS[name](monkeypatch)
    gate = Gate(tiny_path, TINY)
    assert any(caught(gate, seed) for seed in seeds()), f"{name} was not seen"


def seeds() -> Iterator[int]:
    return iter(range(FIRST, MOST))


def caught(gate: Gate, seed: int) -> bool:
    try:
        return bool(gate.play(seed).differences)
    except (AccountingError, AssertionError, ValueError):
        return True
