"""POST /v1/chat/completions: one body in, one answer out, whole or streamed (spec api 3.2-3.4).

The body is read, checked, rendered and tokenised in a worker thread, so that a long prompt never
blocks the event loop. Whole and streamed answers come from the same steps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from deodar.errors import RequestError
from deodar.server import chat_shapes as shapes
from deodar.server.answer import Step, run_answer
from deodar.server.conversation import check_supported, conversation_of
from deodar.server.errors import (
    AnswerAborted,
    body_and_status,
    context_error,
    error_response,
)
from deodar.server.fields import check_fields
from deodar.server.json import dump, load_object
from deodar.server.log import AnswerLog
from deodar.server.schema import (
    HONOURED,
    ChatBody,
    SamplingBody,
    check_ranges,
    stop_strings,
    typed_body,
)
from deodar.server.service import Service, off_the_loop, read_json_body, service_of
from deodar.server.sse import DONE, DisconnectWatch, EventStream, frame
from deodar.text.chat import render
from deodar.text.stream import AnswerStream
from deodar.types import GenerateRequest, SamplingParams


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked request, ready for the engine."""

    body: ChatBody
    model: str
    request: GenerateRequest
    answer: AnswerStream


async def chat_completions(request: Request) -> ASGIApp:
    """The route. Errors before the first byte have a status of their own."""
    service = service_of(request)
    log = AnswerLog(request)
    arrival = time.monotonic()
    try:
        if not service.engine.health():
            raise RequestError("the engine is not ready", status=503, code="engine_not_ready")
        raw = await read_json_body(request, service.settings.max_body_bytes)
        prepared = await off_the_loop(len(raw), prepare, service, raw, arrival)
    except RequestError as error:
        log.refused(error)
        raise
    wanted = prepared.body.request_id or prepared.body.rid
    headers = {"x-request-id": wanted} if wanted else {}

    async def abort() -> None:
        service.metrics.disconnected()
        await service.engine.abort(prepared.request.request_id)

    watch = DisconnectWatch(request.receive, abort)
    steps = log.observe(
        run_answer(
            service.engine,
            service.ledger,
            prepared.request,
            prepared.answer,
            client_id=wanted or request.scope["request_id"],
        ),
        watch,
    )
    first = asyncio.create_task(_next(steps))  # hands the request to the engine, then the watch
    watch.start()
    if not prepared.body.stream:
        return await _whole(prepared, first, steps, watch, headers)
    await asyncio.wait({first}, timeout=service.settings.keep_alive_s)
    failure = first.exception() if first.done() else None
    if failure is not None:
        await watch.stop()
        return _failed(failure, watch, headers)
    return EventStream(
        _frames(prepared, first, steps, watch),
        headers=headers,
        keep_alive_s=service.settings.keep_alive_s,
    )


def prepare(service: Service, raw: bytes, arrival: float = 0.0) -> Prepared:
    """Body bytes to a request for the engine; RequestError for anything that is refused.

    arrival: monotonic seconds when the request came.
    """
    settings = service.settings
    fields = load_object(raw)
    check_fields(fields, HONOURED)
    body = typed_body(fields, ChatBody)
    model = service.model_name(body.model)
    check_ranges(body, context=settings.context, vocab_size=service.tokenizer.vocab_size)
    conversation = conversation_of(
        body,
        default_thinking=settings.default_thinking,
        default_effort=settings.default_effort,
    )
    check_supported(body, conversation)
    prompt = render(conversation)
    fewest = service.tokenizer.fewest_tokens(prompt)
    if fewest >= settings.context:
        raise context_error(f"at least {fewest}", settings.context)
    prompt_ids = service.tokenizer.encode_prompt(prompt)
    if len(prompt_ids) >= settings.context:
        raise context_error(len(prompt_ids), settings.context)
    answer = AnswerStream(
        service.tokenizer,
        prompt.start,
        tools=bool(conversation.tools) and conversation.tool_choice != "none",
        stop=stop_strings(body),
        include_stop=bool(body.include_stop_str_in_output or body.no_stop_trim),
        max_calls=1 if body.parallel_tool_calls is False else None,
    )
    request = GenerateRequest(
        request_id=f"chatcmpl-{uuid4().hex}",
        prompt_ids=tuple(prompt_ids),
        sampling=sampling_of(
            body,
            settings.sampling,
            settings.context - len(prompt_ids),
            body.max_completion_tokens or body.max_tokens or settings.sampling.max_tokens,
        ),
        arrival=arrival,
    )
    return Prepared(body, model, request, answer)


