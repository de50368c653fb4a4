"""One request through the engine: token events in, parsed steps out, the same for every protocol.

The routes project `Step`s into their own shapes. What must hold: the ledger counts the tokens that
were read, the engine stops as soon as the answer is over (stop string, call limit, client gone),
and the record has ended before the last step is handed out.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from deodar.engine.client import ENGINE_DIED, EngineClient
from deodar.engine.ledger import AnswerUsage, Ledger, Record
from deodar.errors import RequestError
from deodar.server.errors import AnswerAborted, EngineFailure
from deodar.text.events import Event
from deodar.types import FinishReason as EngineReason
from deodar.types import GenerateRequest, TokenEvent

logger = logging.getLogger("deodar.server")

FinishReason = Literal["stop", "length", "tool_calls", "abort"]


class AnswerReader(Protocol):
    """Turns token ids into events: `text.stream.AnswerStream` or `text.raw.RawStream`."""

    tokens: int
    reasoning_tokens: int

    @property
    def ended(self) -> bool:
        """Whether the answer is over although the model may go on."""
        ...

    @property
    def stop_match(self) -> str | None:
        """The stop string that ended it."""
        ...

    @property
    def finished_calls(self) -> int:
        """Complete tool calls so far."""
        ...

    def push(self, token_ids: Sequence[int]) -> list[Event]:
        """Events of one step; ids after the end are not read."""
        ...

    def finish(self, *, cut: bool) -> list[Event]:
        """The rest; cut: the engine stopped the model at a limit."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one event of the engine means for the answer. `finish` is set on the last step only.

    record: of the whole request; this step read its tokens first .. last - 1. stop_reason: the stop
    string or stop token id that ended the answer, if one of the request's.
    """

    events: tuple[Event, ...]
    usage: AnswerUsage
    record: Record
    first: int
    last: int
    seed: int
    finish: FinishReason | None = None
    stop_reason: str | int | None = None


async def run_answer(
    engine: EngineClient,
    ledger: Ledger,
    request: GenerateRequest,
    answer: AnswerReader,
    *,
    client_id: str = "",
) -> AsyncIterator[Step]:
    """Steps of an answer. EngineFailure or AnswerAborted if the engine ends it otherwise."""
    record = ledger.begin(
        request.request_id, len(request.prompt_ids), request.arrival, client_id=client_id
    )
    over = False
    try:
        async for event in engine.submit(request):
            over = event.finish_reason is not None
            if event.finish_reason == "error":
                ledger.end(record, "error")
                raise EngineFailure(event.error or "the engine failed on this request")
            if event.finish_reason == "abort" and not record.asked_to_end:
                raise AnswerAborted("the request was aborted")
            step = _step(event, request, answer, ledger, record)
            if step.finish is not None:
                ledger.sent(record)
                ledger.end(record, step.finish)
            yield step
            ledger.sent(record)  # whoever reads the steps has passed the last one on
            if step.finish is not None:
                return
        raise EngineFailure("the engine ended without an answer")
    except RequestError as error:
        over = True
        if record.engine is None and error.code != ENGINE_DIED:
            ledger.discard(record)
        else:
            ledger.end(record, "error")
        raise
    finally:
        if request.request_id in ledger.open:
            ledger.end(record, "abort")
        if not over:
            await engine.abort(request.request_id)


def _step(
    event: TokenEvent,
    request: GenerateRequest,
    answer: AnswerReader,
    ledger: Ledger,
    record: Record,
) -> Step:
    first = answer.tokens
    events = answer.push(event.token_ids)
    read = answer.tokens - first
    finish: FinishReason | None = None
    stop_reason: str | int | None = None
    if answer.ended:
        events += answer.finish(cut=False)
        stop_reason = answer.stop_match
        finish = "stop" if stop_reason is not None else "tool_calls"
    elif event.finish_reason is not None:
        events += answer.finish(cut=event.finish_reason in ("length", "abort"))
        finish = _finish(event.finish_reason, answer)
        if answer.stop_match is not None:
            finish, stop_reason = "stop", answer.stop_match
        elif event.stop_token_id in request.sampling.stop_token_ids:
            stop_reason = event.stop_token_id
    ledger.commit(record, event, read, answer.reasoning_tokens)
    return Step(
        events=tuple(events),
        usage=record.usage,
        record=record,
        first=first,
        last=answer.tokens,
        seed=event.seed,
        finish=finish,
        stop_reason=stop_reason,
    )


def _finish(reason: EngineReason, answer: AnswerReader) -> FinishReason:
    """P16: a cut answer says so; else at least one finished call makes it a call."""
    if reason == "length" or reason == "abort":
        return reason
    return "tool_calls" if answer.finished_calls else "stop"
