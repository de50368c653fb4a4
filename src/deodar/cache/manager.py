"""The cache as the scheduler sees it: admit, extend, commit, release (and park, a kind of release).

Called by the scheduler only, from one thread. Pure accounting: what the engine must copy comes back
as values, which the plan carries in this order: saves, spills and loads, page copies and restores,
then the chunks. What must hold: no page is returned that is not held; every lease is released
exactly once; whatever the tree lists is exact for its text.
"""

from __future__ import annotations

from collections.abc import Sequence

from deodar.cache.geometry import Geometry
from deodar.cache.lease import Extension, Lease, Parked, Wait
from deodar.cache.pages import AccountingError, PagePool
from deodar.cache.prefix import Keys, Match, PrefixTree, Salt, common_prefix
from deodar.cache.resume import (
    EXACT,
    LayerPlan,
    Resume,
    Rules,
    Saved,
    choose_resume,
    encoder_exact_from,
)
from deodar.cache.snapshots import SnapshotStore
from deodar.types import PageCopy, SlotSave, SnapshotKind

_NOTHING_NEW = Extension((), None)


class CacheManager:
    """Pages, slots, prefix tree and snapshots of one rank."""

    def __init__(
        self,
        plan: LayerPlan,
        geometry: Geometry,
        snapshots: SnapshotStore,
        *,
        total_pages: int,
        total_slots: int,
        stride_tokens: int = 8192,
        rules: Rules = EXACT,
    ) -> None:
        self.pool = PagePool(total_pages)
        self.slots = PagePool(total_slots)
        self.tree = PrefixTree(self.pool, geometry.page_tokens, snapshots.discard)
        self.snapshots = snapshots
        self._plan, self._geometry, self.rules = plan, geometry, rules
        self._stride_tokens = stride_tokens
        self._leases: dict[int, Lease] = {}
        self._parked: dict[int, Parked] = {}
        self._next_id = 0
        self._dropped: list[int] = []
        self._withheld: list[int] = []
        self._withhold_pages = 0
        snapshots.on_dropped = self._on_dropped

    @property
    def page_tokens(self) -> int:
        return self._geometry.page_tokens

    @property
    def usable_pages(self) -> int:
        """Pages that leases may use."""
        return self.pool.total_pages - self._withhold_pages

    @property
    def held_pages(self) -> int:
        """Pages that leases hold; those kept out of use by `limit_pages` are not among them."""
        return self.pool.held_pages - len(self._withheld)

    def pages_for(self, tokens: int) -> int:
        return self._geometry.pages_for(tokens)

    # --- the verbs -------------------------------------------------------------------------------

    def admit(
        self,
        keys: Keys,
        *,
        salt: Salt = "",
        reserve_tokens: int = 0,
        first_logit_row: int | None = None,
        reuse_tokens: int | None = None,
    ) -> Lease | Wait | None:
        """Match, pin and allocate: a lease, or a reason to wait, or None where room is missing.

        keys: of the whole prompt (`prefix_keys`). reserve_tokens: pages for as many tokens are
        taken at once, if more than the prompt. reuse_tokens: default no mark. Changes nothing
        unless it returns a lease (but a snapshot may start to load).
        """
        mark = len(keys) + (1 << 62) if reuse_tokens is None else reuse_tokens
        match = self.tree.match(salt, keys, len(keys) - 1)
        while True:
            resume = self._resume(match, salt, keys, first_logit_row)
            other = self._worth_waiting_for(resume, salt, keys, first_logit_row)
            if other is not None:
                return Wait("prefix", other)
            if (on_the_way := self._fetch(resume.snapshot_id)) is not None:
                return on_the_way
            lease = self._grant(match, salt, list(keys), resume, reserve_tokens, mark)
            if lease is not None or match.partial is None:
                return lease
            # The page to copy from needs room beside the copy. A prompt that just fits must not
            # fail for that.
            match = match.whole_pages(self._geometry.page_tokens)

    def extend(self, lease: Lease, stop_tokens: int) -> Extension | None:
        """Pages up to `stop_tokens` for the next chunk, and room for the snapshot at its end.

        None and no change if pages are missing. A snapshot that finds no room is left out.
        """
        self._must_be_live(lease)
        missing = self._geometry.pages_for(stop_tokens) - len(lease.pages)
        if missing <= 0 and stop_tokens not in lease.cuts:
            return _NOTHING_NEW
        pages = self._allocate(max(0, missing))
        if pages is None:
            return None
        lease.pages.extend(pages)
        save = next((s for s in lease.saves if s.position == stop_tokens), None)
        kind = lease.cuts.get(stop_tokens)
        if save is None and kind is not None and stop_tokens <= lease.reuse_tokens:
            save = self._reserve(kind, lease.slot, stop_tokens)
            lease.saves.extend(() if save is None else (save,))
        return Extension(tuple(pages), save)

    def commit(self, lease: Lease, computed_tokens: int, new_keys: Sequence[int] = ()) -> None:
        """A chunk is done: rows up to `computed_tokens` are in the cache; `new_keys` were drawn.

        Publishes whole pages, the prompt's last partial page once the prompt is done, and the
        snapshots saved on the way.
        """
        self._must_be_live(lease)
        lease.keys.extend(new_keys)
        page_tokens = self._geometry.page_tokens
        covered = len(lease.pages) * page_tokens
        if len(lease.keys) < covered:
            covered = len(lease.keys)
        if not lease.computed_tokens <= computed_tokens <= covered:
            raise AccountingError(
                f"computed_tokens is {computed_tokens}, must be from {lease.computed_tokens}"
                f" to {covered}"
            )
        prompt_ends = lease.computed_tokens < lease.prompt_tokens <= computed_tokens
        lease.computed_tokens = computed_tokens
        if not lease.started:
            self._start(lease)
        usable = computed_tokens if computed_tokens < lease.reuse_tokens else lease.reuse_tokens
        if usable >= (lease.listed_pages + 1) * page_tokens:
            self._publish(lease, usable, partial=False)
        if prompt_ends:
            self._publish(lease, min(usable, lease.prompt_tokens), partial=True)
        while lease.saves and lease.saves[0].position <= computed_tokens:
            save = lease.saves.pop(0)
            if save.kind == "full":  # it hangs on the page that it ends in
                self._publish(lease, save.position, partial=True)
            self._attach(lease, save)

    def release(self, lease: Lease, *, keep: bool = True) -> SlotSave | None:
        """The request is over: give everything back; with `keep`, its text stays for others.

        Returns the snapshot at the turn's end that the next plan must save before the slot is used
        again.
        """
        self._must_be_live(lease)
        end, save = lease.computed_tokens, None
        if keep and lease.prompt_tokens <= end <= lease.reuse_tokens:
            self._publish(lease, end, partial=True)
            if not self.tree.has_snapshot(lease.node, tuple(lease.keys), "full", end):
                save = self._reserve("full", lease.slot, end)
            if save is not None:
                self._attach(lease, save)
        self._give_back(lease)
        return save

    def park(self, lease: Lease) -> Parked | None:
        """Preempt: save the slot and let the pages be evicted. None: nothing could be saved.

        The lease is released in both cases. The slot is saved as it is, also in the middle of a
        prompt, so nobody but this request may go on from it; no prompt chunk may be under way.
        """
        self._must_be_live(lease)
        parked = None
        if lease.started and (save := self._reserve("full", lease.slot, lease.computed_tokens)):
            # Parked in the middle of a replay, the entries of the hit are there already.
            covered = max(lease.computed_tokens, lease.resume.hit_tokens)
            parked = Parked(
                own=lease.lease_id,
                save=save,
                covered_tokens=covered,
                keys=tuple(lease.keys),
                salt=lease.salt,
                resume=lease.resume,
                reuse_tokens=lease.reuse_tokens,
            )
            lease.node, lease.listed_pages = self.tree.root(lease.lease_id), 0
            self._publish(lease, covered, partial=True)
            self._parked[parked.own] = parked
            self.snapshots.unpin(save.snapshot_id)
        self._give_back(lease)
        return parked

    def unpark(self, parked: Parked, *, reserve_tokens: int = 0) -> Lease | Wait | None:
        """Go on where `park` stopped. None: room is missing. Raises LookupError if the state is
        gone or fills an otherwise empty cache; the request then starts again with `admit`."""
        match = self.tree.match(parked.own, parked.keys, parked.covered_tokens)
        if parked.own not in self._parked or match.hit_tokens < parked.covered_tokens:
            self.drop_parked(parked)
            raise LookupError(f"the state of lease {parked.own} was evicted")
        if (on_the_way := self._fetch(parked.save.snapshot_id)) is not None:
            return on_the_way
        keys, mark = list(parked.keys), parked.reuse_tokens
        lease = self._grant(match, parked.own, keys, parked.resume, reserve_tokens, mark, parked)
        if lease is None and self.held_pages == 0:
            self.drop_parked(parked)
            raise LookupError(f"the state of lease {parked.own} leaves no room to go on")
        if lease is not None:
            self.drop_parked(parked)
        return lease

    def drop_parked(self, parked: Parked) -> None:
        """Forget a preempted request, for example because it was aborted."""
        if self._parked.pop(parked.own, None) is not None:
            self.snapshots.discard(parked.save.snapshot_id)
        self.tree.forget(parked.own)

    def flush(self) -> int:
        """Forget every text that nobody is using; returns the pages that became free."""
        return self.tree.evict(self.pool.total_pages)

    def limit_pages(self, pages: int) -> None:
        """Use no more than so many pages; those in use are withdrawn as they come back."""
        self._withhold_pages = max(0, self.pool.total_pages - max(1, pages))

    def take_dropped(self) -> tuple[int, ...]:
        """Snapshots dropped since the last call; the engine frees their storage."""
        dropped, self._dropped = tuple(self._dropped), []
        return dropped

    # --- admission -------------------------------------------------------------------------------

    def _resume(self, match: Match, salt: Salt, keys: Keys, first_logit_row: int | None) -> Resume:
        saved = self.tree.snapshots(match, salt, keys)
        return choose_resume(
            self._plan,
            prompt_tokens=len(keys),
            hit_tokens=match.hit_tokens,
            first_logit_row=first_logit_row,
            saved=saved,
            keep=self._promote(match, saved, salt, keys),
            rules=self.rules,
        )

    def _promote(self, match: Match, saved: list[Saved], salt: Salt, keys: Keys) -> tuple[int, ...]:
        """Branch promotion: the first to leave a text keeps a full snapshot there.

        The text is cached, or a prompt that is being computed: of many requests that come at once,
        the second keeps the snapshot and the others wait for it.
        """
        if not (self.rules.exact and self.snapshots.could_hold("full")):
            return ()
        full = max((s.position for s in saved if s.kind == "full"), default=0)
        branch = match.hit_tokens if match.diverges else 0
        for other in self._leases.values():
            if other.salt == salt and other.computed_tokens < other.prompt_tokens:
                shared = common_prefix(keys, other.prompt)
                if shared < min(len(keys) - 1, other.prompt_tokens, other.reuse_tokens):
                    branch = max(branch, shared)
        worth = full < branch >= self._geometry.window_tokens
        return (branch,) if worth else ()

    def _worth_waiting_for(
        self, now: Resume, salt: Salt, keys: Keys, first_logit_row: int | None
    ) -> int | None:
        """The running lease whose prompt, once computed, saves this request layer-rows."""
        best, rows = None, now.layer_rows
        for other in self._leases.values():
            if other.salt != salt or other.computed_tokens >= other.prompt_tokens:
                continue
            shared = common_prefix(keys, other.prompt)
            common = min(shared, other.reuse_tokens, len(keys) - 1)
            if common <= other.computed_tokens:
                continue
            later = choose_resume(
                self._plan,
                prompt_tokens=len(keys),
                hit_tokens=common,
                first_logit_row=first_logit_row,
                saved=_promised(other, common),
                keep=now.keep,
                rules=self.rules,
            )
            if later.layer_rows < rows:
                best, rows = other.lease_id, later.layer_rows
        return best

    def _fetch(self, snapshot_id: int | None) -> Wait | None:
        """Bring a spilled snapshot back first; None if it is on the device or cannot come."""
        if snapshot_id is None or self.snapshots.on_device(snapshot_id):
            return None
        if self.snapshots.place(snapshot_id) == "host":
            self.snapshots.start_load(snapshot_id)
        return Wait("snapshot", snapshot_id)

    def _grant(
        self,
        match: Match,
        salt: Salt,
        keys: list[int],
        resume: Resume,
        reserve_tokens: int,
        reuse_tokens: int,
        parked: Parked | None = None,
    ) -> Lease | None:
        """Pin first, then make room: eviction must not take what this request is about to use."""
        shared = [node.page for node in match.nodes]
        sources = [match.partial.page] if match.partial else []
        snapshot = parked.save.snapshot_id if parked else resume.snapshot_id
        for page in shared + sources:
            self.pool.hold(page)
        if snapshot is not None:
            self.snapshots.pin(snapshot)
        wanted = self._geometry.pages_for(max(len(keys), reserve_tokens)) - len(shared)
        slot = self.slots.allocate(1)
        fresh = self._allocate(wanted) if slot is not None else None
        if slot is None or fresh is None:
            if slot is not None:
                self.slots.unhold(slot[0])
            if snapshot is not None:
                self.snapshots.unpin(snapshot)
            for page in shared + sources:
                self.pool.unhold(page)
            return None
        node = match.nodes[-1] if match.nodes else self.tree.root(salt)
        self.tree.touch(match.partial or node)
        public = parked.salt if parked else salt
        lease = Lease(
            lease_id=self._next_id,
            salt=public,
            prompt=tuple(keys[: resume.prompt_tokens]),
            keys=keys,
            slot=slot[0],
            pages=shared + fresh,
            shared_pages=len(shared),
            resume=resume,
            cuts=self._cuts(resume),
            copies=tuple(PageCopy(page, fresh[0], match.partial_tokens) for page in sources),
            restore=snapshot,
            computed_tokens=parked.save.position if parked else resume.first_row,
            reuse_tokens=reuse_tokens,
            node=self.tree.root(public) if parked else node,
            listed_pages=0 if parked else len(shared),
        )
        self._next_id += 1
        self._leases[lease.lease_id] = lease
        return lease

    def _cuts(self, resume: Resume) -> dict[int, SnapshotKind]:
        """Where chunks must end because a snapshot is taken there, or a segment ends."""
        end, stride = resume.prompt_tokens, self._stride_tokens
        if not self.rules.exact:
            return {}
        first = max(encoder_exact_from(self._plan, resume), resume.hit_tokens + 1)
        begin = -(-first // stride) * stride
        cuts: dict[int, SnapshotKind] = dict.fromkeys(range(begin, end, stride), "encoder")
        return {**cuts, **dict.fromkeys((*resume.keep, end), "full")}

    # --- small steps -----------------------------------------------------------------------------

    def _allocate(self, count: int) -> list[int] | None:
        if self._withhold_pages != len(self._withheld):
            self._withdraw()
        short = count - self.pool.free_pages
        if short > self.pool.idle_pages:
            return None
        if short > 0:
            self.tree.evict(short)
        return self.pool.allocate(count)

    def _withdraw(self) -> None:
        """Bring the pages that are kept out of use to their number, as far as pages are idle."""
        for page in self._withheld:
            self.pool.unhold(page)
        self._withheld = []
        wanted = min(self._withhold_pages, self.pool.free_pages + self.pool.idle_pages)
        self.tree.evict(max(0, wanted - self.pool.free_pages))
        self._withheld = self.pool.allocate(wanted) or []

    def _reserve(self, kind: SnapshotKind, slot: int, position: int) -> SlotSave | None:
        snapshot = self.snapshots.add(kind) if self.rules.exact else None
        return None if snapshot is None else SlotSave(snapshot, slot, kind, position)

    def _start(self, lease: Lease) -> None:
        """After the first chunk nobody reads the copied page and the snapshot for it any more."""
        if lease.started:
            return
        lease.started = True
        for copy in lease.copies:
            self.pool.unhold(copy.source)
        if lease.restore is not None:
            self.snapshots.unpin(lease.restore)

    def _publish(self, lease: Lease, tokens: int, *, partial: bool) -> None:
        """List the lease's pages up to `tokens`; with `partial` also the page they end in."""
        page_tokens = self._geometry.page_tokens
        stop = self._geometry.pages_for(tokens) if partial else tokens // page_tokens
        for index in range(lease.listed_pages, stop):
            start = index * page_tokens
            run = tuple(lease.keys[start : min(start + page_tokens, tokens)])
            node = self.tree.publish(lease.node, run, lease.pages[index])
            if node.page != lease.pages[index]:
                # Somebody listed this text first. Holding that page too keeps the path whole.
                self.pool.hold(node.page)
                lease.borrowed.append(node.page)
            if len(run) == page_tokens:
                lease.node, lease.listed_pages = node, index + 1

    def _attach(self, lease: Lease, save: SlotSave) -> None:
        saved = Saved(save.kind, save.position, save.snapshot_id)
        hung = self.tree.attach(lease.node, tuple(lease.keys), saved)
        self.snapshots.unpin(save.snapshot_id)
        if not hung:
            self.snapshots.discard(save.snapshot_id)

    def _give_back(self, lease: Lease) -> None:
        self._start(lease)
        for save in lease.saves:
            self.snapshots.unpin(save.snapshot_id)
            self.snapshots.discard(save.snapshot_id)
        for page in (*lease.pages, *lease.borrowed):
            self.pool.unhold(page)
        self.slots.unhold(lease.slot)
        lease.released = True
        del self._leases[lease.lease_id]

    def _must_be_live(self, lease: Lease) -> None:
        if lease.released:
            raise AccountingError(f"lease {lease.lease_id} was released already")

    def _on_dropped(self, snapshot_id: int) -> None:
        self._dropped.append(snapshot_id)
        self.tree.detach(snapshot_id)
        gone = [own for own, p in self._parked.items() if p.save.snapshot_id == snapshot_id]
        for own in gone:
            del self._parked[own]

    def check(self) -> None:
        """Everything adds up. Raises AccountingError with the first contradiction."""
        self.pool.check()
        self.slots.check()
        self.snapshots.check()
        held: dict[int, int] = dict.fromkeys(self._withheld, 1)
        for lease in self._leases.values():
            sources = () if lease.started else tuple(c.source for c in lease.copies)
            for page in (*lease.pages, *lease.borrowed, *sources):
                held[page] = held.get(page, 0) + 1
        for page in range(self.pool.total_pages):
            if self.pool.holders(page) != held.get(page, 0):
                raise AccountingError(
                    f"page {page} counts {self.pool.holders(page)} holders, {held.get(page, 0)} are"
                )
        known = self.tree.attached() | {p.save.snapshot_id for p in self._parked.values()}
        known |= {s.snapshot_id for lease in self._leases.values() for s in lease.saves}
        known |= {lease.restore for lease in self._leases.values() if lease.restore is not None}
        leaked = self.snapshots.ids() - known
        if leaked:
            raise AccountingError(f"snapshots {sorted(leaked)} belong to nobody")


def _promised(lease: Lease, common: int) -> list[Saved]:
    """Snapshots that a running lease will have left within the first `common` tokens."""
    promised = [Saved(k, p) for p, k in lease.cuts.items() if lease.computed_tokens < p <= common]
    promised += [
        Saved("full", p - 1) for p, k in lease.cuts.items() if k == "full" and p == common + 1
    ]
    return promised
