"""The HTTP application: routes, error handlers, request ids. Built by `deodar serve` and tests."""

from __future__ import annotations

import logging
import re
import time
from uuid import uuid4

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deodar.engine.client import EngineClient
from deodar.errors import RequestError
from deodar.server.chat import chat_completions
from deodar.server.errors import error_response
from deodar.server.models import get_model, health, list_models, root
from deodar.server.service import Service
from deodar.server.settings import ServerSettings
from deodar.text.tokenizer import Tokenizer

logger = logging.getLogger("deodar.server")

_SAFE_ID = re.compile(r"[\x21-\x7e]{1,128}\Z")


def create_app(engine: EngineClient, tokenizer: Tokenizer, settings: ServerSettings) -> ASGIApp:
    """The application over one engine; it neither starts nor stops the engine."""
    app = Starlette(
        routes=[
            Route("/", root, methods=["GET", "HEAD"]),
            Route("/health", health, methods=["GET"]),
            Route("/v1/models", list_models, methods=["GET"]),
            Route("/v1/models/{name:path}", get_model, methods=["GET"]),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        ],
        exception_handlers={
            RequestError: _on_error,
            HTTPException: _on_http_error,
            Exception: _on_error,
        },
    )
    app.state.service = Service(engine, tokenizer, settings, int(time.time()))
    return RequestIds(app)


class RequestIds:
    """Echoes `X-Request-Id`, or gives one. Ids inside are our own: clients may reuse theirs."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = Headers(scope=scope).get("x-request-id", "")
        scope["request_id"] = asked if _SAFE_ID.match(asked) else f"req-{uuid4().hex}"

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("x-request-id", scope["request_id"])
            await send(message)

        await self._app(scope, receive, send_with_id)


async def _on_error(request: Request, error: Exception) -> Response:
    return error_response(error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    texts = {
        404: f"there is no {request.url.path[:100]} here",
        405: f"{request.method[:20]} is not allowed on {request.url.path[:100]}",
    }
    text = texts.get(error.status_code, error.detail)
    refusal = RequestError(text, status=error.status_code)
    return error_response(refusal, dict(error.headers or {}))
