"""Conversation to prompt: the V4.1 chat format of spec api 1, written as pieces.

The server (all protocols), `deodar chat` and `LLM.chat` build a `Conversation` and call `render`.
What must hold: nothing is trimmed, only pieces written here are special, and the prompt depends on
nothing that the model does not see (ids, key spacing of arguments, metadata). The vendor's
`deepseek-recipe` is the oracle in the tests; where it and spec api 1 differ, the spec wins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from deodar.errors import RequestError
from deodar.text.segments import (
    ASSISTANT,
    BOS,
    DSML,
    END_THINK,
    EOS,
    IMAGE,
    REMINDER,
    SYSTEM,
    THINK,
    USER,
    PieceWriter,
    Prompt,
    Start,
)
from deodar.text.strict_json import load_strict_json
from deodar.text.tool_prompt import AFTER_SCHEMAS, BEFORE_SCHEMAS, RESPONSE_FORMAT

Role = Literal["system", "user", "assistant", "tool", "latest_reminder"]
EFFORT_WORDS = {
    "minimal": 50,
    "low": 50,
    "medium": 75,
    "high": 75,
    "xhigh": 75,
    "max": 100,
    "ultra": 100,
}
DEFAULT_EFFORT = 75


@dataclass(frozen=True, slots=True)
class ImagePart:
    """Stands where an image is; the renderer writes its placeholder."""


Content = tuple[str | ImagePart, ...]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call in the history. `arguments` is the JSON text as it came; it may be no JSON at all."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. Parts of `content` are joined by a blank line. `prefix`: continue this text."""

    role: Role
    content: Content = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """A declared function. `parameters` is its JSON schema, key order as the client gave it."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """All that decides a prompt, the same for every protocol.

    effort: 1 to 100, written only while thinking. tool_choice: "auto", "none" (tools are hidden) or
    "required" (the prompt ends inside an opened block; chat mode only). response_schema: shown to
    the model (spec api 1.7). keep_reasoning: never drop old reasoning. task: spec api 1.10.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: Literal["auto", "none", "required"] = "auto"
    thinking: bool = True
    effort: int = DEFAULT_EFFORT
    response_schema: dict[str, Any] | None = None
    keep_reasoning: bool = False
    task: str | None = None
    add_generation_prompt: bool = True


def render(conversation: Conversation) -> Prompt:
    """The prompt of a conversation (spec api 1.2) and where its answer starts.

    RequestError if tool results and calls do not match (spec api 1.8).
    """
    check_tool_results(conversation.messages)
    out = PieceWriter()
    out.special(BOS)
    messages = list(conversation.messages)
    lead = messages.pop(0) if messages and messages[0].role == "system" else None
    _write_lead(out, conversation, lead)
    last_turn = max((i for i, m in enumerate(messages) if m.role in ("user", "system")), default=-1)
    keep_all = conversation.keep_reasoning or _shows_tools(conversation)
    start = None
    for index, group in _grouped(messages):
        role = group[0].role
        if role == "assistant":
            keep = conversation.thinking and (keep_all or index > last_turn)
            is_last = index == len(messages) - 1
            start = _write_assistant(out, conversation, group[0], keep=keep, is_last=is_last)
        elif role == "system":
            out.special(SYSTEM)
            _write_content(out, group[0].content)
        elif role == "latest_reminder":
            out.special(REMINDER)
            _write_content(out, group[0].content)
        else:
            _write_user_turn(out, group, _order_of_calls(messages, index))
    if start is None:
        start = _write_tail(out, conversation)
    if conversation.tool_choice == "required" and start.state == "answer":
        start = _open_block(out)
    return Prompt(out.finish(), start)


def check_tool_results(messages: Sequence[Message]) -> None:
    """Each call of an assistant turn is answered once, each result belongs to such a call.

    RequestError names the id (spec api 1.8). Calls of the last message need no answer yet.
    """
    waiting: dict[str, bool] = {}
    for index, message in enumerate(messages):
        if message.role == "tool":
            _take_result(waiting, message.tool_call_id, index)
        elif message.role == "assistant":
            _check_answered(waiting, index)
            waiting = {}
            for call in message.tool_calls:
                if call.id in waiting:
                    raise _bad_messages(f"the tool call id {call.id!r} is used twice", index)
                waiting[call.id] = False
    if messages and messages[-1].role != "assistant":
        _check_answered(waiting, len(messages) - 1)


def _take_result(waiting: dict[str, bool], call_id: str, index: int) -> None:
    if call_id not in waiting:
        raise _bad_messages(
            f"the tool result for id {call_id!r} answers no call of the assistant turn before it",
            index,
        )
    if waiting[call_id]:
        raise _bad_messages(f"the tool call id {call_id!r} is answered twice", index)
    waiting[call_id] = True


def _check_answered(waiting: dict[str, bool], index: int) -> None:
    missing = [call_id for call_id, answered in waiting.items() if not answered]
    if missing:
        raise _bad_messages(f"the tool call id {missing[0]!r} has no tool result", index)


def _bad_messages(text: str, index: int) -> RequestError:
    return RequestError(f"messages[{index}]: {text}", param="messages")


def _shows_tools(conversation: Conversation) -> bool:
    return bool(conversation.tools) and conversation.tool_choice != "none"


