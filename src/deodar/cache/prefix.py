"""The prefix tree: which page holds the memory of which text.

Called by the cache manager only. One node is one page; the path from the root spells the text, a
root is one cache salt. Children are kept sorted, so the longest common prefix of a page that no
child matches whole is with a neighbour. Snapshots hang on the node of the last whole page before
their position, with the tokens between, so that texts that part later still share them. What must
hold: a node's page holds exactly the entries of its path; children are older than their parents in
the order of eviction, so the oldest idle page is always at a leaf.

    root(salt) -- [t0..t7] page 4 -- [t8..t15] page 9 -- [t16 t17] page 2     a partial page: a leaf
                        \\                     \\-- full snapshot at 19: (t16 t17 t18)
                         \\-- [t8 u9..u15] page 5
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from deodar.cache.pages import AccountingError, PagePool
from deodar.cache.resume import Saved
from deodar.types import SnapshotKind

Keys = tuple[int, ...]
Salt = str | int
"""A request's cache salt, or the id of a lease that keeps its text to itself."""


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """Positions start .. start + tokens - 1 of a prompt show one image, named by its content."""

    start: int
    tokens: int
    digest: bytes


def prefix_keys(token_ids: Sequence[int], images: Sequence[ImageSpan] = ()) -> Keys:
    """What the tree compares: token ids, and inside an image its identity and the place in it.

    All positions of all images carry one token id (model 9.5), which says nothing about content.
    """
    keys = list(token_ids)
    for image in images:
        name = int.from_bytes(image.digest, "big")
        for offset in range(image.tokens):
            keys[image.start + offset] = -1 - ((name << 32) | offset)
    return tuple(keys)


