"""What a request must satisfy before it may wait. Pure functions; errors as api 3.7 words them."""

from __future__ import annotations

import math
from numbers import Integral, Real

from deodar.errors import RequestError
from deodar.types import GenerateRequest, SamplingParams

MAX_TOP_LOGPROBS = 20


def check_request(request: GenerateRequest, *, context: int, vocab_size: int) -> None:
    """RequestError if the prompt is empty, has foreign ids, leaves no room or asks too much."""
    count = len(request.prompt_ids)
    if count == 0:
        raise RequestError("the prompt is empty, it must have at least 1 token", param="prompt")
    for place, token in enumerate(request.prompt_ids):
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"prompt token {place} is {token}, it must be from 0 to {vocab_size - 1}",
                param="prompt",
            )
    check_sampling(request.sampling)
    if count >= context:
        raise RequestError(
            f"This model's maximum context length is {context} tokens. Your prompt has {count} "
            "tokens, which leaves no room for an answer. Please shorten it.",
            param="prompt",
            code="context_length_exceeded",
        )


def check_sampling(params: SamplingParams) -> None:
    """RequestError naming the first parameter that is out of range (api 3.2)."""
    _range("temperature", params.temperature, 0, 2)
    _range("top_p", params.top_p, 0, 1)
    if params.top_p == 0:
        raise RequestError("top_p is 0, it must be above 0 and at most 1", param="top_p")
    _range("min_p", params.min_p, 0, 1)
    _whole("top_k", params.top_k, 0, 2**31 - 1)
    _whole("top_logprobs", params.top_logprobs, 0, MAX_TOP_LOGPROBS)
    if params.seed is not None:
        _whole("seed", params.seed, 0, 2**63 - 1)
    if params.max_tokens is not None:
        _whole("max_tokens", params.max_tokens, 1, 2**31 - 1)


def _whole(name: str, value: float, low: int, high: int) -> None:
    if not isinstance(value, Integral):  # a fraction would be cut off later without a word
        raise RequestError(f"{name} is {value!r}, it must be an integer", param=name)
    _range(name, value, low, high)


def _range(name: str, value: float, low: float, high: float) -> None:
    if not isinstance(value, Real):
        raise RequestError(f"{name} is {value!r}, it must be a number", param=name)
    if not (math.isfinite(value) and low <= value <= high):
        raise RequestError(f"{name} is {value}, it must be from {low} to {high}", param=name)