def _write_lead(out: PieceWriter, conversation: Conversation, lead: Message | None) -> None:
    has_text = lead is not None and any(lead.content)
    has_format = conversation.response_schema is not None
    if not (conversation.thinking or has_text or _shows_tools(conversation) or has_format):
        return
    out.special(SYSTEM)
    if conversation.thinking:
        out.text(
            f"Reasoning Effort: {conversation.effort} (range 1-100, the higher the value, "
            "the more thorough the reasoning)\n\n"
        )
    if lead is not None:
        _write_content(out, lead.content)
    if _shows_tools(conversation):
        _write_marked(out, BEFORE_SCHEMAS)
        out.text("\n".join(_schema_line(tool) for tool in conversation.tools))
        _write_marked(out, AFTER_SCHEMAS)
    if has_format:
        out.text(RESPONSE_FORMAT + dump_json(conversation.response_schema))


def _write_marked(out: PieceWriter, text: str) -> None:
    """Fixed text of the format: the markup that it shows consists of special tokens."""
    for part in re.split(f"({THINK}|{END_THINK}|{DSML})", text):
        if part in (THINK, END_THINK, DSML):
            out.special(part)
        else:
            out.text(part)


def _schema_line(tool: Tool) -> str:
    return dump_json(
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    )


def dump_json(value: Any) -> str:
    """One line of JSON as the model knows it: ", " and ": ", letters kept as they are."""
    return json.dumps(value, ensure_ascii=False)


def _write_content(out: PieceWriter, content: Content) -> None:
    for index, part in enumerate(content):
        if index:
            out.text("\n\n")
        if isinstance(part, ImagePart):
            out.special(IMAGE)
        else:
            out.text(part)


def _grouped(messages: list[Message]) -> list[tuple[int, list[Message]]]:
    """(index of the group's first message, group): users and tool results in a row share a turn."""
    groups: list[tuple[int, list[Message]]] = []
    for index, message in enumerate(messages):
        shares = ("user", "tool")
        if groups and message.role in shares and groups[-1][1][-1].role in shares:
            groups[-1][1].append(message)
        else:
            groups.append((index, [message]))
    return groups


def _order_of_calls(messages: list[Message], index: int) -> dict[str, int]:
    for message in reversed(messages[:index]):
        if message.role == "assistant":
            return {call.id: place for place, call in enumerate(message.tool_calls)}
    return {}


def _write_user_turn(out: PieceWriter, group: list[Message], order: dict[str, int]) -> None:
    """One user turn; the results in it take their places in the order of the calls."""
    results = iter(
        sorted((m for m in group if m.role == "tool"), key=lambda m: order.get(m.tool_call_id, -1))
    )
    out.special(USER)
    for index, message in enumerate(group):
        if index:
            out.text("\n\n")
        if message.role == "tool":
            out.text("<tool_result>")
            _write_content(out, next(results).content)
            out.text("</tool_result>")
        else:
            _write_content(out, message.content)


def _write_assistant(
    out: PieceWriter, conversation: Conversation, message: Message, *, keep: bool, is_last: bool
) -> Start | None:
    """One assistant turn; a Start if it is a prefix that the answer continues (spec api 1.9)."""
    continues = is_last and message.prefix
    out.special(ASSISTANT)
    has_body = any(message.content) or bool(message.tool_calls)
    if continues and conversation.thinking:
        out.special(THINK)
        out.text(message.reasoning)
        if not has_body:
            return Start("reasoning", continuation=bool(message.reasoning))
    elif keep:
        out.special(THINK)
        out.text(message.reasoning)
    out.special(END_THINK)
    _write_content(out, message.content)
    _write_calls(out, message.tool_calls)
    if continues:
        return Start("answer", continuation=has_body)
    out.special(EOS)
    return None


def _write_calls(out: PieceWriter, calls: tuple[ToolCall, ...]) -> None:
    if not calls:
        return
    out.text("\n\n")
    _tag(out, "<", " calls>\n")
    for index, call in enumerate(calls):
        if index:
            out.text("\n")
        _tag(out, "<", f' invoke name="{call.name}">\n')
        for place, (key, is_text, value) in enumerate(call_parameters(call.arguments)):
            if place:
                out.text("\n")
            flag = "true" if is_text else "false"
            _tag(out, "<", f' parameter name="{key}" string="{flag}">{value}')
            _tag(out, "</", " parameter>")
        out.text("\n")
        _tag(out, "</", " invoke>")
    out.text("\n")
    _tag(out, "</", " calls>")


def _tag(out: PieceWriter, opening: str, rest: str) -> None:
    out.text(opening)
    out.special(DSML)
    out.text(rest)


def call_parameters(arguments: str) -> list[tuple[str, bool, str]]:
    """(key, is text, value) per argument, in order (spec api 1.8).

    Arguments that are no JSON object become one text parameter named `arguments`.
    """
    parsed = load_strict_json(arguments)
    if not isinstance(parsed, dict):
        return [("arguments", True, arguments)]
    return [
        (key, True, value) if isinstance(value, str) else (key, False, dump_json(value))
        for key, value in parsed.items()
    ]


def _write_tail(out: PieceWriter, conversation: Conversation) -> Start:
    task = conversation.task
    if not conversation.add_generation_prompt:
        return Start("answer")
    if task is not None and task != "action":
        out.special(f"<｜{task}｜>")
        return Start("answer")
    out.special(ASSISTANT)
    out.special(THINK if conversation.thinking else END_THINK)
    if task == "action":
        out.special("<｜action｜>")
    return Start("reasoning" if conversation.thinking else "answer")


def _open_block(out: PieceWriter) -> Start:
    """For a required call in chat mode the prompt ends inside the opened block (spec api 1.9)."""
    out.text("\n\n")
    _tag(out, "<", " calls>\n")
    return Start("block")
