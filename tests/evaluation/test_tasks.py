"""The practice tasks: answers are right, the split holds, the same seed gives the same task."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deodar.evaluation import long_tasks, tasks, tool_tasks
from deodar.evaluation.words import is_held_out, words

TRAIN, HELD_OUT = words(held_out=False), words(held_out=True)
MAKERS = (
    tasks.arithmetic,
    tasks.two_digit_sum,
    tasks.repeat,
    tasks.list_task,
    tasks.word_task,
    tasks.facts_question,
    tasks.remember,
    tool_tasks.tool_call,
    tool_tasks.tool_conversation,
    tool_tasks.tool_not_needed,
    tool_tasks.json_schema,
    tool_tasks.json_plain,
    tool_tasks.json_natural,
)


@pytest.mark.parametrize("field", ["nouns", "verbs", "adjectives", "first_names", "cities"])
def test_sides_share_no_word(field: str) -> None:
    train, held = set(getattr(TRAIN, field)), set(getattr(HELD_OUT, field))
    assert train
    assert held
    assert not train & held
    assert 0.2 < len(held) / (len(held) + len(train)) < 0.4


def test_invented_words_stay_on_their_side() -> None:
    rng = random.Random(1)
    assert not any(is_held_out(TRAIN.invented(rng)) for _ in range(300))
    assert all(is_held_out(HELD_OUT.invented(rng)) for _ in range(300))


@pytest.mark.parametrize("maker", MAKERS)
def test_tasks_repeat_and_end_with_an_answer(maker: tasks.Generator) -> None:
    for seed in range(60):
        task = maker(random.Random(seed), TRAIN)
        assert task == maker(random.Random(seed), TRAIN)
        assert task.expected.role == "assistant"
        assert task.expected.content or task.expected.calls
        assert task.expected.reasoning
        assert task.turns[0].role == "user"


@given(st.integers(0, 9999), st.integers(0, 9999))
def test_worked_sums_are_right(a: int, b: int) -> None:
    added, taken = tasks.column_addition(a, b), tasks.column_subtraction(a, b)
    assert added.endswith(f" {a + b}.")
    assert taken.endswith(f" {a - b}.")
    for line in (added, taken):
        for left, sign, right, result in re.findall(r"(\d+) ([+-]) (\d+) = (\d+)", line):
            if f"{left} {sign} {right} + 1" not in line and "+ " + left not in line:
                assert eval(f"{left}{sign}{right}") == int(result)


def test_arithmetic_answers_are_right() -> None:
    found = 0
    for seed in range(600):
        answer = tasks.arithmetic(random.Random(seed), TRAIN).expected.content
        match = re.fullmatch(r"(\d+) ([-+x/]) (\d+) = (-?\d+)\.", answer)
        if match:
            found += 1
            a, b, result = int(match[1]), int(match[3]), int(match[4])
            right = {"+": a + b, "-": a - b, "x": a * b, "/": a / b if b else None}
            assert right[match[2]] == result
    assert found > 200


def test_tool_requests_hold_every_argument() -> None:
    """The expected call follows from the request and the declaration alone."""
    for seed in range(300):
        task = tool_tasks.tool_call(random.Random(seed), HELD_OUT)
        declared = {tool["name"]: tool["parameters"] for tool in task.tools}
        said = task.turns[0].content
        for call in task.expected.calls:
            schema = declared[call.name]
            assert set(schema.get("required", [])) <= set(call.arguments)
            for key, value in call.arguments.items():
                assert key in schema["properties"]
                if isinstance(value, (str, bool, int, float)):
                    assert (value if isinstance(value, str) else json.dumps(value)) in said
                if "enum" in schema["properties"][key]:
                    assert value in schema["properties"][key]["enum"]


def test_json_answers_follow_their_schema() -> None:
    for seed in range(300):
        for maker in (tool_tasks.json_schema, tool_tasks.json_natural):
            task = maker(random.Random(seed), HELD_OUT)
            value = json.loads(task.expected.content)
            schema = task.response_format
            if schema and "properties" in schema:
                assert list(value) == list(schema["properties"])


def test_long_questions_have_one_answer_in_the_text() -> None:
    rng = random.Random(3)
    for _ in range(10):
        task = long_tasks.key_value(rng, HELD_OUT, 4000, 5)
        text = task.turns[0].content
        for question, answer in zip(task.turns[0::2], task.turns[1::2], strict=True):
            key, value = re.fullmatch(
                r"The value of (.*?) is (.*)\.", answer.content, re.S
            ).groups()
            assert key in question.content
            assert len(re.findall(rf"^{re.escape(key)}: ", text, re.M)) <= 1
            assert f"{key}: {value}" in text
