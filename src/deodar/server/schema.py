"""Request structs of the routes and their ranges.

What must hold: every field of spec api 3.2 is a field here (honoured), or stands in a table of
`fields.py`; a wrong type or range is a 400 that names field, value and limit.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from deodar.errors import RequestError


class StreamOptions(msgspec.Struct, kw_only=True):
    """`stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Thinking(msgspec.Struct, kw_only=True):
    """`thinking`: the hosted API's switch."""

    type: str


class TemplateKwargs(msgspec.Struct, kw_only=True):
    """`chat_template_kwargs`: the switches that both engines read from there."""

    thinking: bool | None = None
    enable_thinking: bool | None = None
    reasoning_effort: str | int | float | None = None
    drop_thinking: bool | None = None


class FunctionEntry(msgspec.Struct, kw_only=True):
    """A declared function."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolEntry(msgspec.Struct, kw_only=True):
    """One entry of `tools`; entries of hosted-only types are skipped."""

    type: str | None = None
    function: FunctionEntry | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """`response_format`."""

    type: str
    json_schema: dict[str, Any] | None = None


class CallFunction(msgspec.Struct, kw_only=True):
    """The function of a call in the history; arguments as JSON text or as an object."""

    name: str
    arguments: str | dict[str, Any] | None = None


class CallEntry(msgspec.Struct, kw_only=True):
    """A call in the history."""

    function: CallFunction
    id: str | None = None
    type: str | None = None


class MessageEntry(msgspec.Struct, kw_only=True):
    """One message; `name` and other fields are not seen by the model."""

    role: str
    content: str | list[dict[str, Any] | str] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallEntry] | None = None
    tool_call_id: str | None = None
    prefix: bool | None = None


class SamplingBody(msgspec.Struct, kw_only=True):
    """What the routes have in common: how tokens are drawn and how the answer is sent."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    no_stop_trim: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    request_id: str | None = None
    rid: str | None = None


class ChatBody(SamplingBody, kw_only=True):
    """The honoured fields of POST /v1/chat/completions (spec api 3.2)."""

    messages: list[MessageEntry] | None = None
    max_completion_tokens: int | None = None
    tools: list[ToolEntry] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | int | float | None = None
    thinking: Thinking | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    task: str | None = None


class CompletionBody(SamplingBody, kw_only=True):
    """The honoured fields of POST /v1/completions. A list of prompts holds one kind only."""

    prompt: str | list[str | int | list[int]] | None = None
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = None
    return_tokens_as_token_ids: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None


HONOURED = frozenset(ChatBody.__struct_fields__)
COMPLETION_HONOURED = frozenset(CompletionBody.__struct_fields__)
B = TypeVar("B", bound=SamplingBody)

_PLACE = re.compile(r"^(.*) - at `\$\.?(.*)`$", re.DOTALL)
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}\Z")
MAX_STOPS = 16
MAX_LOGPROBS = 20


def typed_body(fields: dict[str, Any], kind: type[B]) -> B:
    """The typed body; RequestError names the field of a wrong type."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        found = _PLACE.match(str(error))
        text, place = (found.group(1), found.group(2)) if found else (str(error), "")
        shown = f"`{place}`: {text[:1].lower()}{text[1:]}" if place else text
        raise RequestError(shown, param=place or None) from None


def check_ranges(body: SamplingBody, *, context: int, vocab_size: int) -> None:
    """Ranges of spec api 3.2; RequestError names field, value and limit."""
    for name in ("max_tokens", "max_completion_tokens"):
        _within(body, name, 1, context)
    _within(body, "temperature", 0, 2)
    _within(body, "min_p", 0, 1)
    _within(body, "top_k", -1, 2**31 - 1)
    _within(body, "logprobs", 0, MAX_LOGPROBS)
    _within(body, "seed", -(2**63), 2**63 - 1)
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise RequestError(
            f"`top_p` is {body.top_p}, it must be above 0 and at most 1", param="top_p"
        )
    stops = stop_strings(body)
    if len(stops) > MAX_STOPS:
        raise RequestError(f"`stop` has {len(stops)} strings, limit is {MAX_STOPS}", param="stop")
    if "" in stops:
        raise RequestError("`stop` holds an empty string", param="stop")
    for token_id in body.stop_token_ids or ():
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"`stop_token_ids` holds {token_id}, the vocabulary has {vocab_size} ids",
                param="stop_token_ids",
            )
    if body.stream_options is not None and not body.stream:
        raise RequestError("`stream_options` needs `stream: true`", param="stream_options")
    for name in ("request_id", "rid"):
        value = getattr(body, name)
        if value is not None and not _REQUEST_ID.match(value):
            raise RequestError(
                f"`{name}` must be 1 to 128 printable ASCII characters without blanks", param=name
            )


def stop_strings(body: SamplingBody) -> list[str]:
    """`stop` as a list."""
    if body.stop is None:
        return []
    return [body.stop] if isinstance(body.stop, str) else body.stop


def _within(body: SamplingBody, name: str, low: float, high: float) -> None:
    value = getattr(body, name, None)
    if value is not None and not low <= value <= high:
        raise RequestError(f"`{name}` is {value}, it must be between {low} and {high}", param=name)
