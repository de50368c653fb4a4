"""The measurements of `deodar eval`: each suite takes a subject and returns named numbers.

Called by `run.py`. Every task is drawn from the held-out side of the word lists with a fixed seed,
every text is held out by document (`training/heldout.py`). What must hold: a suite counts what the
model does; an answer that cannot be parsed is a miss, never left out.
"""

from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Callable, Iterator
from importlib import resources
from statistics import fmean
from typing import Any

from deodar.errors import RequestError
from deodar.evaluation import tasks, tool_tasks
from deodar.evaluation.subject import SLOTS, Answer, Subject
from deodar.evaluation.tasks import Task, Turn
from deodar.evaluation.words import words
from deodar.text.segments import ASSISTANT, END_THINK, USER
from deodar.text.tokenizer import Tokenizer

Numbers = dict[str, Any]
Advance = Callable[[int], None]
Suite = Callable[[Subject, bool, Advance], Numbers]

BLOCK = 2048  # tokens of one independent piece of held-out text
DISTANCES = (512, 2000, 4000, 7500)
PROMPT_TOKENS = 7560
SEED = 2026


def held_out_text(kind: str) -> list[str]:
    """Documents of `prose` or `code` that no training text holds."""
    data = resources.files("deodar.evaluation").joinpath(f"data/{kind}.txt.gz").read_bytes()
    return gzip.decompress(data).decode("utf-8").split("\0")


# ------------------------------------------------------------------------------- bits per byte


def bits_per_byte(subject: Subject, quick: bool, advance: Advance) -> Numbers:
    """Bits per UTF-8 byte, each document in pieces of 2,048 tokens that start afresh with BOS."""
    return {kind: _bits(subject, held_out_text(kind), quick, advance) for kind in ("prose", "code")}


def _bits(subject: Subject, documents: list[str], quick: bool, advance: Advance) -> Numbers:
    budget = 20_000 if quick else sum(len(d.encode()) for d in documents)
    nats, size = 0.0, 0
    for document in documents:
        text = document[: max(0, budget - size)]
        ids = subject.tokenizer.encode_text(text)
        size_tokens = min(BLOCK, subject.context) - 1
        for start in range(0, len(ids), size_tokens):
            piece = ids[start : start + size_tokens]
            logs, _ = subject.score([subject.tokenizer.bos_id, *piece])
            nats -= float(logs.sum())
            advance(len(piece))
        size += len(text.encode())
    return {"bits_per_byte": nats / math.log(2) / size, "bytes": size}


# ------------------------------------------------------------------------------- retrieval


def retrieval(subject: Subject, quick: bool, advance: Advance) -> Numbers:
    """Values of a long list of `key: value` lines, asked in chat form at four distances.

    One conversation asks four keys per distance, each placed so that its value ends the given
    number of tokens before the answer repeats it. Answers are scored with the right history: a
    value counts if the arg-max is right at each of its tokens, which is what greedy decoding says.
    """
    if subject.context < PROMPT_TOKENS + 800:
        raise RequestError(
            f"context is {subject.context} tokens, retrieval needs {PROMPT_TOKENS + 800}"
        )
    on: dict[int, list[bool]] = {d: [] for d in DISTANCES}
    off: dict[int, list[bool]] = {d: [] for d in DISTANCES}
    for number in range(1 if quick else 10):
        ids, asked = retrieval_conversation(subject.tokenizer, random.Random(SEED + number))
        for hidden, table in ((False, on), (True, off)):
            _, hits = subject.score(ids, hide_memory=hidden)
            for distance, first, last in asked:
                table[distance].append(bool(hits[first - 1 : last - 1].all()))
            advance(len(ids))
    return {
        str(d): {"memory": fmean(on[d]), "zeroed": fmean(off[d]), "questions": len(on[d])}
        for d in DISTANCES
    }