class Node:
    """One page of text below `parent`; a root has no page."""

    __slots__ = ("children", "order", "page", "parent", "run", "salt", "saved")

    def __init__(self, parent: Node | None, run: Keys, page: int, salt: Salt) -> None:
        self.parent = parent
        self.run = run
        self.page = page
        self.salt = salt
        self.children: dict[Keys, Node] = {}
        self.order: list[Keys] = []
        self.saved: dict[tuple[Keys, SnapshotKind], int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Where a text meets the tree: whole pages, then `partial_tokens` of one more page.

    diverges: the cached text goes on, with other tokens.
    """

    nodes: tuple[Node, ...]
    partial: Node | None
    partial_tokens: int
    hit_tokens: int
    diverges: bool

    def whole_pages(self, page_tokens: int) -> Match:
        """The same match without the page that it ends in."""
        return Match(
            nodes=self.nodes,
            partial=None,
            partial_tokens=0,
            hit_tokens=len(self.nodes) * page_tokens,
            diverges=False,
        )


class PrefixTree:
    """Text to pages and snapshots, with least-recently-used eviction of idle pages."""

    def __init__(
        self, pool: PagePool, page_tokens: int, on_snapshot_lost: Callable[[int], None]
    ) -> None:
        self._pool = pool
        self._page_tokens = page_tokens
        self._on_snapshot_lost = on_snapshot_lost
        self._roots: dict[Salt, Node] = {}
        self._recent: OrderedDict[Node, None] = OrderedDict()
        self._places: dict[int, list[tuple[Node, tuple[Keys, SnapshotKind]]]] = {}

    def root(self, salt: Salt) -> Node:
        """The root of a salt; it is made when the first page below it is published."""
        return self._roots.get(salt) or Node(None, (), -1, salt)

    def match(self, salt: Salt, keys: Keys, limit: int) -> Match:
        """The longest cached prefix of keys[:limit], to the token. Pins nothing: the manager holds
        the pages before anything else can happen."""
        node, nodes, start, page = self.root(salt), [], 0, self._page_tokens
        while start + page <= limit and (child := node.children.get(keys[start : start + page])):
            nodes.append(child)
            node, start = child, start + page
        rest = keys[start : min(start + page, limit)]
        best, common, longest = None, 0, 0
        for run in _neighbours(node, rest):
            shared = common_prefix(run, rest)
            if (shared, len(run)) > (common, longest) and shared:
                best, common, longest = node.children[run], shared, len(run)
        hit = start + common
        goes_on = longest > common if best else bool(node.children)
        return Match(
            nodes=tuple(nodes),
            partial=best,
            partial_tokens=common,
            hit_tokens=hit,
            diverges=goes_on and hit < limit,
        )

    def publish(self, parent: Node, run: Keys, page: int) -> Node:
        """List `page` as the text `run` below `parent`; returns the node that stands for it.

        That is an older node if the text is known already; the caller's page then stays its own. A
        run shorter than a page is a leaf, and gives way to a longer run that begins with it.
        """
        if not 0 < len(run) <= self._page_tokens:
            raise AccountingError(f"a run has {len(run)} tokens, a page {self._page_tokens}")
        if parent.parent is None:
            parent = self._roots.setdefault(parent.salt, parent)
        known = parent.children.get(run)
        if known is None and len(run) < self._page_tokens:
            longer = next((r for r in _neighbours(parent, run) if r[: len(run)] == run), None)
            known = parent.children[longer] if longer else None
        if known is None:
            self._pool.list_in_tree(page)
            known = Node(parent, run, page, parent.salt)
            self._recent[known] = None
            shorter = [r for r in parent.order if len(r) < len(run) and run[: len(r)] == r]
            parent.children[run] = known
            insort(parent.order, run)
            for old in shorter:
                self._remove(parent.children[old])
        self.touch(known)
        return known

    def touch(self, node: Node) -> None:
        """Make the path to `node` the most recent, ancestors last."""
        while node.parent is not None:
            self._recent.move_to_end(node)
            node = node.parent

    def evict(self, count: int) -> int:
        """Free up to `count` of the oldest idle pages; returns how many became free."""
        target = self._pool.free_pages + count
        while (missing := target - self._pool.free_pages) > 0:
            oldest = islice(filter(self._evictable, self._recent), missing)
            victims = list(oldest)
            if not victims:
                break
            for node in victims:
                self._remove(node)
        return count - max(0, missing)

    def _evictable(self, node: Node) -> bool:
        return not node.children and self._pool.is_idle(node.page)

    def forget(self, salt: Salt) -> None:
        """Drop the text of one salt; pages that leases hold stay theirs."""
        for node in [n for n in self._recent if n.salt == salt]:
            self._remove(node)

    # --- snapshots -------------------------------------------------------------------------------

    def attach(self, node: Node, keys: Keys, saved: Saved) -> bool:
        """Hang a snapshot of keys[:position] on its path; `node` ends at or below that path.

        A full one is found at its position and at the one before (design D5). False if there is a
        snapshot of its kind at all its places already, or the path does not reach it.
        """
        lowest = saved.position - (1 if saved.kind == "full" else 0)
        places: list[tuple[Node, tuple[Keys, SnapshotKind]]] = []
        for position in range(lowest, saved.position + 1):
            place = self._place(node, keys, position)
            if place is not None and (place[1], saved.kind) not in place[0].saved:
                place[0].saved[place[1], saved.kind] = saved.snapshot_id
                places.append((place[0], (place[1], saved.kind)))
        if places:
            self._places[saved.snapshot_id] = places
        return bool(places)

    def has_snapshot(self, node: Node, keys: Keys, kind: SnapshotKind, position: int) -> bool:
        place = self._place(node, keys, position)
        return place is not None and (place[1], kind) in place[0].saved

    def detach(self, snapshot_id: int) -> None:
        """Forget where a snapshot hangs."""
        for node, place in self._places.pop(snapshot_id, ()):
            del node.saved[place]

    def snapshots(self, match: Match, salt: Salt, keys: Keys) -> list[Saved]:
        """Every snapshot within a match, newest position first."""
        found = []
        path = (self.root(salt), *match.nodes)
        for depth in range(len(path) - 1, -1, -1):
            start = depth * self._page_tokens
            for (rest, kind), snapshot_id in path[depth].saved.items():
                position = start + len(rest)
                if position <= match.hit_tokens and keys[start:position] == rest:
                    found.append(Saved(kind, position, snapshot_id))
        return sorted(found, key=lambda s: (-s.position, s.kind, s.snapshot_id))

    def _place(self, node: Node, keys: Keys, position: int) -> tuple[Node, Keys] | None:
        """The node of the last whole page before `position`, and the tokens from there to it."""
        path = list(_ancestry(node))
        whole = position // self._page_tokens
        if position < 1 or whole >= len(path):
            return None
        holder, rest = path[whole], keys[whole * self._page_tokens : position]
        return (holder, rest) if not rest or self._covers(holder, rest) else None

    @staticmethod
    def _covers(node: Node, rest: Keys) -> bool:
        return any(run[: len(rest)] == rest for run in _neighbours(node, rest))

    def _remove(self, node: Node) -> None:
        """Take out a leaf with the snapshots that no text is left for."""
        parent = node.parent
        if parent is None or node.children:
            raise AccountingError("only leaves can be removed from the prefix tree")
        del self._recent[node], parent.children[node.run]
        parent.order.remove(node.run)
        self._pool.unlist(node.page)
        self._lose(node, list(node.saved))
        self._lose(parent, [p for p in parent.saved if p[0] and not self._covers(parent, p[0])])
        if parent.parent is None and not parent.children:
            self._roots.pop(parent.salt, None)

    def _lose(self, node: Node, places: list[tuple[Keys, SnapshotKind]]) -> None:
        for place in places:
            snapshot_id = node.saved.pop(place)
            left = self._places[snapshot_id]
            left.remove((node, place))
            if not left:
                del self._places[snapshot_id]
                self._on_snapshot_lost(snapshot_id)

    # --- looking from outside --------------------------------------------------------------------

    def nodes(self) -> Iterator[Node]:
        """Every node that lists a page, the next to be evicted first."""
        return iter(self._recent)

    def attached(self) -> set[int]:
        """Ids of all snapshots that some text leads to."""
        return set(self._places)


def path_keys(node: Node) -> Keys:
    """The text from the root to the end of `node`."""
    return tuple(key for step in _ancestry(node) for key in step.run)


def common_prefix(a: Keys, b: Keys) -> int:
    """Length of the longest common prefix, in time that grows with it and not with the texts."""
    low, step, end = 0, 64, min(len(a), len(b))
    while low < end and a[low : low + step] == b[low : low + step]:
        low, step = low + step, 2 * step
    if low >= end:
        return end
    high = min(low + step, end)
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low + int(a[low:high] == b[low:high]) * (high - low)


def _neighbours(node: Node, run: Keys) -> Iterator[Keys]:
    """The children whose runs sort next to `run`; the best common prefix is with one of them."""
    at = bisect_left(node.order, run)
    return iter(node.order[max(0, at - 1) : at + 1])


def _ancestry(node: Node) -> Iterator[Node]:
    """From the root down to `node`."""
    path = [node]
    while path[-1].parent is not None:
        path.append(path[-1].parent)
    return reversed(path)
