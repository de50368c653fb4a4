"""Decide the next step: which sequences run, how many tokens of each. Integers only.

Called by the engine between steps: `plan`, run, `commit`. First come, first served: a request waits
for a free slot, prompts are run in chunks that share the step's token budget with one row of every
sequence that already generates. What must hold: every slot has at most one owner, and the events
of a request end with exactly one that has a finish_reason.
"""

from __future__ import annotations

from collections import deque

from deodar.errors import RequestError
from deodar.scheduler.admission import check_request
from deodar.scheduler.sequence import Sequence
from deodar.types import (
    Chunk,
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
    """

    def __init__(
        self, *, slots: int, context: int, step_tokens: int, vocab_size: int, eos_token_id: int
    ) -> None:
        assert step_tokens > slots
        self.context = context
        self.step_tokens = step_tokens
        self._vocab_size = vocab_size
        self._eos = eos_token_id
        self._free = deque(range(slots))
        self._waiting: deque[Sequence] = deque()
        self._running: dict[str, Sequence] = {}
        self._fresh: list[int] = []
        self._step_no = 0

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, request: GenerateRequest) -> None:
        """Let a request wait; its seed is resolved. RequestError if it cannot be honoured."""
        check_request(request, context=self.context, vocab_size=self._vocab_size)
        assert request.sampling.seed is not None
        if self._find(request.request_id) is not None:
            raise RequestError(
                f"request id {request.request_id!r} is already in use", param="request_id"
            )
        room = self.context - len(request.prompt_ids)
        limit = request.sampling.max_tokens
        self._waiting.append(
            Sequence(request=request, room=room if limit is None else min(room, limit))
        )

    def plan(self) -> StepPlan:
        """The next step: a row of every generating sequence, prompts in the rest of the budget."""
        self._admit()
        self._step_no += 1
        chunks = [_decode_chunk(s) for s in self._running.values() if s.prompt_left <= 0]
        budget = self.step_tokens - len(chunks)
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
            sequence.num_computed += len(chunk.token_ids)
            if sampled is not None:
                events.append(self._take(sequence, sampled))
        return tuple(events)

    def abort(self, request_id: str) -> TokenEvent | None:
        """End a request now; its last event, or None if it is unknown or has ended."""
        return self._end_early(request_id, "abort", None)

    def fail(self, plan: StepPlan, error: str) -> tuple[TokenEvent, ...]:
        """The step raised: end what took part in it, leave the others alone."""
        events = [self._end_early(chunk.request_id, "error", error) for chunk in plan.chunks]
        return tuple(event for event in events if event is not None)

    def requests(self) -> tuple[str, ...]:
        """Ids of all requests that have not ended, oldest first."""
        return tuple(self._running) + tuple(s.request.request_id for s in self._waiting)

    def _admit(self) -> None:
        while self._waiting and self._free:
            sequence = self._waiting.popleft()
            sequence.slot = self._free.popleft()
            self._fresh.append(sequence.slot)
            self._running[sequence.request.request_id] = sequence

    def _take(self, sequence: Sequence, sampled: SampledToken) -> TokenEvent:
        """Append a token; end the sequence if that was its last."""
        request, token = sequence.request, sampled.token_id
        sequence.output_ids.append(token)
        stops = token in request.sampling.stop_token_ids
        stops |= token == self._eos and not request.sampling.ignore_eos
        reason: FinishReason | None = None
        if stops:
            reason = "stop"
        elif len(sequence.output_ids) >= sequence.room:
            reason = "length"
        if reason is not None:
            self._release(sequence)
        return TokenEvent(
            request_id=request.request_id,
            token_ids=(token,),
            logprobs=(sampled.logprob,),
            usage=sequence.usage,
            finish_reason=reason,
            stop_token_id=token if stops else None,
            seed=request.sampling.seed or 0,
        )

    def _end_early(
        self, request_id: str, reason: FinishReason, error: str | None
    ) -> TokenEvent | None:
        sequence = self._find(request_id)
        if sequence is None:
            return None
        if sequence.slot < 0:
            self._waiting.remove(sequence)
        else:
            self._release(sequence)
        return TokenEvent(
            request_id=request_id,
            token_ids=(),
            logprobs=(),
            usage=sequence.usage,
            finish_reason=reason,
            error=error,
            seed=sequence.request.sampling.seed or 0,
        )

    def _release(self, sequence: Sequence) -> None:
        del self._running[sequence.request.request_id]
        self._free.append(sequence.slot)

    def _find(self, request_id: str) -> Sequence | None:
        waiting = (s for s in self._waiting if s.request.request_id == request_id)
        return self._running.get(request_id) or next(waiting, None)


def _decode_chunk(sequence: Sequence) -> Chunk:
    request = sequence.request
    return Chunk(
        request_id=request.request_id,
        slot=sequence.slot,
        kind="decode",
        start=sequence.num_computed,
        token_ids=(sequence.output_ids[-1],),
        sampling=request.sampling,
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
