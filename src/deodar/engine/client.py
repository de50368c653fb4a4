"""The engine as its users see it: requests in, one stream of events per request out.

`EngineClient` is the seam between server and engine: the server and the chat command use only this
protocol, and tests fake it. `InProcessClient` runs the step loop in a thread of this process;
`remote.RemoteClient` talks to an engine process. Both send and get the messages of `wire`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from deodar.engine.hooks import Injection
from deodar.engine.wire import (
    Abort,
    Done,
    Events,
    Flush,
    FromEngine,
    Inject,
    Refused,
    Stop,
    Submit,
    ToEngine,
)
from deodar.errors import RequestError
from deodar.types import EngineInfo, EngineStats, GenerateRequest, TokenEvent

if TYPE_CHECKING:
    from deodar.engine.loop import Engine
    from deodar.engine.options import EngineOptions

ENGINE_DIED = "engine_died"  # code of the error that ends what was running
STALL_S = 2.0  # a loop that has not turned for so long is not ready
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
        """Whether the engine can take requests: it is there and its steps progress."""
        ...

    def info(self) -> EngineInfo:
        """What the engine said of itself when it became ready."""
        ...

    def stats(self) -> EngineStats:
        """Newest gauges; answers at once, also when the engine hangs."""
        ...

    async def flush_cache(self) -> None:
        """Forget all reusable state; RequestError while requests run."""
        ...

    async def inject(self, what: Injection) -> None:
        """A fault or script; RequestError if the engine has no test hooks."""
        ...


@dataclass(frozen=True, slots=True)
class _Mailbox:
    """Where the events of one request go."""

    loop: asyncio.AbstractEventLoop
    queue: asyncio.Queue[TokenEvent | RequestError]


News = tuple[_Mailbox, TokenEvent | RequestError]


def _deliver(news: Sequence[News]) -> None:
    """Put news into their mailboxes, from any thread: one wake-up per event loop."""
    loops = dict.fromkeys(box.loop for box, _ in news)
    for loop in loops:
        try:
            loop.call_soon_threadsafe(_put, [one for one in news if one[0].loop is loop])
        except RuntimeError:  # the caller's loop is closed: nobody listens any more
            logger.debug("events were dropped")


def _put(news: Sequence[News]) -> None:
    for box, one in news:
        box.queue.put_nowait(one)


class MessageClient:
    """What both clients share: open requests and calls, answered by messages of another thread.

    What must hold: every open stream ends, by an event or by an error, also if the engine dies.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boxes: dict[str, _Mailbox] = {}
        self._calls: dict[int, Future[None]] = {}
        self._numbers = itertools.count(1)
        self._up = True

    def post(self, message: ToEngine) -> None:
        """Hand a message to the engine without waiting."""
        raise NotImplementedError

    def health(self) -> bool:
        """Whether the engine can take requests."""
        raise NotImplementedError

    async def submit(self, request: GenerateRequest) -> AsyncIterator[TokenEvent]:
        """Events of this request until one with a `finish_reason`; RequestError if refused.

        Leaving the iterator early does not end the request: call `abort`. A loop that is slow to
        turn only makes it wait; whoever has other places to go to asks `health` first.
        """
        box = _Mailbox(asyncio.get_running_loop(), asyncio.Queue())
        with self._lock:
            if not self._up:
                raise not_ready()
            if request.request_id in self._boxes:
                raise RequestError(
                    f"request id {request.request_id!r} is already in use", param="request_id"
                )
            self._boxes[request.request_id] = box
            self.post(Submit(request))
        while True:
            news = await box.queue.get()
            if isinstance(news, RequestError):
                raise news
            yield news
            if news.finish_reason is not None:
                return

    async def abort(self, request_id: str) -> None:
        """End a request; its stream ends with reason "abort". Unknown ids do nothing."""
        if request_id in self._boxes:
            self.post(Abort(request_id))

    async def flush_cache(self) -> None:
        """Forget all reusable state; RequestError while requests run."""
        number, answer = self._open_call()
        self.post(Flush(number))
        await asyncio.wrap_future(answer)

    async def inject(self, what: Injection) -> None:
        """A fault or script; RequestError if the engine has no test hooks."""
        number, answer = self._open_call()
        self.post(Inject(number, what))
        await asyncio.wrap_future(answer)

    def dispatch(self, message: FromEngine) -> None:
        """Bring a message to whoever waits for it; called from the engine's side."""
        match message:
            case Events(events):
                _deliver(self._addressed(events))
            case Refused(request_id, refusal):
                with self._lock:
                    box = self._boxes.pop(request_id, None)
                if box is not None:
                    _deliver([(box, refusal.error())])
            case Done(call, refusal):
                with self._lock:
                    answer = self._calls.pop(call, None)
                if answer is not None and answer.set_running_or_notify_cancel():
                    if refusal is None:
                        answer.set_result(None)
                    else:
                        answer.set_exception(refusal.error())

    def go_down(self, error: RequestError) -> None:
        """The engine is gone: end everything that is open, refuse what comes."""
        with self._lock:
            self._up = False
            boxes, self._boxes = list(self._boxes.values()), {}
            calls, self._calls = list(self._calls.values()), {}
        _deliver([(box, error) for box in boxes])
        for call in calls:
            if call.set_running_or_notify_cancel():
                call.set_exception(error)

    def come_up(self) -> None:
        """The engine is there again."""
        with self._lock:
            self._up = True

    def _open_call(self) -> tuple[int, Future[None]]:
        with self._lock:
            if not self._up:
                raise not_ready()
            number = next(self._numbers)
            answer = self._calls[number] = Future()
            return number, answer

    def _addressed(self, events: Sequence[TokenEvent]) -> list[News]:
        """Events with their mailboxes; the last event of a request closes its own."""
        news: list[News] = []
        with self._lock:
            for event in events:
                if event.finish_reason is not None:
                    box = self._boxes.pop(event.request_id, None)
                else:
                    box = self._boxes.get(event.request_id)
                if box is not None:
                    news.append((box, event))
        return news


