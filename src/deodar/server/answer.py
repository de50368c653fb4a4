"""One request through the engine: token events in, parsed steps out, the same for every protocol.

The routes project `Step`s into their own shapes. What must hold: usage counts the tokens that were
read, and the engine stops as soon as the answer is over (stop string, call limit, client gone).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from deodar.engine.client import EngineClient
from deodar.server.errors import AnswerAborted, EngineFailure
from deodar.text.events import Event
from deodar.text.stream import AnswerStream
from deodar.types import GenerateRequest, TokenEvent

logger = logging.getLogger("deodar.server")

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class AnswerUsage:
    """Token counts so far; reasoning tokens are part of the completion tokens."""

    prompt: int
    completion: int
    cached: int
    reasoning: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one event of the engine means for the answer. `finish` is set on the last step only.

    stop_reason: the stop string or stop token id that ended the answer, if one of the request's.
    """

    events: tuple[Event, ...]
    usage: AnswerUsage
    seed: int
    finish: FinishReason | None = None
    stop_reason: str | int | None = None


async def run_answer(
    engine: EngineClient, request: GenerateRequest, answer: AnswerStream
) -> AsyncIterator[Step]:
    """Steps of an answer. EngineFailure or AnswerAborted if the engine ends it otherwise."""
    over = False
    try:
        async for event in engine.submit(request):
            over = event.finish_reason is not None
            if event.finish_reason == "error":
                raise EngineFailure(event.error or "the engine failed on this request")
            if event.finish_reason == "abort":
                raise AnswerAborted("the request was aborted")
            step = _step(event, request, answer)
            yield step
            if step.finish is not None:
                return
        raise EngineFailure("the engine ended without an answer")
    finally:
        if not over:
            await engine.abort(request.request_id)


def _step(event: TokenEvent, request: GenerateRequest, answer: AnswerStream) -> Step:
    before = answer.tokens
    events = answer.push(event.token_ids)
    unread = len(event.token_ids) - (answer.tokens - before)
    finish: FinishReason | None = None
    stop_reason: str | int | None = None
    if answer.ended:
        events += answer.finish(cut=False)
        stop_reason = answer.parser.stop_match
        finish = "stop" if stop_reason is not None else "tool_calls"
    elif event.finish_reason is not None:
        cut = event.finish_reason == "length"
        events += answer.finish(cut=cut)
        # P16: a cut answer says so; else at least one finished call makes it a call.
        finish = "length" if cut else "tool_calls" if answer.parser.finished_calls else "stop"
        if answer.parser.stop_match is not None:
            finish, stop_reason = "stop", answer.parser.stop_match
        elif event.stop_token_id in request.sampling.stop_token_ids:
            stop_reason = event.stop_token_id
    usage = AnswerUsage(
        prompt=event.usage.prompt_tokens,
        completion=event.usage.completion_tokens - unread,
        cached=event.usage.cached_tokens,
        reasoning=answer.reasoning_tokens,
    )
    return Step(
        events=tuple(events),
        usage=usage,
        seed=event.seed,
        finish=finish,
        stop_reason=stop_reason,
    )
