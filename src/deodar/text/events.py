"""What an answer is made of: the events of the parser, in the order in which they happened.

A whole answer is the sum of its events. Calls are numbered from 0 and one call's events are
contiguous. Read by the server's projections, `deodar chat` and `LLM.chat`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasoningText:
    """More reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentText:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; its name is complete. `index` counts from 0 in one answer."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, as JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call's arguments are complete JSON."""

    index: int


Event = ReasoningText | ContentText | CallStart | CallArguments | CallEnd
