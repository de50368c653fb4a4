"""JSON as clients read it: no NaN, no infinities, no endless nesting, and never an exception."""

from __future__ import annotations

import json
from typing import Any


class _NoJson:
    """What `load_strict_json` returns for a text that is no JSON."""


NO_JSON = _NoJson()


def load_strict_json(text: str) -> Any:
    """The value of a JSON text, or NO_JSON; NaN, infinities and endless nesting are no JSON."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return NO_JSON


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{digits} does not fit a float")
    return value
