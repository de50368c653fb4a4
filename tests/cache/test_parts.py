"""Pages, prefix tree and snapshot store, each alone: refusals and edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deodar.cache.pages import AccountingError, PagePool
from deodar.cache.prefix import Node, PrefixTree, common_prefix, path_keys
from deodar.cache.resume import Saved
from deodar.cache.snapshots import SnapshotStore
from deodar.errors import ConfigError


def tree_of(pages: int = 16) -> tuple[PagePool, PrefixTree, list[int]]:
    lost: list[int] = []
    pool = PagePool(pages)
    return pool, PrefixTree(pool, 4, lost.append), lost


def publish(pool: PagePool, tree: PrefixTree, keys: tuple[int, ...], salt: str = "") -> Node:
    node = tree.root(salt)
    for start in range(0, len(keys), 4):
        pages = pool.allocate(1)
        assert pages is not None
        child = tree.publish(node, keys[start : start + 4], pages[0])
        pool.unhold(pages[0])
        node = child
    return node


@given(st.lists(st.integers(0, 1), max_size=300), st.integers(0, 300), st.integers(0, 3))
def test_common_prefix_is_the_plain_loop(keys: list[int], at: int, kind: int) -> None:
    other = list(keys)
    if kind and at < len(other):
        other[at] += kind
    plain = 0
    while plain < len(keys) and keys[plain] == other[plain]:
        plain += 1
    assert common_prefix(tuple(keys), tuple(other)) == plain
    assert common_prefix(tuple(keys), tuple(keys[:at])) == min(at, len(keys))


def test_a_pool_without_pages_is_refused() -> None:
    with pytest.raises(ConfigError, match="has 0 pages"):
        PagePool(0)


def test_free_pages_cannot_be_used() -> None:
    pool = PagePool(2)
    for act in (pool.hold, pool.unhold, pool.list_in_tree, pool.unlist):
        with pytest.raises(AccountingError, match="page 1"):
            act(1)


def test_a_page_goes_from_held_to_idle_to_free() -> None:
    pool = PagePool(3)
    pages = pool.allocate(3)
    assert pages is not None
    assert pool.allocate(1) is None
    pool.list_in_tree(pages[0])
    for page in pages:
        pool.unhold(page)
    assert (pool.free_pages, pool.idle_pages, pool.held_pages) == (2, 1, 0)
    pool.unlist(pages[0])
    assert (pool.free_pages, pool.idle_pages) == (3, 0)
    pool.check()


def test_matches_go_to_the_token_and_say_whether_the_text_diverges() -> None:
    pool, tree, _ = tree_of()
    publish(pool, tree, (1, 2, 3, 4, 5, 6, 7, 8, 9))
    publish(pool, tree, (1, 2, 3, 4, 5, 6, 7, 0))
    cases = [
        ((1, 2, 3, 4, 5, 6, 7, 8, 9, 9), 9, False),  # goes on where the text ends
        ((1, 2, 3, 4, 5, 6, 7, 8, 1, 1), 8, True),
        ((1, 2, 3, 4, 5, 6, 7, 7, 7, 7), 7, True),
        ((1, 2, 9, 9), 2, True),
        ((9, 9), 0, True),
        ((1, 2, 3, 4, 5, 6), 5, False),  # one token is left to compute
    ]
    for keys, hit, diverges in cases:
        match = tree.match("", keys, len(keys) - 1)
        assert (match.hit_tokens, match.diverges) == (hit, diverges), keys
        assert len(match.nodes) == hit // 4
        assert match.partial_tokens == hit % 4
    assert tree.match("other", (1, 2, 3, 4, 5), 4).hit_tokens == 0


def test_a_partial_page_gives_way_to_a_longer_one_and_not_the_reverse() -> None:
    pool, tree, _ = tree_of()
    publish(pool, tree, (1, 2, 3, 4, 5, 6))
    longer = publish(pool, tree, (1, 2, 3, 4, 5, 6, 7, 8))
    assert publish(pool, tree, (1, 2, 3, 4, 5)) is longer
    assert sorted(path_keys(node) for node in tree.nodes()) == [
        (1, 2, 3, 4),
        (1, 2, 3, 4, 5, 6, 7, 8),
    ]
    assert pool.idle_pages == 2
    pool.check()


def test_eviction_takes_the_oldest_leaf_first() -> None:
    pool, tree, _ = tree_of()
    publish(pool, tree, (1, 1, 1, 1, 2, 2, 2, 2))
    publish(pool, tree, (3, 3, 3, 3))
    tree.touch(tree.match("", (1, 1, 1, 1, 0), 4).nodes[0])
    assert tree.evict(1) == 1
    assert tree.match("", (1, 1, 1, 1, 2, 2, 2, 2, 0), 8).hit_tokens == 4
    assert tree.evict(1) == 1
    assert tree.match("", (3, 3, 3, 3, 0), 4).hit_tokens == 0
    assert tree.evict(5) == 1
    assert pool.free_pages == 16


def test_a_full_snapshot_serves_two_positions_and_goes_with_its_text() -> None:
    pool, tree, lost = tree_of()
    keys = (1, 2, 3, 4, 5, 6, 7, 8)
    node = publish(pool, tree, keys)
    assert tree.attach(node, keys, Saved("full", 8, 7))
    assert tree.attach(node, keys, Saved("encoder", 4, 9))
    assert not tree.attach(node, keys, Saved("encoder", 4, 10))
    found = tree.snapshots(tree.match("", (*keys, 0), 8), "", (*keys, 0))
    assert [(s.position, s.snapshot_id) for s in found] == [(8, 7), (7, 7), (4, 9)]
    other = (*keys[:7], 0, 0)
    found = tree.snapshots(tree.match("", other, 8), "", other)
    assert [(s.position, s.snapshot_id) for s in found] == [(7, 7), (4, 9)]
    tree.evict(1)
    assert lost == [7]
    tree.evict(1)
    assert lost == [7, 9]
    assert not tree.attached()


def store(device: int, host: int = 0) -> SnapshotStore:
    return SnapshotStore(
        full_bytes=10, encoder_bytes=5, device_budget_bytes=device, host_budget_bytes=host
    )


def test_the_least_recently_used_snapshot_goes_first_and_pinned_ones_stay() -> None:
    snapshots = store(20)
    dropped: list[int] = []
    snapshots.on_dropped = dropped.append
    first, second = snapshots.add("full"), snapshots.add("full")
    assert (first, second) == (0, 1)
    assert snapshots.add("encoder") is None
    snapshots.unpin(0)
    snapshots.unpin(1)
    snapshots.pin(0)
    snapshots.unpin(0)
    assert snapshots.add("encoder") == 2
    assert dropped == [1]
    snapshots.check()


def test_a_spilled_snapshot_leaves_the_device_when_room_is_wanted() -> None:
    snapshots = store(10, 10)
    first = snapshots.add("full")
    assert first is not None
    snapshots.unpin(first)
    assert snapshots.next_spill() == first
    assert snapshots.add("full") is None  # its bytes are being read
    snapshots.finish(first, ok=True)
    second = snapshots.add("full")
    assert snapshots.place(first) == "host"
    assert not snapshots.start_load(first)
    assert second is not None
    snapshots.unpin(second)
    assert snapshots.start_load(first)
    assert (snapshots.place(first), second in snapshots.ids()) == ("loading", False)
    snapshots.check()


def test_a_failed_spill_keeps_the_device_copy() -> None:
    snapshots = store(10, 10)
    first = snapshots.add("full")
    assert first is not None
    snapshots.unpin(first)
    snapshots.next_spill()
    snapshots.finish(first, ok=False)
    assert (snapshots.place(first), snapshots.host_bytes) == ("device", 0)
    with pytest.raises(AccountingError, match="no copy is under way"):
        snapshots.finish(first, ok=True)


def test_a_discarded_snapshot_in_use_goes_when_its_reader_is_done() -> None:
    snapshots = store(10)
    first = snapshots.add("full")
    assert first is not None
    snapshots.discard(first)
    assert snapshots.device_bytes == 10
    assert first not in snapshots.ids()
    snapshots.unpin(first)
    assert snapshots.device_bytes == 0
    with pytest.raises(KeyError):
        snapshots.unpin(first)


def test_nothing_spills_without_host_room() -> None:
    snapshots = store(10)
    first = snapshots.add("full")
    assert first is not None
    snapshots.unpin(first)
    assert snapshots.next_spill() is None
    assert snapshots.place(first) == "device"


def test_the_host_gives_up_its_oldest_lone_copy_for_a_new_spill() -> None:
    snapshots = store(20, 10)
    dropped: list[int] = []
    snapshots.on_dropped = dropped.append
    for expected in (0, 1):
        assert snapshots.add("full") == expected
        snapshots.unpin(expected)
    assert snapshots.next_spill() == 0
    snapshots.finish(0, ok=True)
    assert snapshots.next_spill() is None  # the host's copy is of one that the device has too
    assert snapshots.add("full") == 2
    assert snapshots.place(0) == "host"
    assert snapshots.next_spill() == 1
    assert dropped == [0]
    assert snapshots.host_bytes == 10
    snapshots.check()


def test_the_best_neighbour_may_sort_before_or_after() -> None:
    pool, tree, _ = tree_of()
    publish(pool, tree, (5, 6, 7, 8))
    publish(pool, tree, (5, 9, 9, 9))
    assert tree.match("", (5, 6, 7, 9, 0), 4).partial_tokens == 3
    assert tree.match("", (5, 9, 0, 0, 0), 4).partial_tokens == 2
    assert tree.match("", (5, 7, 0, 0, 0), 4).partial_tokens == 1
