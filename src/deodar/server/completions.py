"""POST /v1/completions: raw prompts in, raw text out, whole or streamed (spec api 1.13, 3.2).

Each prompt of a request is an answer of its own with its own index; they run together. Text typed
in a raw prompt may spell special tokens; the chat route is the one that never trusts text.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, cast
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from deodar.errors import RequestError
from deodar.server.answer import Step, run_answer
from deodar.server.chat import sampling_of
from deodar.server.chat_shapes import Head
from deodar.server.completion_shapes import (
    AnswerShape,
    body_of,
    chunk_of,
    total_usage,
    usage_chunk_of,
)
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
    COMPLETION_HONOURED,
    CompletionBody,
    check_ranges,
    stop_strings,
    typed_body,
)
from deodar.server.service import Service, off_the_loop, read_json_body, service_of
from deodar.server.sse import DONE, DisconnectWatch, EventStream, frame
from deodar.text.raw import RawStream
from deodar.text.segments import FIM_BEGIN, FIM_END, FIM_HOLE, Piece, Prompt, Start
from deodar.types import GenerateRequest

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 1024
Steps = AsyncIterator[tuple[int, Step]]


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt of a request, ready for the engine. echo: text that comes before the answer."""

    request: GenerateRequest
    reader: RawStream
    echo: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked request."""

    body: CompletionBody
    model: str
    answer_id: str
    runs: tuple[Run, ...]


async def completions(request: Request) -> ASGIApp:
    """The route. Errors before the first byte have a status of their own."""
    service = service_of(request)
    arrival = monotonic()
    try:
        if not service.engine.health():
            raise RequestError("the engine is not ready", status=503, code="engine_not_ready")
        raw = await read_json_body(request, service.settings.max_body_bytes)
        prepared = await off_the_loop(len(raw), prepare, service, raw, arrival)
    except RequestError as error:
        AnswerLog(request).refused(error)
        raise
    wanted = prepared.body.request_id or prepared.body.rid
    headers = {"x-request-id": wanted} if wanted else {}

    async def abort_all() -> None:
        service.metrics.disconnected()
        for run in prepared.runs:
            await service.engine.abort(run.request.request_id)

    watch = DisconnectWatch(request.receive, abort_all)
    parts = [
        AnswerLog(request).observe(
            run_answer(
                service.engine,
                service.ledger,
                run.request,
                run.reader,
                client_id=wanted or request.scope["request_id"],
            ),
            watch,
        )
        for run in prepared.runs
    ]
    steps = together(parts, begin(parts))  # the engine has the requests before the watch starts
    first = asyncio.create_task(_next(steps))
    watch.start()
    if not prepared.body.stream:
        return await _whole(service, prepared, first, steps, watch, headers)
    await asyncio.wait({first}, timeout=service.settings.keep_alive_s)
    failure = first.exception() if first.done() else None
    if failure is not None:
        await watch.stop()
        return _failed(failure, watch, headers)
    return EventStream(
        _frames(service, prepared, first, steps, watch),
        headers=headers,
        keep_alive_s=service.settings.keep_alive_s,
    )


def prepare(service: Service, raw: bytes, arrival: float = 0.0) -> Prepared:
    """Body bytes to requests for the engine; RequestError for anything that is refused."""
    settings = service.settings
    fields = load_object(raw)
    check_fields(fields, COMPLETION_HONOURED)
    body = typed_body(fields, CompletionBody)
    model = service.model_name(body.model)
    check_ranges(body, context=settings.context, vocab_size=service.tokenizer.vocab_size)
    if body.echo and body.logprobs is not None:
        raise RequestError(
            "`echo` with `logprobs` needs log-probabilities of the prompt, which are not supported "
            "yet",
            param="echo",
        )
    answer_id = f"cmpl-{uuid4().hex}"
    runs = []
    for number, prompt in enumerate(_prompts(body)):
        prompt_ids, text = _encode(service, body, prompt)
        if len(prompt_ids) >= settings.context:
            raise context_error(len(prompt_ids), settings.context, "prompt")
        room = settings.context - len(prompt_ids)
        sampling = sampling_of(body, settings.sampling, room, body.max_tokens or DEFAULT_MAX_TOKENS)
        sampling = replace(sampling, top_logprobs=body.logprobs or 0)
        reader = RawStream(
            service.tokenizer,
            stop=stop_strings(body),
            include_stop=bool(body.include_stop_str_in_output or body.no_stop_trim),
            show_special=body.skip_special_tokens is False,
        )
        request = GenerateRequest(
            request_id=f"{answer_id}-{number}",
            prompt_ids=prompt_ids,
            sampling=sampling,
            arrival=arrival,
        )
        runs.append(Run(request, reader, text if body.echo else ""))
    return Prepared(body, model, answer_id, tuple(runs))


def _prompts(body: CompletionBody) -> list[str | list[int]]:
    prompt = body.prompt
    if prompt is None:
        raise RequestError("`prompt` is missing", param="prompt")
    if isinstance(prompt, str):
        return [prompt]
    kinds = {type(entry) for entry in prompt}
    if len(kinds) > 1:
        raise RequestError("`prompt` mixes texts, token ids and lists", param="prompt")
    if kinds == {int}:
        return [cast("list[int]", prompt)]
    if not 1 <= len(prompt) <= MAX_PROMPTS:
        raise RequestError(
            f"`prompt` has {len(prompt)} entries, it must have 1 to {MAX_PROMPTS}", param="prompt"
        )
    return cast("list[str | list[int]]", prompt)


def _encode(
    service: Service, body: CompletionBody, prompt: str | list[int]
) -> tuple[tuple[int, ...], str]:
    """Token ids of a prompt, and the text that `echo` shows for it."""
    tokenizer = service.tokenizer
    if not isinstance(prompt, str):
        if body.suffix is not None:
            raise RequestError("`suffix` needs a prompt of text", param="suffix")
        for token in prompt:
            if not 0 <= token < tokenizer.vocab_size:
                raise RequestError(
                    f"`prompt` holds {token}, the vocabulary has {tokenizer.vocab_size} ids",
                    param="prompt",
                )
        if not prompt:
            raise RequestError("`prompt` holds no token", param="prompt")
        return tuple(prompt), tokenizer.decode(prompt)
    text = prompt
    if body.suffix is not None:
        text = f"{FIM_BEGIN}{prompt}{FIM_HOLE}{body.suffix}{FIM_END}"
    fewest = tokenizer.fewest_tokens(Prompt((Piece(text),), Start("answer")))
    if fewest >= service.settings.context:
        raise context_error(f"at least {fewest}", service.settings.context, "prompt")
    ids = tokenizer.encode_raw(text)
    if body.add_special_tokens is False:
        ids = ids[1:]
    if not ids:
        raise RequestError("`prompt` holds no token", param="prompt")
    return tuple(ids), prompt


async def answer_whole(service: Service, raw: bytes) -> dict[str, Any]:
    """The response body for a request body, without HTTP; RequestError or EngineFailure."""
    prepared = await off_the_loop(len(raw), prepare, service, raw, monotonic())
    shapes = _shapes(service, prepared)
    parts = [
        run_answer(service.engine, service.ledger, run.request, run.reader) for run in prepared.runs
    ]
    async for index, step in together(parts, begin(parts)):
        shapes[index].add(step)
    return body_of(Head.of(prepared.answer_id, prepared.model, "text_completion"), shapes)


def begin(parts: Sequence[AsyncIterator[Step]]) -> dict[asyncio.Future[Step], int]:
    """The first step of each answer, to come, with the answer's index."""
    return {asyncio.ensure_future(anext(part)): index for index, part in enumerate(parts)}


