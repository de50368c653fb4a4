"""JSON in and out of HTTP bodies: size is bounded by the reader, depth here."""

from __future__ import annotations

from typing import Any

import msgspec

from deodar.errors import RequestError

MAX_DEPTH = 100

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


def dump(value: Any) -> bytes:
    """Compact JSON bytes, field order as given."""
    return _encoder.encode(value)


def load_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a request body; RequestError if it is none or nested too deeply."""
    try:
        value = _decoder.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object", code="invalid_json")
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return value
    raise _too_deep()


def _too_deep() -> RequestError:
    return RequestError(f"the body nests deeper than {MAX_DEPTH} levels", code="invalid_json")