def retrieval_conversation(
    tokenizer: Tokenizer, rng: random.Random, each: int = 4
) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Token ids, and per question (distance, first, last + 1) of the value in its answer."""
    side, encode, special = words(held_out=True), tokenizer.encode_text, tokenizer.special
    lines: list[tuple[str, str]] = []
    ends: list[int] = []
    used: set[str] = set()
    ids = [tokenizer.bos_id, special[USER]]
    while len(ids) < PROMPT_TOKENS:
        key = side.invented(rng)
        if key in used:
            continue
        used.add(key)
        value = rng.choice((str(rng.randint(100, 99999)), side.invented(rng), side.identifier(rng)))
        ids += encode(f"\n{key}: {value}" if lines else f"{key}: {value}")
        lines.append((key, value))
        ends.append(len(ids))
    asked: list[tuple[int, int, int]] = []
    free = set(range(len(lines)))
    for distance in sorted(DISTANCES * each):  # the nearest first: turns add to the distance
        ahead = 0  # tokens between here and the answer's value; known once the key is
        for _ in range(2):
            place = len(ids) + ahead - distance  # where the value should end
            index = min(free, key=lambda i: abs(ends[i] - place))
            key, value = lines[index]
            question = f"What is the value of {key}?"
            turn = [special[USER], *encode(question)] if asked else encode(f"\n\n{question}")
            turn += [special[ASSISTANT], special[END_THINK]]
            ahead = len(turn) + len(encode(f"The value of {key} is"))
        free.discard(index)
        first = len(ids) + ahead
        ids += [*turn, *encode(f"The value of {key} is {value}.")]
        asked.append((distance, first, len(ids) - 1))
        ids.append(tokenizer.eos_id)
    return ids, asked


# ------------------------------------------------------------------------------- chat tasks


def answers(
    subject: Subject, drawn: list[Task], max_tokens: int, advance: Advance
) -> Iterator[tuple[Task, Answer]]:
    """Greedy answers, `SLOTS` at a time; thinking on for every other task."""
    for start in range(0, len(drawn), SLOTS):
        group = drawn[start : start + SLOTS]
        prompts = [
            subject.prompt(task, thinking=(start + i) % 2 == 0) for i, task in enumerate(group)
        ]
        outputs = subject.greedy([p.ids for p in prompts], max_tokens)
        for task, prompt, ids in zip(group, prompts, outputs, strict=True):
            yield task, subject.answer(prompt, ids)
        advance(len(group))


def tool_calls(subject: Subject, quick: bool, advance: Advance) -> Numbers:
    """Calls of unseen tools: valid (declared name, JSON arguments), equal to the expected ones."""
    rng, side = random.Random(SEED), words(held_out=True)
    drawn = [tool_tasks.tool_call(rng, side) for _ in range(16 if quick else 80)]
    valid, equal, misses = [], [], []
    for task, answer in answers(subject, drawn, 400, advance):
        declared = {tool["name"] for tool in task.tools}
        made = [(name, _json(text)) for name, text in answer.calls]
        good = answer.finished and bool(made)
        good = good and all(n in declared and isinstance(a, dict) for n, a in made)
        expected = [(call.name, call.arguments) for call in task.expected.calls]
        valid.append(good)
        equal.append(good and made == expected)
        if not equal[-1]:
            misses.append({"expected": expected, "made": made, "content": answer.content})
    return {"valid": fmean(valid), "equal": fmean(equal), "tasks": len(drawn), "misses": misses[:5]}


def json_answers(subject: Subject, quick: bool, advance: Advance) -> Numbers:
    """Answers under a declared JSON schema: valid (an object with the asked keys) and equal."""
    rng, side = random.Random(SEED + 1), words(held_out=True)
    drawn = [tool_tasks.json_schema(rng, side) for _ in range(16 if quick else 64)]
    valid, equal, misses = [], [], []
    for task, answer in answers(subject, drawn, 300, advance):
        made, expected = _json(answer.content), _json(task.expected.content)
        good = answer.finished and isinstance(made, dict) and set(made) == set(expected)
        valid.append(good)
        equal.append(good and made == expected)
        if not equal[-1]:
            misses.append({"expected": task.expected.content, "made": answer.content})
    return {"valid": fmean(valid), "equal": fmean(equal), "tasks": len(drawn), "misses": misses[:5]}


def sums(subject: Subject, quick: bool, advance: Advance) -> Numbers:
    """Two-digit sums: the answer must be exactly `a + b = c.`"""
    rng, side = random.Random(SEED + 2), words(held_out=True)
    drawn = [tasks.two_digit_sum(rng, side) for _ in range(16 if quick else 100)]
    right = [a.content == t.expected.content for t, a in answers(subject, drawn, 160, advance)]
    return {"right": fmean(right), "tasks": len(drawn), "with_thinking": fmean(right[::2])}


def copying(subject: Subject, quick: bool, advance: Advance) -> Numbers:
    """Repeating text of unseen words, and questions on given facts, exactly."""
    rng, side = random.Random(SEED + 3), words(held_out=True)
    out: Numbers = {}
    for name, maker in (("copy", tasks.repeat), ("facts", tasks.facts_question)):
        drawn = [maker(rng, side) for _ in range(16 if quick else 48)]
        made = answers(subject, drawn, 160, advance)
        out[name] = fmean([a.content == t.expected.content for t, a in made])
        out[f"{name}_tasks"] = len(drawn)
    return out


def _json(text: str) -> Any:
    """The JSON value of a text, or None."""
    try:
        return json.loads(text)
    except ValueError:
        return None


# ------------------------------------------------------------------------------- drafts


def drafts(subject: Subject, quick: bool, advance: Advance) -> Numbers:
    """Accepted drafts per verify step along the model's own greedy continuation, by domain."""
    if not subject.config.num_nextn_predict_layers:
        return {}
    rng, side = random.Random(SEED + 4), words(held_out=True)
    count = 2 if quick else 8
    out: Numbers = {}
    for domain, prompts in _draft_prompts(subject, rng, side, count).items():
        accepted: list[int] = []
        for ids in prompts:
            output = subject.greedy([ids], 64 if domain in ("prose", "code") else 160)[0]
            accepted += subject.accepted_drafts(ids, output)
            advance(1)
        out[domain] = {"accepted_per_step": fmean(accepted or [0]), "steps": len(accepted)}
    return out