async def together(
    parts: Sequence[AsyncIterator[Step]], waiting: dict[asyncio.Future[Step], int]
) -> Steps:
    """Steps of all answers as they come, each with the answer's index; the first error ends all.

    waiting: their first steps. The next step of an answer is taken only when the one before has
    been passed on.
    """
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in sorted(done, key=lambda f: waiting[f]):
                index = waiting.pop(future)
                step = future.result()
                yield index, step
                if step.finish is None:
                    waiting[asyncio.ensure_future(anext(parts[index]))] = index
    finally:
        for future in waiting:
            future.cancel()
        if waiting:
            await asyncio.wait(waiting)
        for part in parts:
            await part.aclose()  # type: ignore[attr-defined]


async def _next(steps: Steps) -> tuple[int, Step]:
    return await anext(steps)


async def _whole(
    service: Service,
    prepared: Prepared,
    first: asyncio.Task[tuple[int, Step]],
    steps: Steps,
    watch: DisconnectWatch,
    headers: dict[str, str],
) -> Response:
    shapes = _shapes(service, prepared)
    try:
        index, step = await first
        shapes[index].add(step)
        async for index, step in steps:
            shapes[index].add(step)
    except Exception as error:
        return _failed(error, watch, headers)
    finally:
        await watch.stop()
    head = Head.of(prepared.answer_id, prepared.model, "text_completion")
    return Response(dump(body_of(head, shapes)), headers=headers, media_type="application/json")


async def _frames(
    service: Service,
    prepared: Prepared,
    first: asyncio.Task[tuple[int, Step]],
    steps: Steps,
    watch: DisconnectWatch,
) -> AsyncIterator[bytes]:
    """Text chunks and a finish chunk per answer, usage chunk, [DONE]; or an error frame."""
    head = Head.of(prepared.answer_id, prepared.model, "text_completion")
    shapes = _shapes(service, prepared)
    options = prepared.body.stream_options
    running = options is not None and bool(options.continuous_usage_stats)
    try:
        index, step = await first
        while True:
            choice = shapes[index].add(step)
            usage = total_usage(shapes)
            if choice is not None:
                yield frame(chunk_of(head, choice, usage if running else None))
            try:
                index, step = await anext(steps)
            except StopAsyncIteration:
                break
        if options is not None and options.include_usage:
            yield frame(usage_chunk_of(head, total_usage(shapes)))
        yield DONE
    except AnswerAborted as error:
        if not watch.gone:
            yield frame(body_and_status(error)[0]) + DONE
    except Exception as error:
        yield frame(body_and_status(error)[0]) + DONE
    finally:
        first.cancel()
        await asyncio.wait({first})
        await watch.stop()
        await steps.aclose()  # type: ignore[attr-defined]


def _shapes(service: Service, prepared: Prepared) -> list[AnswerShape]:
    body = prepared.body
    return [
        AnswerShape(
            service.tokenizer,
            index,
            echo=run.echo,
            logprobs=body.logprobs,
            ids_as_tokens=bool(body.return_tokens_as_token_ids),
        )
        for index, run in enumerate(prepared.runs)
    ]


def _failed(error: BaseException, watch: DisconnectWatch, headers: dict[str, str]) -> Response:
    if watch.gone:
        return Response(status_code=499)
    if not isinstance(error, Exception):
        raise error
    return error_response(error, headers)
