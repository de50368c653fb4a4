"""Decide the next step: which sequences run, how many tokens of each. Integers only.

Called by the engine between steps: `plan`, run, `commit`. First come, first served: a request waits
for a free slot, prompts are run in chunks that share the step's token budget with one row of every
sequence that already generates. What must hold: every slot has at most one owner, and the events
of a request end with exactly one that has a finish_reason.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from deodar.errors import RequestError
from deodar.scheduler.admission import check_request
from deodar.scheduler.sequence import Sequence
from deodar.types import (
    Chunk,
    EngineStats,
    FinishReason,
    GenerateRequest,
    SampledToken,
    StepOutput,
    StepPlan,
    TokenEvent,
)


class Scheduler:
    """Waiting and running sequences over a fixed number of slots.

    context: tokens of prompt and answer together. step_tokens: rows of one step, more than slots.
    clock: monotonic seconds, only reported.
    """

    def __init__(
        self,
        *,
        slots: int,
        context: int,
        step_tokens: int,
        vocab_size: int,
        eos_token_id: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert step_tokens > slots
        self.slots = slots
        self.context = context
        self.step_tokens = step_tokens
        self.vocab_size = vocab_size
        self.pool_tokens = slots * context
        self._clock = clock
        self._eos = eos_token_id
        self._free = deque(range(slots))
        self._waiting: deque[Sequence] = deque()
        self._running: dict[str, Sequence] = {}
        self._fresh: list[int] = []
        self._step_no = 0

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def stats(self) -> EngineStats:
        """Gauges of this moment."""
        return EngineStats(
            steps=self._step_no,
            running=len(self._running),
            waiting=len(self._waiting),
            waiting_tokens=sum(len(s.request.prompt_ids) for s in self._waiting),
            used_tokens=sum(s.num_computed for s in self._running.values()),
            total_tokens=self.pool_tokens,
        )

    def limit_pool(self, tokens: int) -> None:
        """From now on admit only what fits into so many tokens of state (test hook)."""
        self.pool_tokens = min(tokens, self.slots * self.context)

    def add(self, request: GenerateRequest) -> None:
        """Let a request wait; its seed is resolved. RequestError if it cannot be honoured."""
        check_request(request, context=self.context, vocab_size=self.vocab_size)
        assert request.sampling.seed is not None
        if self._find(request.request_id) is not None:
            raise RequestError(
                f"request id {request.request_id!r} is already in use", param="request_id"
            )
        room = self.context - len(request.prompt_ids)
        limit = request.sampling.max_tokens
        sequence = Sequence(request=request, room=room if limit is None else min(room, limit))
        if sequence.reserved_tokens > self.pool_tokens:
            raise RequestError(
                f"prompt and answer may take {sequence.reserved_tokens} tokens, the KV memory "
                f"holds {self.pool_tokens}; lower max_tokens",
                param="max_tokens",
            )
        self._waiting.append(sequence)

    def plan(self) -> StepPlan:
        """The next step: the newest rows of every generating sequence, prompts in the rest."""
        self._admit()
        self._step_no += bool(self._running)
        most = self.step_tokens // self.slots
        chunks = [_decode_chunk(s, most) for s in self._running.values() if s.prompt_left <= 0]
        budget = self.step_tokens - sum(len(chunk.token_ids) for chunk in chunks)
        for sequence in self._running.values():
            if sequence.prompt_left > 0 and budget > 0:
                chunks.append(_prefill_chunk(sequence, budget))
                budget -= len(chunks[-1].token_ids)
        reset, self._fresh = tuple(self._fresh), []
        return StepPlan(step_no=self._step_no, chunks=tuple(chunks), reset_slots=reset)

    def commit(self, plan: StepPlan, output: StepOutput) -> tuple[TokenEvent, ...]:
        """Take a step's result; events of the requests that got a token."""
        assert plan.step_no == output.step_no
        events = []
        for chunk, sampled in zip(plan.chunks, output.sampled, strict=True):
            sequence = self._running.get(chunk.request_id)
            if sequence is None:  # aborted while the step ran
                continue
            error = output.failed.get(chunk.request_id)
            if error is not None:
                events.append(self._end_early(sequence, "error", error))
                continue
            sequence.num_computed += len(chunk.token_ids)
            if sampled:
                events.append(self._take(sequence, sampled))
        return tuple(events)

    def abort(self, request_id: str) -> TokenEvent | None:
        """End a request now; its last event, or None if it is unknown or has ended."""
        sequence = self._find(request_id)
        return None if sequence is None else self._end_early(sequence, "abort", None)

    def requests(self) -> tuple[str, ...]:
        """Ids of all requests that have not ended, oldest first."""
        return tuple(self._running) + tuple(s.request.request_id for s in self._waiting)

    def _admit(self) -> None:
        held = sum(s.reserved_tokens for s in self._running.values())
        while self._waiting and self._free:
            held += self._waiting[0].reserved_tokens
            if held > self.pool_tokens:
                return
            sequence = self._waiting.popleft()
            sequence.scheduled = self._clock()
            sequence.slot = self._free.popleft()
            self._fresh.append(sequence.slot)
            self._running[sequence.request.request_id] = sequence

    def _take(self, sequence: Sequence, sampled: tuple[SampledToken, ...]) -> TokenEvent:
        """Append the tokens up to the one that ends the sequence, if one does."""
        request = sequence.request
        taken: list[SampledToken] = []
        reason: FinishReason | None = None
        for token in sampled:
            taken.append(token)
            sequence.output_ids.append(token.token_id)
            if self._stops(request, token.token_id):
                reason = "stop"
            elif len(sequence.output_ids) >= sequence.room:
                reason = "length"
            if reason is not None:
                self._release(sequence)
                break
        return TokenEvent(
            request_id=request.request_id,
            token_ids=tuple(token.token_id for token in taken),
            logprobs=tuple(token.logprob for token in taken),
            top_logprobs=tuple(t.top for t in taken) if request.sampling.top_logprobs else (),
            usage=sequence.usage,
            finish_reason=reason,
            stop_token_id=taken[-1].token_id if reason == "stop" else None,
            seed=request.sampling.seed or 0,
            scheduled=sequence.scheduled,
        )

    def _stops(self, request: GenerateRequest, token: int) -> bool:
        if token == self._eos and not request.sampling.ignore_eos:
            return True
        return token in request.sampling.stop_token_ids

    def _end_early(self, sequence: Sequence, reason: FinishReason, error: str | None) -> TokenEvent:
        if sequence.slot < 0:
            self._waiting.remove(sequence)
        else:
            self._release(sequence)
        return TokenEvent(
            request_id=sequence.request.request_id,
            token_ids=(),
            logprobs=(),
            usage=sequence.usage,
            finish_reason=reason,
            error=error,
            seed=sequence.request.sampling.seed or 0,
            scheduled=sequence.scheduled,
        )

    def _release(self, sequence: Sequence) -> None:
        del self._running[sequence.request.request_id]
        self._free.append(sequence.slot)

    def _find(self, request_id: str) -> Sequence | None:
        waiting = (s for s in self._waiting if s.request.request_id == request_id)
        return self._running.get(request_id) or next(waiting, None)


def _decode_chunk(sequence: Sequence, most: int) -> Chunk:
    request, pending = sequence.request, sequence.pending_ids
    return Chunk(
        request_id=request.request_id,
        slot=sequence.slot,
        kind="decode",
        start=sequence.num_computed,
        token_ids=pending[:most],
        sampling=request.sampling if len(pending) <= most else None,
        output_index=len(sequence.output_ids),
    )


def _prefill_chunk(sequence: Sequence, budget: int) -> Chunk:
    request, start = sequence.request, sequence.num_computed
    ids = request.prompt_ids[start : start + budget]
    last = start + len(ids) == len(request.prompt_ids)
    return Chunk(
        request_id=request.request_id,
        slot=sequence.slot,
        kind="prefill",
        start=start,
        token_ids=ids,
        sampling=request.sampling if last else None,
    )