def _draft_prompts(
    subject: Subject, rng: random.Random, side: Any, count: int
) -> dict[str, list[list[int]]]:
    """Prompts by domain: text is cut at random places, chat domains are unseen tasks."""
    made: dict[str, list[list[int]]] = {}
    for kind in ("prose", "code"):
        documents = held_out_text(kind)
        made[kind] = []
        for _ in range(count):
            text = rng.choice(documents)
            start = rng.randrange(max(1, len(text) - 1200))
            ids = subject.tokenizer.encode_text(text[start : start + 1200])[:256]
            made[kind].append([subject.tokenizer.bos_id, *ids])
    makers: dict[str, Callable[[], Task]] = {
        "tools": lambda: tool_tasks.tool_call(rng, side),
        "json": lambda: tool_tasks.json_schema(rng, side),
        "copy": lambda: long_copy(rng, side),
        "sums": lambda: tasks.two_digit_sum(rng, side),
        "facts": lambda: tasks.facts_question(rng, side),
    }
    for domain, maker in makers.items():
        made[domain] = [subject.prompt(maker(), thinking=i % 2 == 0).ids for i in range(count * 2)]
    return made


def long_copy(rng: random.Random, side: Any) -> Task:
    """Repeat three sentences of unseen words."""
    text = " ".join(tasks.sentence(rng, side) for _ in range(3))
    user = Turn(role="user", content=f"Repeat exactly: {text}")
    answer = Turn(role="assistant", content=text, reasoning="I copy the text.")
    return Task(kind="copy", turns=(user, answer))


SUITES: dict[str, tuple[str, Suite, int, int]] = {
    # name: (what the progress bar says, suite, steps when quick, steps else)
    "bits": ("bits per byte", bits_per_byte, 12_000, 88_000),
    "retrieval": ("retrieval", retrieval, 8_100, 81_000),
    "tools": ("tool calls", tool_calls, 16, 80),
    "json": ("JSON answers", json_answers, 16, 64),
    "sums": ("two-digit sums", sums, 16, 100),
    "copying": ("copying and facts", copying, 32, 96),
    "drafts": ("drafts", drafts, 14, 56),
}
