"""The JSON shapes of chat answers (spec api 3.3 and 3.4): chunks, the whole body, usage.

Pure projections of steps. What must hold: reasoning and content never share a delta, and the deltas
of a stream add up to the whole message.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from deodar import __version__
from deodar.engine.ledger import AnswerUsage
from deodar.server.answer import Step
from deodar.server.json import dump
from deodar.text.events import (
    CallArguments,
    CallEnd,
    CallStart,
    ContentText,
    Event,
    ReasoningText,
)

FINGERPRINT = f"deodar-{__version__}"


_AFTER_DELTA = b',"logprobs":null,"finish_reason":null}],"usage":'


@dataclass(frozen=True, slots=True)
class Head:
    """The fields that all chunks of one answer share; `front`: a chunk's frame up to its delta."""

    id: str
    object: str
    created: int
    model: str
    front: bytes

    @classmethod
    def of(cls, request_id: str, model: str, kind: str) -> Head:
        head = cls(request_id, kind, int(time.time()), model, b"")
        fields = dump(head.fields())[:-1]
        front = b"data: " + fields + b',"choices":[{"index":0,"delta":'
        return replace(head, front=front)

    def fields(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }

    def delta_frame(
        self, delta: dict[str, Any], *, usage: AnswerUsage | Literal[False] = False
    ) -> bytes:
        """The frame of one delta, with running usage if given; only the delta is encoded anew."""
        count = dump(usage_body(usage)) if usage else b"null"
        return self.front + dump(delta) + _AFTER_DELTA + count + b"}\n\n"

    def finish_chunk(
        self, step: Step, *, usage: AnswerUsage | Literal[False] = False
    ) -> dict[str, Any]:
        """The last chunk of the choice; it also tells the seed that was used."""
        choice = {
            "index": 0,
            "delta": {},
            "logprobs": None,
            "finish_reason": step.finish,
            "stop_reason": step.stop_reason,
        }
        body = {**self.fields(), "choices": [choice], "seed": step.seed}
        body["usage"] = usage_body(usage) if usage else None
        return body

    def usage_chunk(self, usage: AnswerUsage) -> dict[str, Any]:
        """The separate usage chunk at the end of a stream."""
        return {**self.fields(), "choices": [], "usage": usage_body(usage)}


def usage_body(usage: AnswerUsage) -> dict[str, Any]:
    """Token counts; the details are always there."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
        "prompt_cache_hit_tokens": usage.cached,
        "prompt_cache_miss_tokens": usage.prompt - usage.cached,
    }


def deltas(events: Iterable[Event], *, reasoning: bool) -> Iterator[dict[str, Any]]:
    """Chat deltas of parser events, one each; reasoning is left out if not wanted."""
    for event in events:
        match event:
            case ReasoningText(text):
                if reasoning:
                    yield {"reasoning_content": text}
            case ContentText(text):
                yield {"content": text}
            case CallStart(index, call_id, name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": call_id, "type": "function", "function": function}
                yield {"tool_calls": [call]}
            case CallArguments(index, text):
                yield {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            case CallEnd():
                pass


class WholeAnswer:
    """Sums steps up to the body of an answer that is not streamed."""

    def __init__(self) -> None:
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[tuple[CallStart, list[str]]] = []
        self._last: Step | None = None

    def add(self, step: Step) -> None:
        self._last = step
        for event in step.events:
            match event:
                case ReasoningText(text):
                    self._reasoning.append(text)
                case ContentText(text):
                    self._content.append(text)
                case CallStart():
                    self._calls.append((event, []))
                case CallArguments(index, text):
                    self._calls[index][1].append(text)
                case CallEnd():
                    pass

    def body(self, head: Head, *, reasoning: bool) -> dict[str, Any]:
        """The response body; call after the last step."""
        last = self._last
        assert last is not None
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._content)}
        if reasoning and self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [
                {
                    "id": start.id,
                    "type": "function",
                    "function": {"name": start.name, "arguments": "".join(arguments)},
                }
                for start, arguments in self._calls
            ]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": last.finish,
            "stop_reason": last.stop_reason,
        }
        usage = usage_body(last.usage)
        return {**head.fields(), "choices": [choice], "usage": usage, "seed": last.seed}
