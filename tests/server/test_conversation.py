"""Switches, roles and parts of chat bodies (spec api 1.3 to 1.9), as pure functions."""

import pytest

from deodar.server.conversation import conversation_of
from deodar.server.schema import ChatBody, typed_body
from deodar.text.chat import render

HELLO = [{"role": "user", "content": "hi"}]


def prompt(default_thinking=True, default_effort=75, **fields):
    body = typed_body({"messages": HELLO, **fields}, ChatBody)
    conversation = conversation_of(
        body, default_thinking=default_thinking, default_effort=default_effort
    )
    return render(conversation).text


def effort_of(text):
    """The number on the effort line, None in chat mode; checks that it stands once, in front."""
    count = text.count("Reasoning Effort: ")
    if not count:
        assert text.endswith("</think>")
        return None
    assert count == 1
    assert text.endswith("<think>")
    front = "<｜begin▁of▁sentence｜><｜System｜>Reasoning Effort: "
    assert text.startswith(front)
    return int(text.removeprefix(front).split(" ")[0])


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, 75),
        ({"reasoning_effort": "minimal"}, 50),
        ({"reasoning_effort": "low"}, 50),
        ({"reasoning_effort": "medium"}, 75),
        ({"reasoning_effort": "high"}, 75),
        ({"reasoning_effort": "xhigh"}, 75),
        ({"reasoning_effort": "max"}, 100),
        ({"reasoning_effort": "ultra"}, 100),
        ({"reasoning_effort": 1}, 1),
        ({"reasoning_effort": 63}, 63),
        ({"reasoning_effort": "none"}, None),
        ({"thinking": {"type": "disabled"}}, None),
        ({"thinking": {"type": "disabled"}, "reasoning_effort": "max"}, None),
        ({"thinking": {"type": "enabled"}, "reasoning_effort": "none"}, 75),
        ({"chat_template_kwargs": {"thinking": False}}, None),
        ({"chat_template_kwargs": {"enable_thinking": False}}, None),
        ({"chat_template_kwargs": {"reasoning_effort": 20}}, 20),
        ({"chat_template_kwargs": {"reasoning_effort": 20}, "reasoning_effort": 30}, 30),
        (
            {"chat_template_kwargs": {"thinking": False}, "thinking": {"type": "enabled"}},
            75,
        ),
        ({"chat_template_kwargs": {"thinking": True}, "reasoning_effort": "none"}, 75),
    ],
)
def test_switches_and_efforts(fields, effort):
    assert effort_of(prompt(**fields)) == effort


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, None),
        ({"thinking": {"type": "enabled"}}, 40),
        ({"reasoning_effort": "max"}, 100),
        ({"chat_template_kwargs": {"thinking": True}}, 40),
    ],
)
def test_a_request_beats_the_servers_defaults(fields, effort):
    assert effort_of(prompt(default_thinking=False, default_effort=40, **fields)) == effort


def test_developers_are_system_at_their_own_place():
    text = prompt(
        messages=[
            {"role": "developer", "content": "A"},
            {"role": "developer", "content": "B"},
            *HELLO,
        ],
        thinking={"type": "disabled"},
    )
    assert (
        text
        == "<｜begin▁of▁sentence｜><｜System｜>A<｜System｜>B<｜User｜>hi<｜Assistant｜></think>"
    )


def test_tools_stay_in_the_lead_when_the_system_message_comes_later():
    tools = [{"type": "function", "function": {"name": "f"}}]
    text = prompt(messages=[*HELLO, {"role": "system", "content": "late"}], tools=tools)
    assert text.index("## Tools") < text.index("<｜User｜>hi<｜System｜>late<｜Assistant｜>")
    assert '{"name": "f", "description": "", "parameters": {}}' in text


def history(arguments):
    function = {"name": "f", "arguments": arguments}
    return [
        *HELLO,
        {"role": "assistant", "tool_calls": [{"id": "a", "function": function}]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "r"}]},
    ]


def test_arguments_as_text_or_object_with_any_spacing_give_the_same_prompt():
    given = ['{"b": 2, "a": [1]}', '{"b":2,"a":[1]}', '{ "b" : 2,\n"a":[ 1 ] }', {"b": 2, "a": [1]}]
    assert len({prompt(messages=history(arguments)) for arguments in given}) == 1
    assert prompt(messages=history(None)) == prompt(messages=history("{}"))


def test_things_that_the_model_does_not_see_do_not_change_the_prompt():
    plain = prompt(messages=[{"role": "user", "content": "hi"}])
    dressed = [{"role": "user", "content": "hi", "name": "ann", "tools": [1], "cache_control": {}}]
    assert prompt(messages=dressed) == plain


def test_reasoning_under_either_name_is_kept_in_tool_loops():
    for extra in ({"reasoning": "R"}, {"reasoning_content": "R", "reasoning": ""}):
        messages = history("{}")
        messages[1] |= extra
        assert "<think>R</think>" in prompt(messages=messages)


def test_a_final_message_can_be_continued():
    messages = [*HELLO, {"role": "assistant", "content": "So "}]
    text = prompt(messages=messages, continue_final_message=True, reasoning_effort="none")
    assert text.endswith("<｜Assistant｜></think>So ")
    text = prompt(messages=messages, reasoning_effort="none")
    assert text.endswith("</think>So <｜end▁of▁sentence｜><｜Assistant｜></think>")