class InProcessClient(MessageClient):
    """An engine in a thread of this process. Close it, or its thread keeps the process alive."""

    def __init__(self, engine: Engine, *, stall_s: float = STALL_S) -> None:
        from deodar.engine.worker import Worker

        super().__init__()
        self._info = engine.info
        self._stall_s = stall_s
        self._worker = Worker(engine, self.dispatch, queue.SimpleQueue())
        self._thread = threading.Thread(target=self._serve, name="deodar-engine", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls, folder: Path, options: EngineOptions | None = None, *, test_hooks: bool = False
    ) -> InProcessClient:
        """Load a checkpoint and start; DeodarError if it cannot be served.

        All processors this process may use work on long prompts. The kernels are compiled, or
        fetched from earlier runs, before this returns.
        """
        from deodar.engine.loop import Engine
        from deodar.env import processor_count

        engine = Engine.open(
            folder,
            options,
            threads=processor_count(),
            test_hooks=test_hooks,
        )
        engine.warm_up()
        return cls(engine)

    def post(self, message: ToEngine) -> None:
        """Hand a message to the engine without waiting."""
        self._worker.commands.put(message)

    def health(self) -> bool:
        """Whether the engine can take requests: its thread lives and turns."""
        return self._up and time.monotonic() - self._worker.turned < self._stall_s

    def info(self) -> EngineInfo:
        """What this engine is."""
        return self._info

    def stats(self) -> EngineStats:
        """Newest gauges."""
        from deodar.engine.worker import current_stats

        silent = time.monotonic() - self._worker.turned
        return replace(current_stats(self._worker), ready=self.health(), silent_s=silent)

    def close(self) -> None:
        """Stop the thread after the current step; running requests end with reason "abort"."""
        self.post(Stop())
        self._thread.join()

    def _serve(self) -> None:
        try:
            self._worker.run()
        except Exception:
            logger.exception("the engine thread ends")
            self.go_down(died("the engine stopped while it worked on this request"))
        else:
            self.go_down(not_ready())


def not_ready() -> RequestError:
    """What clients are told while there is no engine."""
    return RequestError("the engine is not ready", status=503, code="engine_not_ready")


def died(text: str) -> RequestError:
    """What open streams are told when the engine ends under them."""
    return RequestError(text, status=503, code=ENGINE_DIED)
