"""Reading JSON files that may be damaged: every failure is one CheckpointError line.

Called by the loader (config, index) and by the Engram token map.
"""

from __future__ import annotations

import json
from pathlib import Path

from deodar.errors import CheckpointError

MAX_BYTES = 256 * 2**20


def parse_object(text: bytes, name: str) -> dict[str, object]:
    """UTF-8 JSON object without duplicate keys or NaN; `name` begins the error text."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        result = dict(pairs)
        if len(result) != len(pairs):
            seen: set[str] = set()
            twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
            raise CheckpointError(f"{name}: the name {twice[:200]!r} appears twice")
        return result

    def refuse(word: str) -> object:
        raise CheckpointError(f"{name}: {word} is no JSON number")

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except CheckpointError:
        raise
    except RecursionError:
        raise CheckpointError(f"{name}: JSON is nested too deeply") from None
    except ValueError as error:  # includes decoding errors and numbers of absurd length
        raise CheckpointError(f"{name}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{name}: must hold a JSON object, holds {type(value).__name__}")
    return value


def read_object(path: Path) -> dict[str, object]:
    """The JSON object in a file; CheckpointError if it is missing, unreadable or too large."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise CheckpointError(f"{path.name}: {size} bytes, limit is {MAX_BYTES}")
        text = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path.name} is missing in {path.parent}") from None
    except OSError as error:
        raise CheckpointError(f"{path.name}: {error.strerror or error}") from None
    return parse_object(text, path.name)
