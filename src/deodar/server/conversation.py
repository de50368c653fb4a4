"""Chat request to `Conversation`: roles, parts, tools and the thinking switches (spec api 1.3-1.9).

Pure functions of the body and the server's defaults. `check_supported` refuses by name what the
renderer can write but the engine cannot keep yet.
"""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

from deodar.errors import RequestError
from deodar.server.schema import ChatBody, MessageEntry, ToolEntry
from deodar.text.chat import (
    DEFAULT_EFFORT,
    EFFORT_WORDS,
    Content,
    Conversation,
    ImagePart,
    Message,
    Role,
    Tool,
    ToolCall,
    dump_json,
)
from deodar.text.segments import TASKS

_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,256}\Z")
_IMAGE_PARTS = ("image_url", "input_image", "image")
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


def conversation_of(
    body: ChatBody, *, default_thinking: bool = True, default_effort: int = DEFAULT_EFFORT
) -> Conversation:
    """The conversation that a chat body asks for; RequestError names what is wrong."""
    if not body.messages:
        raise RequestError("`messages` must hold at least one message", param="messages")
    messages = [_message(entry, f"messages[{i}]") for i, entry in enumerate(body.messages)]
    if body.continue_final_message:
        messages[-1] = _as_prefix(messages[-1])
    tools = _tools(body.tools or [])
    thinking, effort = thinking_of(body, default_thinking, default_effort)
    if body.task is not None and body.task not in TASKS:
        raise RequestError(
            f"`task` is {body.task!r}, it must be one of {', '.join(TASKS)}", param="task"
        )
    kwargs = body.chat_template_kwargs
    return Conversation(
        messages=tuple(messages),
        tools=tools,
        tool_choice=_tool_choice(body.tool_choice, tools),
        thinking=thinking,
        effort=effort,
        response_schema=_response_schema(body),
        keep_reasoning=kwargs is not None and kwargs.drop_thinking is False,
        task=body.task,
        add_generation_prompt=body.add_generation_prompt is not False,
    )


def check_supported(body: ChatBody, conversation: Conversation) -> None:
    """Refuse what needs a grammar or the vision tower; RequestError names the field."""
    for index, message in enumerate(conversation.messages):
        for part in message.content:
            if isinstance(part, ImagePart):
                raise RequestError(
                    f"messages[{index}] holds an image; image input is not supported yet",
                    param=f"messages[{index}].content",
                )
    if conversation.response_schema is not None:
        raise RequestError(
            "`response_format`: only type text is supported yet; JSON needs grammar-constrained "
            "decoding",
            param="response_format",
        )
    if conversation.tool_choice == "required":
        if conversation.thinking:
            raise RequestError(
                "`tool_choice`: a required call while thinking needs grammar-constrained decoding, "
                "which is not supported yet; switch thinking off or use auto",
                param="tool_choice",
            )
        if isinstance(body.tool_choice, dict):
            raise RequestError(
                "`tool_choice`: naming a function needs grammar-constrained decoding, "
                "which is not supported yet",
                param="tool_choice",
            )
    for index, entry in enumerate(body.tools or []):
        if entry.function is not None and entry.function.strict:
            raise RequestError(
                f"tools[{index}].function.strict needs grammar-constrained decoding, "
                "which is not supported yet",
                param=f"tools[{index}].function.strict",
            )


def thinking_of(body: ChatBody, default: bool, default_effort: int) -> tuple[bool, int]:
    """Thinking switch and effort; the first source that is present decides (spec api 1.3)."""
    kwargs = body.chat_template_kwargs
    efforts = [("reasoning_effort", body.reasoning_effort)]
    switches: list[bool | None] = [_thinking_type(body)]
    if kwargs is not None:
        efforts.append(("chat_template_kwargs.reasoning_effort", kwargs.reasoning_effort))
        switches += [kwargs.thinking, kwargs.enable_thinking]
    name, value = next(((n, v) for n, v in efforts if v is not None), ("", None))
    effort = default_effort if value is None or value == "none" else effort_number(value, name)
    switch = next((s for s in switches if s is not None), None)
    if switch is None:
        return (value != "none") and (default or value is not None), effort
    return switch, effort


def effort_number(value: str | int | float, name: str) -> int:
    """The number of an effort word or integer; RequestError for anything else."""
    if isinstance(value, str) and value in EFFORT_WORDS:
        return EFFORT_WORDS[value]
    if isinstance(value, int) and 1 <= value <= 100:
        return value
    words = ", ".join(EFFORT_WORDS)
    raise RequestError(
        f"`{name}` is {value!r}, it must be none, {words} or an integer from 1 to 100", param=name
    )


def _thinking_type(body: ChatBody) -> bool | None:
    if body.thinking is None:
        return None
    if body.thinking.type not in ("enabled", "disabled"):
        raise RequestError(
            f"`thinking.type` is {body.thinking.type!r}, it must be enabled or disabled",
            param="thinking.type",
        )
    return body.thinking.type == "enabled"


