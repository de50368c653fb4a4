"""One line per request, without content (spec api 3.8)."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator

from starlette.requests import Request

from deodar.engine.ledger import AnswerUsage
from deodar.errors import RequestError
from deodar.server.answer import Step
from deodar.server.errors import body_and_status
from deodar.server.sse import DisconnectWatch

logger = logging.getLogger("deodar.server")


class AnswerLog:
    """Follows one request; writes its line when it is over."""

    def __init__(self, request: Request) -> None:
        self._id = request.scope["request_id"]
        self._path = request.url.path
        self._begin = time.perf_counter()
        self._first: float | None = None
        self._usage = AnswerUsage(0, 0, 0, 0)

    def refused(self, error: RequestError) -> None:
        self._write(error.status, "refused")

    async def observe(
        self, steps: AsyncIterator[Step], watch: DisconnectWatch
    ) -> AsyncIterator[Step]:
        """The same steps; the line is written after the last one, however they end."""
        status, finish = 499, "abort"
        try:
            async for step in steps:
                if self._first is None:
                    self._first = time.perf_counter()
                self._usage = step.usage
                if step.finish is not None:
                    status, finish = 200, step.finish
                yield step
        except Exception as error:
            if not watch.gone:
                status, finish = body_and_status(error)[1], "error"
                if status == 500:
                    logger.exception("request %s failed", self._id)
            raise
        finally:
            await steps.aclose()  # type: ignore[attr-defined]
            self._write(status, finish)

    def _write(self, status: int, finish: str) -> None:
        now = time.perf_counter()
        usage = self._usage
        ttft_ms = -1.0 if self._first is None else 1e3 * (self._first - self._begin)
        logger.info(
            "id=%s path=%s status=%d finish=%s prompt_tokens=%d cached_tokens=%d "
            "completion_tokens=%d reasoning_tokens=%d ttft_ms=%.1f total_ms=%.1f",
            self._id,
            self._path,
            status,
            finish,
            usage.prompt,
            usage.cached,
            usage.completion,
            usage.reasoning,
            ttft_ms,
            1e3 * (now - self._begin),
        )
