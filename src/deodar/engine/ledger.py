"""The ledger: one record of committed tokens per request (design D6).

Usage objects, log-probabilities, metrics and benchmarks read records and nothing else. The server
and `LLM` write them from engine events. What must hold: a token counts exactly when it was read
into the answer; a record ends exactly once; counts never shrink.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from deodar.types import TokenEvent, TopLogprobs, Usage

EndReason = Literal["stop", "length", "tool_calls", "abort", "error"]


@dataclass(frozen=True, slots=True)
class AnswerUsage:
    """Token counts as clients see them; reasoning tokens are part of the completion tokens."""

    prompt: int
    completion: int
    cached: int
    reasoning: int


@dataclass(frozen=True, slots=True)
class Commit:
    """One step of a request. time: monotonic seconds. drafted, accepted: of this step."""

    time: float
    tokens: int
    drafted: int
    accepted: int


@dataclass(slots=True, kw_only=True)
class Record:
    """What became of one request. Times are monotonic seconds, None until they happen.

    client_id: the id that the client chose, if any. engine: the engine's newest counts. sent: when
    the first token had been handed to the connection. asked_to_end: somebody aborted it by name.
    """

    request_id: str
    prompt_tokens: int
    arrival: float
    client_id: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[TopLogprobs] = field(default_factory=list)
    reasoning_tokens: int = 0
    engine: Usage | None = None
    commits: list[Commit] = field(default_factory=list)
    scheduled: float | None = None
    sent: float | None = None
    ended: float | None = None
    reason: EndReason | None = None
    asked_to_end: bool = False

    @property
    def cached_tokens(self) -> int:
        return self.engine.cached_tokens if self.engine else 0

    @property
    def usage(self) -> AnswerUsage:
        """The counts so far."""
        return AnswerUsage(
            prompt=self.prompt_tokens,
            completion=len(self.token_ids),
            cached=self.cached_tokens,
            reasoning=self.reasoning_tokens,
        )

    def spans(self) -> dict[str, float]:
        """Seconds of each phase that has been completed (spec api 5.3).

        queue: arrival to first scheduling. prefill: to the first token. decode: to the last token.
        """
        spans: dict[str, float] = {}
        if self.scheduled is not None:
            spans["queue"] = self.scheduled - self.arrival
            if self.commits:
                spans["prefill"] = self.commits[0].time - self.scheduled
        if self.commits:
            spans["decode"] = self.commits[-1].time - self.commits[0].time
        if self.sent is not None:
            spans["first_token"] = self.sent - self.arrival
        if self.ended is not None:
            spans["whole"] = self.ended - self.arrival
        return spans


class Observer(Protocol):
    """Somebody who adds up records. The record is already up to date when it is called."""

    def committed(self, record: Record, commit: Commit, reasoning: int) -> None:
        """Tokens were read; reasoning: how many reasoning tokens became certain."""
        ...

    def sent(self, record: Record) -> None:
        """The first token was sent."""
        ...

    def ended(self, record: Record) -> None:
        """The record is complete."""
        ...


class Ledger:
    """Open records and those who watch; ended records are given to the observers and forgotten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.open: dict[str, Record] = {}
        self.observers: list[Observer] = []
        self.tokens = 0
        self._clock = clock

    def begin(
        self, request_id: str, prompt_tokens: int, arrival: float, client_id: str = ""
    ) -> Record:
        """A new record."""
        record = Record(
            request_id=request_id,
            prompt_tokens=prompt_tokens,
            arrival=arrival,
            client_id=client_id,
        )
        self.open[request_id] = record
        return record

    def commit(self, record: Record, event: TokenEvent, read: int, reasoning: int = 0) -> None:
        """Count the first `read` tokens of an event; reasoning: reasoning tokens so far."""
        before = record.engine or Usage(prompt_tokens=record.prompt_tokens, completion_tokens=0)
        after = record.engine = event.usage
        record.scheduled = event.scheduled
        record.token_ids += event.token_ids[:read]
        record.logprobs += event.logprobs[:read]
        record.top_logprobs += event.top_logprobs[:read]
        grown, record.reasoning_tokens = reasoning - record.reasoning_tokens, reasoning
        if not read and not grown:
            return
        commit = Commit(
            time=self._clock(),
            tokens=read,
            drafted=after.drafted_tokens - before.drafted_tokens,
            accepted=min(after.accepted_tokens - before.accepted_tokens, read),
        )
        if read:
            record.commits.append(commit)
        self.tokens += read
        for observer in self.observers:
            observer.committed(record, commit, grown)

    def sent(self, record: Record) -> None:
        """The first token has been handed to the connection; later calls do nothing."""
        if record.sent is None and record.commits:
            record.sent = self._clock()
            for observer in self.observers:
                observer.sent(record)

    def end(self, record: Record, reason: EndReason) -> None:
        """Close a record; later calls do nothing."""
        if record.reason is not None:
            return
        record.reason, record.ended = reason, self._clock()
        self.open.pop(record.request_id, None)
        for observer in self.observers:
            observer.ended(record)

    def discard(self, record: Record) -> None:
        """The request was refused: it never was one."""
        self.open.pop(record.request_id, None)

    def named(self, name: str) -> list[Record]:
        """Open records with this id, ours or the client's."""
        return [r for r in self.open.values() if name in (r.request_id, r.client_id)]
