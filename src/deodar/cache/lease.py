"""What the cache manager hands out: leases, and the orders that a plan carries to the engine.

Made by the manager only; read by the scheduler. Values, but for `Lease`, which the manager changes.
What must hold: an order is carried out before anything planned later touches its slot or pages.

    0 ........ position ........ hit ................ prompt ........ computed
    |  never run  |  replayed:     |  run, written,     |  generated     |
    |  (cached)   |  rings only    |  published         |  published up to the reuse mark
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from deodar.cache.prefix import Keys, Node, Salt
from deodar.cache.resume import Resume
from deodar.types import PageCopy, SlotSave, SnapshotKind


@dataclass(frozen=True, slots=True)
class Extension:
    """New pages at the end of a page table, and the snapshot to save after the chunk."""

    pages: tuple[int, ...]
    save: SlotSave | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now: lease `other` is computing this prefix, or snapshot `other` is on its way back."""

    reason: Literal["prefix", "snapshot"]
    other: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """A preempted request: its saved slot, and its text under a root of its own."""

    own: int
    save: SlotSave
    covered_tokens: int
    keys: Keys
    salt: Salt
    resume: Resume
    reuse_tokens: int


@dataclass(slots=True, kw_only=True, eq=False)
class Lease:
    """What one request holds. Readers: the scheduler; the only writer is the manager.

    keys: the prompt's and those generated so far. pages: page table, covering at least
    `computed_tokens`; the first `shared_pages` of them came from the cache, the others are new.
    copies: to be run with the first chunk. restore: the snapshot that fills the slot first (None: a
    cleared slot). computed_tokens: tokens that need not be fed any more. reuse_tokens: the mark up
    to which its text may serve others.
    """

    lease_id: int
    salt: Salt
    prompt: Keys
    keys: list[int]
    slot: int
    pages: list[int]
    shared_pages: int
    resume: Resume
    cuts: dict[int, SnapshotKind]
    copies: tuple[PageCopy, ...]
    restore: int | None
    computed_tokens: int
    reuse_tokens: int
    node: Node
    listed_pages: int
    borrowed: list[int] = field(default_factory=list)
    saves: list[SlotSave] = field(default_factory=list)
    started: bool = False
    released: bool = False

    @property
    def prompt_tokens(self) -> int:
        return self.resume.prompt_tokens

    @property
    def cached_tokens(self) -> int:
        """Tokens of the hit that no layer runs again."""
        return self.resume.hit_tokens - self.resume.replayed_tokens

    def next_cut(self, start: int) -> int:
        """Where a chunk that begins at `start` must end at the latest."""
        return min((p for p in self.cuts if p > start), default=self.prompt_tokens)
