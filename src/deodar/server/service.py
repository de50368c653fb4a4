"""What the routes share: the engine, the tokenizer and the settings, and the body reader."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from starlette.requests import ClientDisconnect, Request

from deodar.engine.client import EngineClient
from deodar.engine.ledger import Ledger
from deodar.errors import RequestError
from deodar.server.metrics import Metrics
from deodar.server.settings import ServerSettings
from deodar.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Service:
    """One served model. started: seconds since the epoch."""

    engine: EngineClient
    tokenizer: Tokenizer
    settings: ServerSettings
    ledger: Ledger
    metrics: Metrics
    started: int

    @classmethod
    def of(cls, engine: EngineClient, tokenizer: Tokenizer, settings: ServerSettings) -> Service:
        """A service with a ledger that is watched by its metrics."""
        ledger = Ledger()
        metrics = Metrics(engine, settings.model_names[0], compat=settings.metrics_compat)
        ledger.observers.append(metrics)
        return cls(engine, tokenizer, settings, ledger, metrics, int(time.time()))

    def model_name(self, asked: str | None) -> str:
        """The name to answer with; RequestError 404 for a name that is not served."""
        names = self.settings.model_names
        if not asked:
            return names[0]
        if asked not in names:
            raise RequestError(
                f"the model {asked[:100]!r} is not served here; served: {', '.join(names)}",
                param="model",
                status=404,
                code="model_not_found",
            )
        return asked


def service_of(request: Request) -> Service:
    """The service of the app that handles this request."""
    service: Service = request.app.state.service
    return service


LONG_BODY_BYTES = 50_000
_NICENESS = 5
P = ParamSpec("P")
R = TypeVar("R")


def _yield_to_others() -> None:
    """Lower the priority of this thread, where the system has priorities of threads."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


_long_bodies = ThreadPoolExecutor(1, "deodar-long", initializer=_yield_to_others)


async def off_the_loop(size: int, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `function` in a thread. What belongs to a large body takes seconds: one after another
    and with less right to the processors than the streams that run.

    size: bytes of the body.
    """
    call = functools.partial(function, *args, **kwargs)
    pool = _long_bodies if size >= LONG_BODY_BYTES else None
    return await asyncio.get_running_loop().run_in_executor(pool, call)


async def read_json_body(request: Request, limit: int) -> bytes:
    """The raw body; RequestError 413 if it is larger than `limit` bytes, 415 if it is no JSON."""
    kind = request.headers.get("content-type", "application/json").split(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise RequestError(
            f"the content type is {kind[:80]!r}, it must be application/json", status=415
        )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            parts.append(part)
    except ClientDisconnect:
        raise RequestError("the client went away before the body ended", status=400) from None
    return b"".join(parts)


def _too_large(limit: int) -> RequestError:
    return RequestError(
        f"the body is larger than {limit} bytes", status=413, code="request_too_large"
    )