def _message(entry: MessageEntry, place: str) -> Message:
    role = "system" if entry.role == "developer" else entry.role
    if role not in get_args(Role):
        raise RequestError(f"{place}.role is {entry.role!r}, no such role", param=f"{place}.role")
    content = _content(entry.content, f"{place}.content")
    if role != "assistant":
        return Message(
            role=role,  # type: ignore[arg-type]
            content=content,
            tool_call_id=_result_id(entry, place) if role == "tool" else "",
        )
    return Message(
        role="assistant",
        content=content,
        reasoning=entry.reasoning_content or entry.reasoning or "",
        tool_calls=_history_calls(entry, place),
        prefix=bool(entry.prefix),
    )


def _result_id(entry: MessageEntry, place: str) -> str:
    if entry.tool_call_id is None:
        raise RequestError(f"{place}.tool_call_id is missing", param=f"{place}.tool_call_id")
    return entry.tool_call_id


def _history_calls(entry: MessageEntry, place: str) -> tuple[ToolCall, ...]:
    calls = []
    for index, call in enumerate(entry.tool_calls or []):
        here = f"{place}.tool_calls[{index}]"
        if call.id is None:
            raise RequestError(f"{here}.id is missing", param=f"{here}.id")
        arguments = call.function.arguments
        text = arguments if isinstance(arguments, str) else dump_json(arguments or {})
        calls.append(ToolCall(call.id, call.function.name, text))
    return tuple(calls)


def _content(content: str | list[dict[str, Any] | str] | None, place: str) -> Content:
    if content is None:
        return ()
    if isinstance(content, str):
        return (content,)
    return tuple(_part(part, f"{place}[{i}]") for i, part in enumerate(content))


def _part(part: dict[str, Any] | str, place: str) -> str | ImagePart:
    if isinstance(part, str):
        return part
    kind = part.get("type")
    if kind in _IMAGE_PARTS:
        return ImagePart()
    key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if key is None:
        raise RequestError(f"{place}.type is {kind!r}, which is not supported", param=place)
    text = part.get(key)
    if not isinstance(text, str):
        raise RequestError(f"{place}.{key} must be a string", param=place)
    return text


def _as_prefix(message: Message) -> Message:
    if message.role != "assistant":
        raise RequestError(
            "`continue_final_message` needs an assistant message at the end",
            param="continue_final_message",
        )
    return Message(
        role="assistant",
        content=message.content,
        reasoning=message.reasoning,
        tool_calls=message.tool_calls,
        prefix=True,
    )


def _tools(entries: list[ToolEntry]) -> tuple[Tool, ...]:
    """The declared functions; hosted-only tool types are skipped, never an error (spec api 1.6)."""
    tools = []
    for index, entry in enumerate(entries):
        if entry.type == "custom":
            raise RequestError(
                f"tools[{index}].type custom is not supported yet", param=f"tools[{index}].type"
            )
        if entry.function is None:
            if entry.type in (None, "function"):
                raise RequestError(
                    f"tools[{index}].function is missing", param=f"tools[{index}].function"
                )
            continue
        name = entry.function.name
        if not _TOOL_NAME.match(name):
            raise RequestError(
                f"tools[{index}].function.name is {name[:80]!r}: 1 to 256 letters, digits or _ - . "
                ": / are allowed",
                param=f"tools[{index}].function.name",
            )
        schema = entry.function.parameters or {}
        tools.append(Tool(name, entry.function.description or "", schema))
    return tuple(tools)


def _tool_choice(
    choice: str | dict[str, Any] | None, tools: tuple[Tool, ...]
) -> Literal["auto", "none", "required"]:
    if choice is None or choice == "auto":
        return "auto"
    if choice == "none":
        return "none"
    if choice != "required" and not isinstance(choice, dict):
        raise RequestError(
            f"`tool_choice` is {choice!r}, it must be none, auto, required or a function",
            param="tool_choice",
        )
    if not tools:
        raise RequestError(
            "`tool_choice` asks for a call but no tools are given", param="tool_choice"
        )
    if isinstance(choice, dict):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, dict) else choice.get("name")
        if choice.get("type") != "function" or not any(tool.name == name for tool in tools):
            raise RequestError("`tool_choice` names no declared function", param="tool_choice")
    return "required"


def _response_schema(body: ChatBody) -> dict[str, Any] | None:
    wish = body.response_format
    if wish is None or wish.type == "text":
        return None
    if wish.type == "json_object":
        return {"type": "json_object"}
    if wish.type != "json_schema":
        raise RequestError(
            f"`response_format.type` is {wish.type!r}, it must be text, json_object or json_schema",
            param="response_format.type",
        )
    schema = (wish.json_schema or {}).get("schema")
    if not isinstance(schema, dict):
        raise RequestError(
            "`response_format.json_schema.schema` must be an object",
            param="response_format.json_schema.schema",
        )
    return schema
