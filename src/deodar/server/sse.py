"""Event streams: frames, keep-alive comments and what happens when the client goes away.

The response is written by hand, not with Starlette's: the disconnect must reach the engine within a
step, also while nothing is being sent, and no task may be made per token.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from deodar.server.json import dump

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


def frame(value: Any) -> bytes:
    """One event: a `data:` line and an empty line."""
    return b"data: " + dump(value) + b"\n\n"


class DisconnectWatch:
    """Calls `on_gone` once when the client goes away; `gone` tells it afterwards.

    `start` it when the engine has the request: a client that left while its body was prepared is
    noticed at once, and an abort that comes before the request would do nothing.
    """

    def __init__(self, receive: Receive, on_gone: Callable[[], Awaitable[None]]) -> None:
        self.gone = False
        self._receive = receive
        self._on_gone = on_gone
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        await self._on_gone()

    async def stop(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


class EventStream:
    """ASGI response of frames. A comment is sent after `keep_alive_s` of silence."""

    def __init__(
        self, frames: AsyncIterator[bytes], *, headers: dict[str, str], keep_alive_s: float
    ) -> None:
        self._frames = frames
        self._headers = [(k.encode(), v.encode()) for k, v in {**HEADERS, **headers}.items()]
        self._keep_alive_s = keep_alive_s
        self._last_sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._last_sent = asyncio.get_running_loop().time()
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        ticker = asyncio.create_task(self._tick(send))
        try:
            async for data in self._frames:
                await self._write(send, data)
            ticker.cancel()  # a comment after the end would be a protocol error
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:  # the client is gone; its watch has told the engine
            pass
        finally:
            ticker.cancel()
            close = getattr(self._frames, "aclose", None)
            if close is not None:
                await close()

    async def _write(self, send: Send, data: bytes) -> None:
        self._last_sent = asyncio.get_running_loop().time()
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _tick(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        with contextlib.suppress(OSError):
            while True:
                silent = clock() - self._last_sent
                if silent >= self._keep_alive_s:
                    await self._write(send, KEEP_ALIVE)
                    silent = 0.0
                await asyncio.sleep(self._keep_alive_s - silent)
