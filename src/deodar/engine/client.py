"""The engine as its users see it: requests in, one stream of events per request out.

`EngineClient` is the seam between server and engine: the server and the chat command use only this
protocol, and tests fake it. `InProcessClient` runs the step loop in a thread of this process.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from deodar.errors import RequestError
from deodar.types import GenerateRequest, TokenEvent

if TYPE_CHECKING:
    from deodar.engine.loop import Engine

logger = logging.getLogger("deodar.engine")


class EngineClient(Protocol):
    """An engine that runs somewhere; all methods are called from one event loop."""

    def submit(self, request: GenerateRequest) -> AsyncIterator[TokenEvent]:
        """Events of this request until one with a `finish_reason`; RequestError if refused."""
        ...

    async def abort(self, request_id: str) -> None:
        """End a request; its stream ends with reason "abort". Unknown ids do nothing."""
        ...

    def health(self) -> bool:
        """Whether the engine can take requests."""
        ...


Sink = Callable[[TokenEvent | RequestError], None]


@dataclass(frozen=True, slots=True)
class _Submit:
    request: GenerateRequest
    sink: Sink


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str


class _Stop:
    """Ends the thread."""


class InProcessClient:
    """An engine in a thread of this process. Close it, or its thread keeps the process alive."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands: queue.SimpleQueue[_Submit | _Abort | _Stop] = queue.SimpleQueue()
        self._sinks: dict[str, Sink] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="deodar-engine", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, folder: Path, *, context: int | None = None) -> InProcessClient:
        """Load a checkpoint and start; DeodarError if it cannot be served.

        All processors this process may use work on long prompts. The kernels are compiled, or
        fetched from earlier runs, before this returns.
        """
        from deodar.engine.loop import Engine
        from deodar.env import processor_count

        engine = Engine.open(folder, context=context, threads=processor_count())
        engine.warm_up()
        return cls(engine)

    async def submit(self, request: GenerateRequest) -> AsyncIterator[TokenEvent]:
        """Events of this request until one with a `finish_reason`; RequestError if refused.

        Leaving the iterator early does not end the request: call `abort`.
        """
        if not self.health():
            raise _not_running()
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[TokenEvent | RequestError] = asyncio.Queue()

        def sink(event: TokenEvent | RequestError) -> None:
            try:
                loop.call_soon_threadsafe(events.put_nowait, event)
            except RuntimeError:  # the caller's loop is closed: nobody listens any more
                logger.debug("event of %s dropped", request.request_id)

        self._commands.put(_Submit(request, sink))
        if not self._thread.is_alive():  # it may have ended between the check and the put
            self._refuse_rest()
        while True:
            event = await events.get()
            if isinstance(event, RequestError):
                raise event
            yield event
            if event.finish_reason is not None:
                return

    async def abort(self, request_id: str) -> None:
        """End a request; its stream ends with reason "abort". Unknown ids do nothing."""
        self._commands.put(_Abort(request_id))

    def health(self) -> bool:
        """Whether the engine can take requests."""
        return self._thread.is_alive() and not self._closed

    def close(self) -> None:
        """Stop the thread after the current step; running requests end with reason "abort"."""
        self._closed = True
        self._commands.put(_Stop())
        self._thread.join()

    def _serve(self) -> None:
        """The engine thread: commands between steps, sleep when there is nothing to do."""
        try:
            while self._take_commands():
                for event in self._engine.step():
                    self._send(event)
        except Exception:
            logger.exception("the engine thread ends")
        finally:
            self._closed = True
            for request_id in self._engine.scheduler.requests():
                self._send(self._engine.scheduler.abort(request_id))
            self._refuse_rest()

    def _take_commands(self) -> bool:
        """Carry out all waiting commands; False when told to stop."""
        while True:
            try:
                command = self._commands.get(block=not self._engine.scheduler.has_work)
            except queue.Empty:
                return True
            if isinstance(command, _Stop):
                return False
            if isinstance(command, _Abort):
                self._send(self._engine.scheduler.abort(command.request_id))
                continue
            try:
                self._engine.add(command.request)
                self._sinks[command.request.request_id] = command.sink
            except RequestError as error:
                command.sink(error)

    def _refuse_rest(self) -> None:
        """Answer what was handed in too late."""
        while True:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
            if isinstance(command, _Submit):
                command.sink(_not_running())

    def _send(self, event: TokenEvent | None) -> None:
        if event is None:
            return
        ended = event.finish_reason is not None
        sink = self._sinks.pop(event.request_id) if ended else self._sinks[event.request_id]
        sink(event)


def _not_running() -> RequestError:
    return RequestError("the engine is not running", status=503, code="draining")
