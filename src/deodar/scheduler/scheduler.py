"""Decide the next step: which sequences run, how many rows of each. Integers only.

Called by the engine between steps: `plan`, run, `commit`; `plan` may be called once more before the
commit of the plan before (one step ahead). What must hold: plans are committed in their order; the
events of a request end with exactly one that has a finish_reason; whatever a request held is given
back by then; nothing waits while the memory is empty.
"""

from __future__ import annotations

import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from deodar.cache.lease import Lease, Wait
from deodar.cache.manager import CacheManager
from deodar.cache.prefix import prefix_keys
from deodar.errors import RequestError
from deodar.scheduler.admission import check_request
from deodar.scheduler.policy import share_rows
from deodar.scheduler.sequence import Sequence
from deodar.types import (
    Chunk,
    EngineStats,
    FinishReason,
    GenerateRequest,
    PageCopy,
    SampledToken,
    SlotRestore,
    SlotSave,
    StepOutput,
    StepPlan,
    TokenEvent,
)

_TOKEN_ID, _LOGPROB = attrgetter("token_id"), attrgetter("logprob")  # faster than a loop
MAX_BROKEN_STEPS = 3  # that a request survives
MAX_WAITS = 64  # waiting requests that are asked in vain in one step


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a scheduler, in tokens and requests.

    context: prompt and answer together. step_tokens: rows of one step, more than there are slots.
    waiting: requests that may wait. reserve_tokens: answer tokens for which pages are taken at
    admission; a longer answer asks page by page and may be preempted.
    """

    context: int
    step_tokens: int
    vocab_size: int
    eos_token_id: int
    waiting: int = 100_000
    reserve_tokens: int = 1024


@dataclass(slots=True)
class _Orders:
    """What the next plan carries beside its chunks."""

    saves: list[SlotSave] = field(default_factory=list)
    loads: list[int] = field(default_factory=list)
    copies: list[PageCopy] = field(default_factory=list)
    restores: list[SlotRestore] = field(default_factory=list)
    resets: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Flight:
    """A plan that has not been committed, with the sequence and its epoch of every chunk."""

    step_no: int
    copying: tuple[int, ...]
    owners: tuple[tuple[Sequence, int], ...]


class Scheduler:
    """Waiting and running sequences over one cache. clock: monotonic seconds, for deadlines."""

    def __init__(
        self, cache: CacheManager, limits: Limits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        assert limits.step_tokens > cache.slots.total_pages
        self.cache = cache
        self.limits = limits
        self._clock = clock
        self._known: dict[str, Sequence] = {}
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._flights: deque[_Flight] = deque()
        self._orders = _Orders()
        self._events: list[TokenEvent] = []
        self._deadlines = 0
        self._preempted = False
        self._count = 0
        self._step_no = 0

    # --- what is there ---------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """False when a plan would be idle: no request, no step in flight, no save to be made."""
        return bool(self._known or self._flights or self._orders.saves or self._events)

    @property
    def stats(self) -> EngineStats:
        """Gauges of this moment."""
        page_tokens = self.cache.page_tokens
        return EngineStats(
            steps=self._step_no,
            running=len(self._running),
            waiting=len(self._waiting),
            waiting_tokens=sum(s.prompt_tokens for s in self._waiting),
            used_tokens=self.cache.held_pages * page_tokens,
            total_tokens=self.cache.usable_pages * page_tokens,
            snapshots=len(self.cache.snapshots),
        )

    def requests(self) -> tuple[str, ...]:
        """Ids of all requests that have not ended, oldest first."""
        return tuple(self._known)

    # --- requests come and go --------------------------------------------------------------------

    def add(self, request: GenerateRequest) -> None:
        """Let a request wait; its seed is resolved. RequestError if it cannot be honoured."""
        limits = self.limits
        check_request(request, context=limits.context, vocab_size=limits.vocab_size)
        assert request.sampling.seed is not None
        if request.request_id in self._known:
            raise RequestError(
                f"request id {request.request_id!r} is already in use", param="request_id"
            )
        if len(self._waiting) >= limits.waiting:
            raise RequestError(
                f"{len(self._waiting)} requests are waiting, the limit is {limits.waiting}",
                status=503,
                code="queue_full",
            )
        room, most = limits.context - len(request.prompt_ids), request.sampling.max_tokens
        sequence = Sequence(
            request=request,
            prompt_tokens=len(request.prompt_ids),
            room=room if most is None else min(room, most),
            number=self._count,
        )
        self._check_fits(sequence)
        self._count += 1
        self._deadlines += request.deadline is not None
        self._known[request.request_id] = sequence
        insort(self._waiting, sequence, key=lambda s: s.queue_rank)

    def abort(self, request_id: str) -> TokenEvent | None:
        """End a request now; its last event, or None if it is unknown or has ended."""
        sequence = self._known.get(request_id)
        return None if sequence is None else self._end_early(sequence, "abort", None)

    def flush(self) -> None:
        """Forget everything reusable. RequestError while requests run."""
        if self._known or self._flights:
            raise RequestError("requests are running, the cache cannot be flushed", code="busy")
        self.cache.flush()

    def limit_pool(self, tokens: int) -> None:
        """From now on use only as many pages as `tokens` need (test hook)."""
        self.cache.limit_pages(tokens // self.cache.page_tokens)

    def _check_fits(self, sequence: Sequence) -> None:
        needed, pages = self.cache.pages_for(sequence.needed_tokens), self.cache.usable_pages
        if needed > pages:
            raise RequestError(
                f"prompt and answer may take {sequence.needed_tokens} tokens, the KV memory holds "
                f"{pages * self.cache.page_tokens}; lower max_tokens",
                param="max_tokens",
            )

    # --- plan ------------------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """The next step: one row of every generating sequence, prompts share the rest.

        A sequence whose next token is still being drawn gets a row with an open token.
        """
        self._expire()
        chunks: list[Chunk] = []
        owners: list[tuple[Sequence, int]] = []
        budget = self.limits.step_tokens
        self._preempted = False
        for sequence in list(self._running):
            if sequence.lease is None or not _generates(sequence):
                continue
            chunk = self._chunk(sequence, 1, owners)
            if chunk is not None:
                chunks.append(chunk)
                owners.append((sequence, sequence.epoch))
        budget -= len(chunks)
        if not self._preempted:
            self._admit()
        filling = [s for s in self._running if not _generates(s) and s.pending_rows > 0]
        wants = [_most_rows(s) for s in filling]
        for sequence, rows in zip(filling, share_rows(budget, wants), strict=True):
            chunk = self._chunk(sequence, rows, owners) if rows and sequence.lease else None
            if chunk is not None:
                chunks.append(chunk)
                owners.append((sequence, sequence.epoch))
        return self._finished_plan(tuple(chunks), tuple(owners))

    def _finished_plan(
        self, chunks: tuple[Chunk, ...], owners: tuple[tuple[Sequence, int], ...]
    ) -> StepPlan:
        orders, self._orders = self._orders, _Orders()
        spills = self.cache.snapshots.wanted_spills()
        plan = StepPlan(
            step_no=self._step_no + 1,
            unloads=self.cache.snapshots.take_unloaded(),
            saves=tuple(orders.saves),
            spills=spills,
            loads=tuple(orders.loads),
            dropped=self.cache.take_dropped(),
            page_copies=tuple(orders.copies),
            restores=tuple(orders.restores),
            reset_slots=tuple(orders.resets),
            chunks=chunks,
        )
        if not plan.is_idle:
            self._step_no += 1
            self._flights.append(_Flight(plan.step_no, (*spills, *orders.loads), owners))
        return plan

    def _chunk(
        self, sequence: Sequence, rows: int, owners: Iterable[tuple[Sequence, int]]
    ) -> Chunk | None:
        """The next `rows` rows of a sequence with their pages, others being preempted for them.

        None if the sequence itself had to give way. owners: who has a chunk in this plan already.
        """
        lease = sequence.lease
        assert lease is not None
        start = sequence.planned_tokens
        stop = start + rows
        extension = self.cache.extend(lease, stop)
        while extension is None:
            if not self._preempt_for(sequence, owners):
                return None
            extension = self.cache.extend(lease, stop)
        if extension.pages or not sequence.pages:
            sequence.pages = tuple(lease.pages)
        prompt = start < sequence.prompt_tokens
        draws = stop == sequence.total_tokens
        index = len(sequence.output_ids) + sequence.open_tokens
        sequence.planned_tokens = stop
        sequence.wide_chunks += _is_wide(prompt, rows)
        sequence.open_tokens += draws
        request = sequence.request
        return Chunk(
            request_id=request.request_id,
            slot=lease.slot,
            kind="prefill" if prompt else "decode",
            start=start,
            token_ids=request.prompt_ids[start:stop] if prompt else sequence.token_ids(start, stop),
            sampling=request.sampling if draws else None,
            output_index=index,
            pages=sequence.pages,
            layer_starts=lease.resume.chunk_starts(start, stop) if prompt else None,
            hit_tokens=lease.resume.hit_tokens,
            save=extension.save,
        )

    # --- admission and preemption ----------------------------------------------------------------

    def _admit(self) -> None:
        """Start waiting requests in their order, as long as slots and pages last."""
        asked = 0
        for sequence in self._waiting[: MAX_WAITS + self.cache.slots.free_pages]:
            if not self.cache.slots.free_pages or asked > MAX_WAITS:
                return
            got = self._lease(sequence)
            if got is None and not (self._running or self._flights):
                # Nobody will give anything back, so what is idle or half matched must go.
                self.cache.flush()
                got = self._lease(sequence)
                if got is None:  # the pool was made smaller since it came
                    text = "the KV memory is too small for this request"
                    self._events.append(self._end_early(sequence, "error", text))
                    continue
            if got is None:
                return  # nobody behind may take the pages that this one waits for
            if isinstance(got, Wait):
                asked += 1
                if got.reason == "snapshot":
                    self._order_load(got.other)
                continue
            self._waiting.remove(sequence)
            self._start(sequence, got)

    def _lease(self, sequence: Sequence) -> Lease | Wait | None:
        answer = min(sequence.room, self.limits.reserve_tokens)
        if sequence.preemptions:  # once is enough
            answer = sequence.room
        reserve = sequence.prompt_tokens + answer
        if sequence.parked is not None:
            try:
                return self.cache.unpark(sequence.parked, reserve_tokens=reserve)
            except LookupError:
                sequence.recomputed_tokens += sequence.parked.save.position
                sequence.parked = None
        keys = prefix_keys(sequence.request.prompt_ids)
        salt = sequence.request.cache_salt
        return self.cache.admit(keys, salt=salt, reserve_tokens=reserve)

    def _order_load(self, snapshot_id: int) -> None:
        copying = (i for flight in self._flights for i in flight.copying)
        if self.cache.snapshots.place(snapshot_id) != "loading":
            return
        if snapshot_id not in self._orders.loads and snapshot_id not in copying:
            self._orders.loads.append(snapshot_id)

    def _start(self, sequence: Sequence, lease: Lease) -> None:
        if sequence.scheduled is None:
            sequence.scheduled = self._clock()
        if sequence.cached_tokens is None:
            sequence.cached_tokens = lease.cached_tokens
            sequence.replayed_tokens = lease.resume.replayed_tokens
        elif sequence.parked is None:
            sequence.recomputed_tokens -= min(lease.computed_tokens, sequence.recomputed_tokens)
        sequence.void_flights(lease.computed_tokens)
        sequence.lease, sequence.pages = lease, ()
        self._orders.copies += lease.copies
        if lease.restore is None:
            self._orders.resets.append(lease.slot)
        else:
            parked = sequence.parked
            position = parked.save.position if parked else lease.resume.position
            self._orders.restores.append(SlotRestore(lease.slot, lease.restore, position))
        sequence.parked = None
        insort(self._running, sequence, key=lambda s: s.rank)

    def preempt(self, request_id: str, *, save: bool) -> bool:
        """Make a running request wait; without `save` it runs its rows again later.

        False if it is not running, or cannot be saved because of what is in flight.
        """
        sequence = self._known.get(request_id)
        if sequence is None or sequence.lease is None or (save and sequence.wide_chunks):
            return False
        (self._park if save else self._restart)(sequence)
        return True

    def _preempt_for(self, sequence: Sequence, owners: Iterable[tuple[Sequence, int]]) -> bool:
        """Make the last in rank give way; False if that is `sequence` itself, or nobody can."""
        busy = {id(owner) for owner, _ in owners}
        able = [s for s in self._running if id(s) not in busy and not s.wide_chunks]
        if not able:
            return False
        fresh = [s for s in able if s.preemptions < 2]
        victim = (fresh or able)[-1]
        if victim is sequence and len(self._running) == 1 and not self._flights:
            # It does not fit beside the pages that it keeps from being idle: start it again.
            self._restart(sequence)
            self.cache.flush()
        else:
            self._park(victim)
        return victim is not sequence

    def _park(self, sequence: Sequence) -> None:
        """Save the state for later; if it cannot be saved, the prompt is run again."""
        lease = sequence.lease
        assert lease is not None
        position = lease.computed_tokens
        sequence.parked = self.cache.park(lease)
        if sequence.parked is None:
            sequence.recomputed_tokens += position
        else:
            self._orders.saves.append(sequence.parked.save)
        self._requeue(sequence)

    def _restart(self, sequence: Sequence) -> None:
        lease = sequence.lease
        assert lease is not None
        sequence.recomputed_tokens += lease.computed_tokens
        self.cache.release(lease, keep=False)
        self._requeue(sequence)

    def _requeue(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._preempted = True
        sequence.lease = None
        sequence.preemptions += 1
        sequence.void_flights(0)
        insort(self._waiting, sequence, key=lambda s: s.queue_rank)

    # --- commit ----------------------------------------------------------------------------------

    def commit(self, plan: StepPlan, output: StepOutput) -> tuple[TokenEvent, ...]:
        """Take a step's result; events of the requests that got tokens or ended."""
        flight = self._flights.popleft()
        assert flight.step_no == plan.step_no == output.step_no
        for snapshot_id in flight.copying:
            self.cache.snapshots.finish(snapshot_id, ok=True)
        went_well = not (output.failed or output.void)
        for (sequence, epoch), chunk, sampled in zip(
            flight.owners, plan.chunks, output.sampled, strict=True
        ):
            if sequence.epoch != epoch or sequence.lease is None:
                continue  # it ended, or its rows became void, while the step ran
            if went_well or chunk.request_id not in (*output.failed, *output.void):
                self._take(sequence, sequence.lease, chunk, sampled)
            elif chunk.request_id in output.void:
                self._start_again(sequence)
            else:
                error = output.failed[chunk.request_id]
                self._events.append(self._end_early(sequence, "error", error))
        return self.take_events()

    def live_chunks(self, plan: StepPlan) -> tuple[bool, ...]:
        """For each chunk of the oldest plan in flight: whether its result will be taken."""
        flight = self._flights[0]
        assert flight.step_no == plan.step_no
        return tuple(sequence.epoch == epoch for sequence, epoch in flight.owners)

    def _start_again(self, sequence: Sequence) -> None:
        """After a step that broke off; a request that was in too many of them ends."""
        sequence.broken_steps += 1
        if sequence.broken_steps > MAX_BROKEN_STEPS:
            text = f"the engine failed in {sequence.broken_steps} steps of this request"
            self._events.append(self._end_early(sequence, "error", text))
        else:
            self._restart(sequence)

    def take_events(self) -> tuple[TokenEvent, ...]:
        """Events since the last call, for example of requests that missed their deadline."""
        events, self._events = tuple(self._events), []
        return events

    def _take(
        self, sequence: Sequence, lease: Lease, chunk: Chunk, sampled: tuple[SampledToken, ...]
    ) -> None:
        """Account for a chunk and its tokens, up to the one that ends the sequence."""
        sequence.wide_chunks -= _is_wide(chunk.kind == "prefill", len(chunk.token_ids))
        if chunk.sampling is None:
            at_end = chunk.stop == sequence.prompt_tokens
            self.cache.commit(lease, chunk.stop, sequence.output_ids if at_end else ())
            return
        taken, reason = self._tokens(sequence, sampled)
        new_ids = list(map(_TOKEN_ID, taken))
        sequence.output_ids += new_ids
        sequence.open_tokens -= 1
        self.cache.commit(lease, chunk.stop, new_ids)
        if len(new_ids) != 1:  # a step in flight counted on one
            sequence.void_flights(chunk.stop)
        self._events.append(self._event(sequence, taken, reason))
        if reason is not None:
            save = self.cache.release(lease)
            self._orders.saves += () if save is None else (save,)
            self._forget(sequence)

    def _tokens(
        self, sequence: Sequence, sampled: tuple[SampledToken, ...]
    ) -> tuple[tuple[SampledToken, ...], FinishReason | None]:
        params, left = sequence.request.sampling, sequence.room - len(sequence.output_ids)
        for count, token in enumerate(sampled, start=1):
            stops = token.token_id == self.limits.eos_token_id and not params.ignore_eos
            if stops or token.token_id in params.stop_token_ids:
                return sampled[:count], "stop"
            if count >= left:
                return sampled[:count], "length"
        return sampled, None

    # --- ends ------------------------------------------------------------------------------------

    def _expire(self) -> None:
        if not self._deadlines:
            return
        now = self._clock()
        for sequence in list(self._known.values()):
            deadline = sequence.request.deadline
            if deadline is not None and now >= deadline:
                text = "the request was not finished at its deadline"
                self._events.append(self._end_early(sequence, "error", text))

    def _end_early(self, sequence: Sequence, reason: FinishReason, error: str | None) -> TokenEvent:
        if sequence.lease is not None:
            self.cache.release(sequence.lease, keep=False)
        elif sequence.parked is not None:
            self.cache.drop_parked(sequence.parked)
        self._forget(sequence)
        return self._event(sequence, (), reason, error)

    def _forget(self, sequence: Sequence) -> None:
        (self._waiting if sequence.lease is None else self._running).remove(sequence)
        del self._known[sequence.request.request_id]
        self._deadlines -= sequence.request.deadline is not None
        sequence.lease = sequence.parked = None
        sequence.epoch += 1

    def _event(
        self,
        sequence: Sequence,
        taken: tuple[SampledToken, ...],
        reason: FinishReason | None,
        error: str | None = None,
    ) -> TokenEvent:
        request = sequence.request
        return TokenEvent(
            request_id=request.request_id,
            token_ids=tuple(map(_TOKEN_ID, taken)),
            logprobs=tuple(map(_LOGPROB, taken)),
            top_logprobs=tuple(t.top for t in taken) if request.sampling.top_logprobs else (),
            usage=sequence.usage,
            finish_reason=reason,
            stop_token_id=taken[-1].token_id if reason == "stop" else None,
            error=error,
            seed=request.sampling.seed or 0,
            scheduled=sequence.scheduled,
        )


def _generates(sequence: Sequence) -> bool:
    """Exactly one row is to be planned, and it is not the prompt's."""
    return sequence.pending_rows == 1 and sequence.planned_tokens >= sequence.prompt_tokens


def _is_wide(prompt: bool, rows: int) -> bool:
    """A chunk that may overwrite more of a ring than its room while it is in flight."""
    return prompt or rows > 1


def _most_rows(sequence: Sequence) -> int:
    """Rows that one chunk may have: to the next cut of a prompt, or all known answer tokens."""
    start = sequence.planned_tokens
    if start < sequence.prompt_tokens:
        assert sequence.lease is not None
        return sequence.lease.next_cut(start) - start
    return sequence.pending_rows