def sampling_of(
    body: SamplingBody, defaults: SamplingParams, room: int, limit: int | None
) -> SamplingParams:
    """Request over the server's defaults; `limit` is shortened to the room in the context."""
    sampling = replace(
        defaults,
        max_tokens=room if limit is None else min(limit, room),
        stop_token_ids=tuple(body.stop_token_ids or ()) or defaults.stop_token_ids,
        ignore_eos=bool(body.ignore_eos),
    )
    if body.temperature is not None:
        sampling = replace(sampling, temperature=body.temperature)
    if body.top_p is not None:
        sampling = replace(sampling, top_p=body.top_p)
    if body.top_k is not None:
        sampling = replace(sampling, top_k=max(0, body.top_k))
    if body.min_p is not None:
        sampling = replace(sampling, min_p=body.min_p)
    if body.seed is not None:  # seeds of the engine are 63 bits; clients may send any integer
        sampling = replace(sampling, seed=body.seed % 2**63)
    return sampling


async def answer_whole(service: Service, raw: bytes) -> dict[str, Any]:
    """The response body for a request body, without HTTP; RequestError or EngineFailure."""
    prepared = await off_the_loop(len(raw), prepare, service, raw, time.monotonic())
    whole = shapes.WholeAnswer()
    async for step in run_answer(service.engine, service.ledger, prepared.request, prepared.answer):
        whole.add(step)
    return _body(prepared, whole)


def _body(prepared: Prepared, whole: shapes.WholeAnswer) -> dict[str, Any]:
    head = shapes.Head.of(prepared.request.request_id, prepared.model, "chat.completion")
    return whole.body(head, reasoning=prepared.body.include_reasoning is not False)


async def _next(steps: AsyncIterator[Step]) -> Step:
    return await anext(steps)


async def _whole(
    prepared: Prepared,
    first: asyncio.Task[Step],
    steps: AsyncIterator[Step],
    watch: DisconnectWatch,
    headers: dict[str, str],
) -> Response:
    whole = shapes.WholeAnswer()
    try:
        whole.add(await first)
        async for step in steps:
            whole.add(step)
    except Exception as error:
        return _failed(error, watch, headers)
    finally:
        await watch.stop()
    return Response(dump(_body(prepared, whole)), headers=headers, media_type="application/json")


def _failed(error: BaseException, watch: DisconnectWatch, headers: dict[str, str]) -> Response:
    if watch.gone:  # nobody reads it; 499 appears in logs only
        return Response(status_code=499)
    if not isinstance(error, Exception):
        raise error
    return error_response(error, headers)


async def _frames(
    prepared: Prepared,
    first: asyncio.Task[Step],
    steps: AsyncIterator[Step],
    watch: DisconnectWatch,
) -> AsyncIterator[bytes]:
    """Role chunk, deltas, finish chunk, usage chunk, [DONE]; an error frame instead of a finish."""
    head = shapes.Head.of(prepared.request.request_id, prepared.model, "chat.completion.chunk")
    options = prepared.body.stream_options
    running = options is not None and bool(options.continuous_usage_stats)
    reasoning = prepared.body.include_reasoning is not False
    try:
        step = await first
        yield head.delta_frame({"role": "assistant", "content": ""}, usage=running and step.usage)
        while True:
            frames = [
                head.delta_frame(delta, usage=running and step.usage)
                for delta in shapes.deltas(step.events, reasoning=reasoning)
            ]
            if frames:
                yield b"".join(frames)
            if step.finish is not None:
                break
            step = await anext(steps)
        yield frame(head.finish_chunk(step, usage=running and step.usage))
        if options is not None and options.include_usage:
            yield frame(head.usage_chunk(step.usage))
        yield DONE
    except AnswerAborted as error:
        if not watch.gone:
            yield _error_frame(error) + DONE
    except Exception as error:
        yield _error_frame(error) + DONE
    finally:
        first.cancel()
        await asyncio.wait({first})
        await watch.stop()
        await steps.aclose()  # type: ignore[attr-defined]


def _error_frame(error: Exception) -> bytes:
    body: dict[str, Any] = body_and_status(error)[0]
    return frame(body)
