"""Seeded mistakes: the state machine must find every one, and passes on the real code.

Each mistake changes one rule of the room for the time of one test. None may survive its budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import machine
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from machine import GEOMETRY, CacheMachine
from symbolic import SymbolicEngine

import deodar.cache.manager as manager_module
import deodar.cache.resume as resume_module
from deodar.cache.lease import Lease
from deodar.cache.manager import CacheManager
from deodar.cache.pages import PagePool
from deodar.cache.prefix import Keys, Match, Node, PrefixTree, Salt
from deodar.cache.resume import Saved
from deodar.cache.snapshots import SnapshotStore
from deodar.types import SlotSave

BUDGET = settings(
    max_examples=250,
    stateful_step_count=30,
    deadline=None,
    database=None,
    derandomize=True,
    report_multiple_bugs=False,
    phases=(Phase.generate,),
)

Patch = pytest.MonkeyPatch
MISTAKES: dict[str, Callable[[Patch], None]] = {}


def mistake(seed: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MISTAKES[seed.__name__] = seed
    return seed


@mistake
def unpinned_match(patch: Patch) -> None:
    """Room is made before the matched pages are held."""
    real = CacheManager._grant

    def grant(self: CacheManager, match: Match, salt: Salt, keys: list[int], *rest):  # type: ignore[no-untyped-def]
        missing = len(keys) // GEOMETRY.page_tokens + 1 - self.pool.free_pages
        if missing > 0:
            self.tree.evict(missing)
        return real(self, match, salt, keys, *rest)

    patch.setattr(CacheManager, "_grant", grant)


@mistake
def index_not_cleared_on_eviction(patch: Patch) -> None:
    real = PrefixTree._remove

    def remove(self: PrefixTree, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        real(self, node)
        if parent.parent is None and parent.children:
            parent.children[node.run] = node
            parent.order = sorted(parent.children)

    patch.setattr(PrefixTree, "_remove", remove)


@mistake
def leak_on_failed_admission(patch: Patch) -> None:
    """The pages of the match stay held when there is no room for the rest."""
    real = CacheManager._allocate

    def allocate(self: CacheManager, count: int) -> list[int] | None:
        got = real(self, count)
        if got is None and (idle := [p for p in range(PAGES) if self.pool.is_idle(p)]):
            self.pool.hold(idle[0])
        return got

    patch.setattr(CacheManager, "_allocate", allocate)


@mistake
def whole_prompt_hit(patch: Patch) -> None:
    real = PrefixTree.match

    def match(self: PrefixTree, salt: Salt, keys: Keys, limit: int) -> Match:
        return real(self, salt, keys, len(keys))

    patch.setattr(PrefixTree, "match", match)


@mistake
def missed_release(patch: Patch) -> None:
    """The page a partial hit was copied from is never given back."""
    real = CacheManager._start

    def start(self: CacheManager, lease: Lease) -> None:
        copies, lease.copies = lease.copies, ()
        real(self, lease)
        lease.copies = copies

    patch.setattr(CacheManager, "_start", start)


@mistake
def freed_while_read(patch: Patch) -> None:
    """The page to copy from is let go at admission, before the copy."""
    real = CacheManager._grant

    def grant(self: CacheManager, *arguments):  # type: ignore[no-untyped-def]
        lease = real(self, *arguments)
        if lease is not None and lease.copies:
            self.pool.unhold(lease.copies[0].source)
            self.tree.evict(PAGES)
        return lease

    patch.setattr(CacheManager, "_grant", grant)


@mistake
def odd_pair_dropped(patch: Patch) -> None:
    """A snapshot does not keep the token whose partner has not come yet."""
    real = SymbolicEngine.save

    def save(self: SymbolicEngine, save: SlotSave) -> None:
        real(self, save)
        self.snapshots[save.snapshot_id].unpaired = {}

    patch.setattr(SymbolicEngine, "save", save)


@mistake
def halo_one_layer_short(patch: Patch) -> None:
    real = resume_module._first_rows

    def rows(*arguments):  # type: ignore[no-untyped-def]
        found = real(*arguments)
        return found and (found[1], found[2], *found[2:])

    patch.setattr(resume_module, "_first_rows", rows)


@mistake
def decoder_windows_missing_on_resume(patch: Patch) -> None:
    """An encoder snapshot is taken for a full one."""
    patch.setattr(Saved, "covers", lambda self, plan, layer: True)


@mistake
def ring_one_row_short(patch: Patch) -> None:
    patch.setattr(CacheMachine, "geometry", replace(GEOMETRY, ring_tokens=GEOMETRY.ring_tokens - 1))


@mistake
def unpaired_rows_short(patch: Patch) -> None:
    short = replace(GEOMETRY, unpaired_tokens=GEOMETRY.unpaired_tokens - 1)
    patch.setattr(CacheMachine, "geometry", short)


@mistake
def salt_ignored(patch: Patch) -> None:
    real = PrefixTree.root
    patch.setattr(
        PrefixTree,
        "root",
        lambda self, salt: (
            real(self, "" if salt in "ab" else salt) if isinstance(salt, str) else real(self, salt)
        ),
    )


@mistake
def draft_row_committed(patch: Patch) -> None:
    """One token more than was computed is published."""
    real = CacheManager._publish

    def publish(self: CacheManager, lease: Lease, tokens: int, *, partial: bool) -> None:
        real(self, lease, min(tokens + 1, len(lease.keys)), partial=partial)

    patch.setattr(CacheManager, "_publish", publish)


@mistake
def partial_page_copied_one_token_short(patch: Patch) -> None:
    real = manager_module.PageCopy
    patch.setattr(manager_module, "PageCopy", lambda s, t, n: real(s, t, max(1, n - 1)))


@mistake
def snapshot_hung_two_tokens_early(patch: Patch) -> None:
    real = PrefixTree.attach

    def attach(self: PrefixTree, node: Node, keys: Keys, saved: Saved) -> bool:
        return real(self, node, keys, replace(saved, position=max(1, saved.position - 2)))

    patch.setattr(PrefixTree, "attach", attach)


@mistake
def pinned_snapshot_dropped(patch: Patch) -> None:
    def pin(self: SnapshotStore, snapshot_id: int) -> None:
        self._entries.move_to_end(snapshot_id, last=False)

    def unpin(self: SnapshotStore, snapshot_id: int) -> None:
        if snapshot_id in self._entries:
            self._entries[snapshot_id].pins = 0

    patch.setattr(SnapshotStore, "pin", pin)
    patch.setattr(SnapshotStore, "unpin", unpin)


@mistake
def parent_evicted_before_child(patch: Patch) -> None:
    """The path is touched from the root down, so the oldest page may have children."""

    def touch(self: PrefixTree, node: Node) -> None:
        path = []
        while node.parent is not None:
            path.append(node)
            node = node.parent
        for step in reversed(path):
            self._recent.move_to_end(step)

    patch.setattr(PrefixTree, "touch", touch)


@mistake
def page_freed_with_a_listing(patch: Patch) -> None:
    """The last lease frees the page although the tree lists it."""

    def unhold(self: PagePool, page: int) -> None:
        self._leases[page] -= 1
        if self._leases[page] == 0:
            self._free.append(page)

    patch.setattr(PagePool, "unhold", unhold)


PAGES = machine.PAGES


@pytest.mark.parametrize("name", MISTAKES)
def test_every_seeded_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MISTAKES[name](monkeypatch)
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - any failure of the machine counts
        run_state_machine_as_test(CacheMachine, settings=BUDGET)
    assert not isinstance(caught.value, (KeyboardInterrupt, SystemExit))


def test_the_real_code_passes_the_same_budget() -> None:
    run_state_machine_as_test(CacheMachine, settings=BUDGET)
