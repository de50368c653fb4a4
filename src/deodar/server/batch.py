"""Requests of a batch file through the routes' own code, without HTTP (OpenAI batch format).

Called by `deodar batch`. What must hold: one output line per input line, in order; a bad line is an
error in its own output line and hurts no other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any
from uuid import uuid4

from deodar.errors import RequestError
from deodar.server.chat import answer_whole as answer_chat
from deodar.server.completions import answer_whole as answer_completion
from deodar.server.errors import body_and_status
from deodar.server.json import dump, load_object
from deodar.server.service import Service

Answer = Callable[[Service, bytes], Awaitable[dict[str, Any]]]
URLS: dict[str, Answer] = {
    "/v1/chat/completions": answer_chat,
    "/v1/completions": answer_completion,
}


async def run_batch(
    service: Service, lines: Sequence[bytes], concurrency: int
) -> AsyncIterator[tuple[bytes, bool]]:
    """Output lines in the order of the input, and whether each is an answer; blank lines are left
    out. At most `concurrency` requests run at once.
    """
    running: deque[asyncio.Task[tuple[bytes, bool]]] = deque()
    gate = asyncio.Semaphore(concurrency)
    try:
        for line in lines:
            if not line.strip():
                continue
            await gate.acquire()
            task = asyncio.create_task(_run_line(service, line))
            task.add_done_callback(lambda _: gate.release())
            running.append(task)
            while running and running[0].done():
                yield running.popleft().result()
        while running:
            yield await running[0]
            running.popleft()
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


async def _run_line(service: Service, line: bytes) -> tuple[bytes, bool]:
    custom_id: str | None = None
    try:
        entry = load_object(line)
        if isinstance(entry.get("custom_id"), str):
            custom_id = entry["custom_id"]
        body = await _answer_of(entry)(service, dump(entry.get("body")))
        status = 200
    except Exception as error:
        body, status = body_and_status(error)
    response = {"status_code": status, "request_id": f"req-{uuid4().hex}", "body": body}
    output = {
        "id": f"batch_req_{uuid4().hex}",
        "custom_id": custom_id,
        "response": response,
        "error": None,
    }
    return dump(output), status == 200


def _answer_of(entry: dict[str, Any]) -> Answer:
    """The route that a line asks for; RequestError names the field at fault."""
    if not isinstance(entry.get("custom_id"), str):
        raise RequestError("`custom_id` must be a text", param="custom_id")
    if entry.get("method", "POST") != "POST":
        raise RequestError(
            f"`method` is {str(entry['method'])[:20]!r}, it must be POST", param="method"
        )
    url = entry.get("url")
    answer = URLS.get(url) if isinstance(url, str) else None
    if answer is None:
        raise RequestError(
            f"`url` is {str(url)[:80]!r}, it must be one of {', '.join(URLS)}", param="url"
        )
    body = entry.get("body")
    if not isinstance(body, dict):
        raise RequestError("`body` must be an object", param="body")
    if body.get("stream"):
        raise RequestError("`stream` has no meaning in a batch", param="stream")
    return answer
