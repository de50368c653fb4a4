"""The one parser of answers: pieces in, reasoning, content and tool calls out (spec api 2).

Whole answers and streams use the same machine: a whole answer is the sum of its events. What must
hold: the events, joined, do not depend on how the pieces are cut; nothing the model writes raises;
no markup that belongs to a call is ever shown as content.

    reasoning ──</think>──> answer ──┐ <D calls>          D is the one special token of call markup;
        │                            ├──────> block ──<D invoke name="N">──> params
        └──────── <D calls> ─────────┘          │  <────────</D invoke>───────┘ │ ↑
                                     done <─────┘ </D calls>     <D parameter…> ↓ │ </D parameter>
                                                                               value

Markers are recognised by token, not by letters: one that the model spells out stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Literal

from deodar.text import tags
from deodar.text.events import (
    CallArguments,
    CallEnd,
    CallStart,
    ContentText,
    Event,
    ReasoningText,
)
from deodar.text.segments import Piece, Start
from deodar.text.stop import StopMatcher
from deodar.text.strict_json import NO_JSON, load_strict_json

State = Literal["reasoning", "answer", "block", "params", "value", "done", "stopped"]
ValueKind = Literal["text", "json", "auto"]


class Parser:
    """Reads one answer. `state` and `stop_match` may be looked at between pushes.

    tools: False shows no markup and delivers no call (P18). new_call_id: makes the ids of calls.
    stop: strings that end the answer text (spec api 2.5). max_calls: further calls are dropped.
    """

    def __init__(
        self,
        start: Start,
        *,
        tools: bool,
        new_call_id: Callable[[], str],
        stop: Sequence[str] = (),
        include_stop: bool = False,
        max_calls: int | None = None,
    ) -> None:
        self.state: State = start.state
        self.finished_calls = 0
        self._tools = tools
        self._new_call_id = new_call_id
        self._max_calls = max_calls
        self._stop = StopMatcher(stop, include=include_stop)
        self._trim = not start.continuation
        self._buffer = ""
        self._events: list[Event] = []
        self._origin: State = "answer"
        self._bare = False
        self._calls = 0
        self._open_call: int | None = None
        self._muted = False
        self._parameters = 0
        self._kind: ValueKind = "text"
        self._raw = ""

    @property
    def stop_match(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return self._stop.match

    @property
    def call_limit_reached(self) -> bool:
        """Whether `max_calls` calls are complete, so that nothing more is wanted."""
        return self._max_calls is not None and self.finished_calls >= self._max_calls

    def push(self, pieces: Sequence[Piece]) -> list[Event]:
        """Events that are certain after these pieces, in order."""
        if len(pieces) == 1 and self._is_plain(pieces[0]):
            text = pieces[0].text
            return [ReasoningText(text) if self.state == "reasoning" else ContentText(text)]
        for piece in pieces:
            if piece.special:
                self._buffer += tags.INNER.get(piece.text, "")
            else:
                self._buffer += piece.text
        return self._drain(final=False)

    def _is_plain(self, piece: Piece) -> bool:
        """Text in the middle of free text that means nothing: most tokens, so it is quick."""
        return (
            self.state in ("reasoning", "answer")
            and not (piece.special or self._buffer or self._trim or self._stop.active)
            and not tags.held_tail(piece.text, newlines=True)
        )

    def finish(self, *, cut: bool) -> list[Event]:
        """The rest. cut: the engine stopped the model (P8); else missing closes are repaired."""
        self._drain_into(final=True)
        if self.state == "value":
            self._finish_value(cut)
        if self.state == "params":
            if not cut:
                self._end_call("")
            elif not self._parameters and self._buffer.lstrip().startswith("{"):
                self._argue(tags.spell(self._buffer).lstrip())
        self._flush_stop()
        return self._take_events()

    def _drain(self, *, final: bool) -> list[Event]:
        self._drain_into(final=final)
        return self._take_events()

    def _drain_into(self, *, final: bool) -> None:
        while True:
            match self.state:
                case "reasoning" | "answer":
                    more = self._step_free(final)
                case "block" | "done":
                    more = self._step_block(final)
                case "params":
                    more = self._step_params(final)
                case "value":
                    more = self._step_value(final)
                case _:
                    self._buffer, more = "", False
            if not more:
                return

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    # Free text: reasoning and answer.

    def _step_free(self, final: bool) -> bool:
        found = tags.ANY.search(self._buffer)
        if found is None:
            keep = 0 if final else tags.held_tail(self._buffer, newlines=True)
            self._emit_free(self._cut(len(self._buffer) - keep))
            return False
        at, marker = found.start(), found.group()
        if marker == tags.DSML_MARK:
            return self._free_dsml(at, final)
        if marker == tags.END_MARK:
            if self.state == "reasoning":
                self._emit_free(self._cut(at).rstrip("\n"))
                self._cut(1)
                self.state, self._trim = "answer", True
            else:
                self._buffer = self._buffer[:at] + self._buffer[at + 1 :]
        elif self.state == "reasoning" and self._trim and not self._buffer[:at].strip("\n"):
            self._cut(at + 1)
        else:
            self._emit_free(tags.spell(self._cut(at + 1)))
        return True

    def _free_dsml(self, at: int, final: bool) -> bool:
        """A call marker in free text: a block, a bare invoke, a stray close or plain text."""
        tag = self._tag_at(at)
        opens = (tags.OPEN_CALLS, tags.OPEN_INVOKE) if not tag.closing else (tags.CLOSE,)
        for pattern in opens if tag.begin < at else ():
            match = pattern.match(tag.rest)
            if match is None:
                continue
            self._emit_free(self._cut(tag.begin).rstrip("\n"))
            if self.state == "stopped":
                return True
            if tag.closing:  # closes nothing: no markup is shown
                self._cut(at - tag.begin + 1 + match.end())
                return True
            self._origin, self._bare = self.state, pattern is tags.OPEN_INVOKE
            self.state = "block"
            if not self._bare:
                self._cut(at - tag.begin + 1 + match.end())
            return True
        if tag.pending:
            keep = self._buffer[: tag.begin].rstrip("\n")
            self._emit_free(keep)
            self._buffer = "" if final else self._buffer[len(keep) :]
            return False
        if self._tools:
            self._emit_free(tags.spell(self._cut(at + 1)))
        else:
            self._emit_free(self._cut(tag.begin))
            self._cut(at + 1 - tag.begin)
        return True

    def _emit_free(self, text: str) -> None:
        if self._trim:
            text = text.lstrip("\n")
        if not text:
            return
        self._trim = False
        if self.state == "reasoning":
            self._emit(ReasoningText(text))
            return
        shown = self._stop.push(text)
        if shown:
            self._emit(ContentText(shown))
        if self._stop.match is not None:
            self.state = "stopped"

    def _flush_stop(self) -> None:
        held = self._stop.flush()
        if held:
            self._emit(ContentText(held))

    # Call markup.

    def _step_block(self, final: bool) -> bool:
        """Between calls and after the block: only tags count, text is dropped (P17)."""
        found = self._buffer.find(tags.DSML_MARK)
        if found < 0:
            self._cut(len(self._buffer) - tags.held_tail(self._buffer))
            return False
        tag = self._tag_at(found)
        end = found + 1
        if tag.closing and (match := tags.CLOSE.match(tag.rest)):
            self._cut(end + match.end())
            if match.group(1).endswith("calls"):
                self._leave_block()
            return True
        if not tag.closing and (match := tags.OPEN_CALLS.match(tag.rest)):
            self._cut(end + match.end())
            self.state = "block"
            return True
        invoke = None if tag.closing or self.state == "done" else tags.OPEN_INVOKE.match(tag.rest)
        if invoke:
            self._cut(end + invoke.end())
            self._start_call(tags.spell(invoke.group(1)), closed=bool(invoke.group(2)))
            return True
        if tag.pending:
            self._cut(tag.begin)
            return False
        self._cut(end)
        return True

    def _leave_block(self) -> None:
        self.state = "done" if self._tools else self._origin

    def _start_call(self, name: str, *, closed: bool) -> None:
        full = self._max_calls is not None and self._calls >= self._max_calls
        self._muted = full or not self._tools
        self._parameters = 0
        self.state = "params"
        if not self._muted:
            self._flush_stop()
            self._open_call = self._calls
            self._calls += 1
            self._emit(CallStart(self._open_call, self._new_call_id(), name))
        if closed:
            self._end_call("")

    def _end_call(self, body: str) -> None:
        """Close the arguments: `}` after parameters, else the body if it is an object (P5)."""
        if self._parameters:
            self._argue("}")
        else:
            text = tags.spell(body).strip()
            self._argue(text if isinstance(load_strict_json(text), dict) else "{}")
        if not self._muted and self._open_call is not None:
            self._emit(CallEnd(self._open_call))
            self.finished_calls += 1
        self._open_call = None
        self.state = "block"
        if self._bare and not self._tools:
            self._leave_block()

    def _step_params(self, final: bool) -> bool:
        found = self._buffer.find(tags.DSML_MARK)
        if found < 0:
            if self._parameters:  # text between parameters means nothing
                self._cut(len(self._buffer) - tags.held_tail(self._buffer))
            return False
        tag = self._tag_at(found)
        end = found + 1
        if tag.closing and (match := tags.CLOSE.match(tag.rest)):
            body = self._buffer[: tag.begin]
            if match.group(1) == "invoke":
                self._cut(end + match.end())
                self._end_call(body)
            elif match.group(1) == "parameter":  # closes nothing
                self._buffer = body + self._buffer[end + match.end() :]
            else:  # the invoke's own close is missing (P15); the block's tag is read by the block
                self._cut(tag.begin)
                self._end_call(body)
            return True
        if not tag.closing and (match := tags.OPEN_PARAMETER.match(tag.rest)):
            self._cut(end + match.end())
            self._start_parameter(match)
            return True
        if not tag.closing and tags.OPEN_INVOKE.match(tag.rest):
            self._end_call(self._cut(tag.begin))
            return True
        if tag.pending:
            if final:
                self._buffer = self._buffer[: tag.begin]
            return False
        self._buffer = self._buffer[: tag.begin] + self._buffer[end:]
        return True

    def _start_parameter(self, match: re.Match[str]) -> None:
        flag = match.group(1) or match.group(3)
        self._kind = "text" if flag == "true" else "json" if flag == "false" else "auto"
        self._raw = ""
        key = json.dumps(tags.spell(match.group(2)), ensure_ascii=False)
        self._argue(("{" if not self._parameters else ", ") + key + ": ")
        self._parameters += 1
        self.state = "value"
        if self._kind == "text":
            self._argue('"')
        if match.group(4):
            self._end_value()

    def _step_value(self, final: bool) -> bool:
        """A value runs to the next closing tag; any other markup in it is text."""
        at = self._buffer.find(f"</{tags.DSML_MARK}")
        if at < 0:
            keep = 0 if final else tags.held_tail(self._buffer)
            self._take_value(self._cut(len(self._buffer) - keep))
            return False
        rest = self._buffer[at + 3 : at + 3 + tags.TAG_CHARS]
        if match := tags.CLOSE.match(rest):
            self._take_value(self._cut(at))
            if match.group(1) == "parameter":
                self._cut(3 + match.end())
            self._end_value()
            return True
        if tags.may_become_tag(rest, tags.WORDS, closing=True):
            self._take_value(self._cut(at))
            if final:
                self._buffer = ""
            return False
        self._take_value(self._cut(at + 3))
        return True

    def _take_value(self, text: str) -> None:
        text = tags.spell(text)
        if self._kind == "text":
            self._argue(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            self._raw += text

    def _end_value(self) -> None:
        if self._kind == "text":
            self._argue('"')
        else:
            # P3, P4: what is no JSON becomes a JSON string, to its last blank.
            value = self._raw.strip()
            is_json = load_strict_json(value) is not NO_JSON
            self._argue(value if is_json else json.dumps(self._raw, ensure_ascii=False))
        self.state = "params"

    def _finish_value(self, cut: bool) -> None:
        if not cut:
            self._end_value()
        elif self._kind != "text":
            self._argue(self._raw.lstrip())

    # Buffer and events.

    def _tag_at(self, at: int) -> tags.Tag:
        free = self.state in ("reasoning", "answer")
        return tags.tag_at(self._buffer, at, tags.WORDS[:3] if free else tags.WORDS)

    def _cut(self, count: int) -> str:
        head, self._buffer = self._buffer[:count], self._buffer[count:]
        return head

    def _argue(self, text: str) -> None:
        if text and not self._muted and self._open_call is not None:
            self._emit(CallArguments(self._open_call, text))

    def _emit(self, event: Event) -> None:
        last = self._events[-1] if self._events else None
        match event, last:
            case (ReasoningText(more), ReasoningText(text)):
                self._events[-1] = ReasoningText(text + more)
            case (ContentText(more), ContentText(text)):
                self._events[-1] = ContentText(text + more)
            case (CallArguments(index, more), CallArguments(_, text)):
                self._events[-1] = CallArguments(index, text + more)
            case _:
                self._events.append(event)
