"""Error bodies and statuses of the HTTP routes (spec api 3.7)."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from deodar.errors import DeodarError, RequestError
from deodar.server.json import dump

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "internal_server_error",
    501: "not_implemented_error",
    503: "service_unavailable_error",
}


class EngineFailure(DeodarError):
    """The engine ended this request with an error; other requests go on."""


class AnswerAborted(DeodarError):
    """The answer was cut off: the client went away, or the server stops."""


def error_body(
    message: str, *, status: int, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The nested error object of the chat route, also sent inside streams."""
    kind = _TYPES.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def body_and_status(error: Exception) -> tuple[dict[str, Any], int]:
    """What a client is told about an exception. Unexpected ones show no detail."""
    if isinstance(error, RequestError):
        body = error_body(str(error), status=error.status, param=error.param, code=error.code)
        return body, error.status
    if isinstance(error, AnswerAborted):
        return error_body(str(error), status=503, code="draining"), 503
    text = str(error) if isinstance(error, EngineFailure) else "internal error"
    return error_body(text, status=500, code="internal_error"), 500


def error_response(error: Exception, headers: dict[str, str] | None = None) -> Response:
    """The response for an exception raised before the first byte."""
    body, status = body_and_status(error)
    headers = dict(headers or {})
    if status == 503:
        headers["retry-after"] = "1"
    if status in (500, 501):  # a second try would fail again; the SDKs retry unless told
        headers["x-should-retry"] = "false"
    return Response(dump(body), status, headers, media_type="application/json")


def context_error(prompt_tokens: int | str, context: int, param: str = "messages") -> RequestError:
    """The wording that clients look for to compact their history; digits without commas.

    prompt_tokens: the number, or words for a bound of it.
    """
    return RequestError(
        f"This model's maximum context length is {context} tokens. However, your prompt has "
        f"{prompt_tokens} tokens and leaves no room for an answer. Please shorten the {param}.",
        param=param,
        code="context_length_exceeded",
    )
