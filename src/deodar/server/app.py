"""The HTTP application: routes, error handlers, request ids. Built by `deodar serve` and tests."""

from __future__ import annotations

import logging
import re
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
from deodar.server import control
from deodar.server.chat import chat_completions
from deodar.server.completions import completions
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
        routes=_routes(settings.test_hooks),
        exception_handlers={
            RequestError: _on_error,
            HTTPException: _on_http_error,
            Exception: _on_error,
        },
    )
    app.state.service = Service.of(engine, tokenizer, settings)
    return RequestIds(app)


def _routes(test_hooks: bool) -> list[Route]:
    routes = [
        Route("/", root, methods=["GET", "HEAD"]),
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", get_model, methods=["GET"]),
        Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
    ]
    for path, look in _LOOKS.items():
        routes.append(Route(path, look, methods=["GET"]))
    for path, change in _CHANGES.items():
        methods = ["GET", "POST"] if change is control.flush_cache else ["POST"]
        routes.append(Route(path, control.guarded(change), methods=methods))
    if test_hooks:
        for path, hook in _HOOKS.items():
            routes.append(Route(path, control.guarded(hook), methods=["POST"]))
    return routes


_LOOKS = {
    "/health": health,
    "/health_generate": control.health_generate,
    "/metrics": control.metrics,
    "/version": control.version,
    "/load": control.load,
    "/v1/loads": control.loads,
    "/server_info": control.server_info,
    "/get_server_info": control.server_info,
    "/model_info": control.model_info,
    "/get_model_info": control.model_info,
}
_CHANGES = {
    "/flush_cache": control.flush_cache,
    "/reset_prefix_cache": control.flush_cache,
    "/abort_request": control.abort_request,
    "/abort_requests": control.abort_request,
}
_HOOKS = {"/test/fault": control.test_fault, "/test/script": control.test_script}


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
