"""The JSON shapes of raw completions (spec api 3.2): choices, chunks, legacy log-probabilities.

Pure projections of steps. What must hold: the texts of a stream add up to the whole text, and the
log-probabilities of its chunks to those of the whole body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deodar.engine.ledger import AnswerUsage
from deodar.server.answer import Step
from deodar.server.chat_shapes import Head, usage_body
from deodar.text.events import ContentText
from deodar.text.tokenizer import Detokenizer, Tokenizer

_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


class AnswerShape:
    """One choice: gives the chunk of each step and remembers the whole.

    echo: text before the answer. logprobs: how many of the likeliest tokens to list, None for no
    log-probabilities. ids_as_tokens: write tokens as `token_id:N`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        index: int,
        *,
        echo: str,
        logprobs: int | None,
        ids_as_tokens: bool,
    ) -> None:
        self.usage = AnswerUsage(0, 0, 0, 0)
        self._tokenizer = tokenizer
        self._index = index
        self._echo = echo
        self._count = logprobs
        self._ids_as_tokens = ids_as_tokens
        self._texts: list[str] = []
        self._offset = 0
        self._detokenizer = Detokenizer(tokenizer)
        self._lists: dict[str, list[Any]] = {name: [] for name in _LISTS}
        self._last: Step | None = None

    def add(self, step: Step) -> dict[str, Any] | None:
        """The choice of this step's chunk, None if there is nothing to say."""
        text = "".join(e.text for e in step.events if isinstance(e, ContentText))
        if self._last is None:
            text = self._echo + text
        self._texts.append(text)
        self.usage, self._last = step.usage, step
        lists = self._logprobs(step)
        if not text and step.finish is None and not (lists and lists["tokens"]):
            return None
        return self._choice(text, lists, step)

    def whole(self) -> dict[str, Any]:
        """The choice of the whole body; call after the last step."""
        assert self._last is not None
        lists = None if self._count is None else self._lists
        return self._choice("".join(self._texts), lists, self._last)

    def _choice(self, text: str, lists: dict[str, list[Any]] | None, step: Step) -> dict[str, Any]:
        choice = {
            "index": self._index,
            "text": text,
            "logprobs": lists,
            "finish_reason": step.finish,
            "stop_reason": step.stop_reason,
        }
        return choice if step.finish is None else {**choice, "seed": step.seed}

    def _logprobs(self, step: Step) -> dict[str, list[Any]] | None:
        """The legacy lists of this step's tokens, also added to the whole's.

        An offset is that of the first character that the token has a share in; special tokens
        have no text.
        """
        if self._count is None:
            return None
        lists: dict[str, list[Any]] = {name: [] for name in _LISTS}
        record = step.record
        for place in range(step.first, step.last):
            token, logprob = record.token_ids[place], record.logprobs[place]
            top = {self._text(token): logprob}
            if self._count:
                best = record.top_logprobs[place]
                top = {self._text(i): value for i, value in best} | top
            lists["tokens"].append(self._text(token))
            lists["token_logprobs"].append(logprob)
            lists["top_logprobs"].append(top)
            lists["text_offset"].append(self._offset)
            shown = [p for p in self._detokenizer.push((token,)) if not p.special]
            self._offset += sum(len(piece.text) for piece in shown)
        for name, values in lists.items():
            self._lists[name] += values
        return lists

    def _text(self, token: int) -> str:
        """A token's text; bytes that are no character by themselves are spelled out."""
        if self._ids_as_tokens:
            return f"token_id:{token}"
        raw = self._tokenizer.token_bytes(token)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def total_usage(shapes: Sequence[AnswerShape]) -> AnswerUsage:
    """The sum over all choices so far."""
    usages = [shape.usage for shape in shapes]
    return AnswerUsage(
        prompt=sum(u.prompt for u in usages),
        completion=sum(u.completion for u in usages),
        cached=sum(u.cached for u in usages),
        reasoning=0,
    )


def body_of(head: Head, shapes: Sequence[AnswerShape]) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    choices = [shape.whole() for shape in shapes]
    return {**head.fields(), "choices": choices, "usage": usage_body(total_usage(shapes))}


def chunk_of(head: Head, choice: dict[str, Any], usage: AnswerUsage | None) -> dict[str, Any]:
    """One chunk of a stream, with running usage if asked for."""
    count = None if usage is None else usage_body(usage)
    return {**head.fields(), "choices": [choice], "usage": count}


def usage_chunk_of(head: Head, usage: AnswerUsage) -> dict[str, Any]:
    """The separate usage chunk at the end of a stream."""
    return {**head.fields(), "choices": [], "usage": usage_body(usage)}
