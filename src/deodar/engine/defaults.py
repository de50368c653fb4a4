"""generation_config.json to the sampling defaults of a model: request > this file > built-in."""

from __future__ import annotations

from collections.abc import Mapping

from deodar.errors import ConfigError
from deodar.types import SamplingParams


def sampling_defaults(generation: Mapping[str, object], eos_token_id: int) -> SamplingParams:
    """Defaults from a parsed generation_config.json; ConfigError names a value out of range.

    Further ids of its `eos_token_id` list become stop tokens; `do_sample: false` is temperature 0.
    """
    greedy = generation.get("do_sample") is False
    limit = _number(generation, "max_new_tokens", 1, 2**31 - 1)
    return SamplingParams(
        temperature=0.0 if greedy else _number(generation, "temperature", 0, 2, 1.0),
        top_p=_number(generation, "top_p", 1e-9, 1, 1.0),
        min_p=_number(generation, "min_p", 0, 1, 0.0),
        top_k=int(_number(generation, "top_k", 0, 2**31 - 1, 0)),
        max_tokens=int(limit) if limit else None,
        stop_token_ids=_other_stops(generation, eos_token_id),
    )


def _number(
    generation: Mapping[str, object], name: str, low: float, high: float, default: float = 0
) -> float:
    value = generation.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"generation_config.json: {name} is {value!r}, it must be a number")
    if not low <= value <= high:
        raise ConfigError(
            f"generation_config.json: {name} is {value}, it must be between {low} and {high}"
        )
    return value


def _other_stops(generation: Mapping[str, object], eos_token_id: int) -> tuple[int, ...]:
    value = generation.get("eos_token_id")
    ids: list[int] = []
    for token_id in value if isinstance(value, list) else [] if value is None else [value]:
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise ConfigError(f"generation_config.json: eos_token_id holds {token_id!r}")
        if token_id != eos_token_id:
            ids.append(token_id)
    return tuple(ids)
