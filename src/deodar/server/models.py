"""GET /v1/models, /health and /: what is served and whether it works (spec api 3.1)."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from deodar import __version__
from deodar.server.errors import error_body
from deodar.server.json import dump
from deodar.server.service import Service, service_of


async def list_models(request: Request) -> Response:
    """Every served name."""
    service = service_of(request)
    data = [_model(service, name) for name in service.settings.model_names]
    return _json({"object": "list", "data": data})


async def get_model(request: Request) -> Response:
    """One served name; 404 for others."""
    service = service_of(request)
    return _json(_model(service, service.model_name(request.path_params["name"])))


async def health(request: Request) -> Response:
    """200 if requests can be answered, else 503."""
    if service_of(request).engine.health():
        return _json({"status": "ok"})
    body = error_body("the engine is not ready", status=503, code="engine_not_ready")
    return _json(body, 503, {"retry-after": "1"})


async def root(request: Request) -> Response:
    """Says what this is; some clients probe it before anything else."""
    names = list(service_of(request).settings.model_names)
    return _json({"name": "deodar", "version": __version__, "models": names})


def _model(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.started,
        "owned_by": "deodar",
        "root": service.settings.model_names[0],
        "parent": None,
        "max_model_len": service.settings.context,
    }


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(dump(value), status, headers, media_type="application/json")
