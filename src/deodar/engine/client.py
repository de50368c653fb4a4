"""The engine as its users see it: requests in, one stream of events per request out.

`EngineClient` is the seam between server and engine: the server, `LLM` and the chat command use
only this protocol, and tests fake it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from deodar.types import GenerateRequest, TokenEvent


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
