"""Long prompts with questions about any part of them: records, settings, logs, stories, catalogues.

Who calls it: `deodar eval` (held-out words) and the seedling's data generator (training words).
Sizes are given in characters (about 2.9 per token for records, 3.8 for prose). What must hold: each
asked key occurs once in the text, so that there is one right answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from deodar.evaluation.tasks import JOBS, Call, Task, Turn, fact, pick, thing
from deodar.evaluation.tool_tasks import call_reasoning, request, toolbox, used
from deodar.evaluation.words import Words

Asked = tuple[str, str, str]  # question, answer, reasoning


def conversation(
    rng: random.Random, text: str, asked: Sequence[Asked], kind: str, noise: bool
) -> Task:
    """The text, then each question in its own turn; the text stands before or after question 1."""
    lead = pick(
        rng, "", "", "Read this carefully.\n\n", "Here is the data.\n\n", "Use this to answer.\n\n"
    )
    turns: list[Turn] = []
    for number, (question, answer, reasoning) in enumerate(asked):
        user = question if number else f"{lead}{text}\n\n{question}"
        turns.append(Turn(role="user", content=user))
        turns.append(Turn(role="assistant", content=answer, reasoning=reasoning))
    return Task(kind=kind, turns=tuple(turns), noise_prompt=noise)


def fill(size: int, make: Callable[[], str]) -> list[str]:
    """Lines until `size` characters are reached."""
    lines, total = [], 0
    while total < size:
        line = make()
        lines.append(line)
        total += len(line) + 1
    return lines


def key_value(rng: random.Random, words: Words, size: int, questions: int) -> Task:
    """Lines `key: value` with unique made-up keys."""
    form = rng.randrange(5)
    pairs: dict[str, str] = {}

    def make() -> str:
        while True:
            key = (
                words.invented(rng)
                if form < 2
                else words.identifier(rng)
                if form == 2
                else f"{rng.choice(words.adjectives)}_{rng.choice(words.nouns)}"
                if form == 3
                else f"{rng.choice(words.first_names)} {rng.choice(words.last_names)}"
            )
            if key not in pairs:
                break
        pairs[key] = str(rng.randint(100, 99999)) if rng.random() < 0.4 else thing(rng, words)
        return f"{key}: {pairs[key]}"

    text = "\n".join(fill(size, make))
    asked = []
    for key in rng.sample(list(pairs), min(questions, len(pairs))):
        value = pairs[key]
        question = pick(
            rng, f"What is the value of {key}?", f"Which value does {key} have?", f"What is {key}?"
        )
        asked.append((question, f"The value of {key} is {value}.", f"The line says {key}: {value}"))
    return conversation(rng, text, asked, "long_kv", True)


def records(rng: random.Random, words: Words, size: int, questions: int) -> Task:
    """Numbered records with several fields."""
    rows: list[dict[str, str]] = []
    names = ["owner", "city", "code", "job", *rng.sample(words.nouns, 2)]
    names = rng.sample(names, rng.randint(2, 5))
    what = rng.choice(("Record", "Entry", "Case", "Item", "Order"))
    start = rng.randint(1, 900)

    def make() -> str:
        row = {}
        for name in names:
            if name == "owner":
                row[name] = f"{rng.choice(words.first_names)} {rng.choice(words.last_names)}"
            elif name == "city":
                row[name] = rng.choice(words.cities)
            elif name == "job":
                row[name] = rng.choice(JOBS)
            else:
                row[name] = words.identifier(rng)
        rows.append(row)
        return f"{what} {start + len(rows) - 1}: " + ", ".join(f"{k} {v}" for k, v in row.items())

    text = "\n".join(fill(size, make))
    asked = []
    for index in rng.sample(range(len(rows)), min(questions, len(rows))):
        name = rng.choice(names)
        label, value = f"{what} {start + index}", rows[index][name]
        said = f"The {name} of {label} is {value}."
        line = ", ".join(f"{k} {v}" for k, v in rows[index].items())
        asked.append((f"What is the {name} of {label}?", said, f"{label}: {line}"))
    return conversation(rng, text, asked, "long_records", True)


def log_lines(rng: random.Random, words: Words, size: int, questions: int) -> Task:
    """A log with unique request identifiers."""
    rows: dict[str, tuple[str, int]] = {}
    clock = rng.randint(0, 50_000)

    def make() -> str:
        nonlocal clock
        clock += rng.randint(1, 30)
        name = "".join(rng.choices("0123456789abcdef", k=6))
        rows[name] = (rng.choice(("ok", "failed", "timeout", "retried")), rng.randint(1, 9999))
        stamp = f"{clock // 3600:02d}:{clock // 60 % 60:02d}:{clock % 60:02d}"
        return f"{stamp} request {name} {rows[name][0]} in {rows[name][1]} ms"

    text = "\n".join(fill(size, make))
    asked = []
    for name in rng.sample(list(rows), min(questions, len(rows))):
        state, took = rows[name]
        line = f"The log says: request {name} {state} in {took} ms"
        if rng.random() < 0.5:
            asked.append(
                (f"How long did request {name} take?", f"Request {name} took {took} ms.", line)
            )
        else:
            asked.append((f"What happened to request {name}?", f"Request {name}: {state}.", line))
    return conversation(rng, text, asked, "long_log", True)


def hidden_facts(
    rng: random.Random, words: Words, size: int, questions: int, passages: Sequence[str]
) -> Task:
    """Sentences about people hidden between the sentences of a running text."""
    start = rng.randrange(len(passages))
    sentences: list[str] = []
    total = 0
    while total < size:
        for piece in passages[start % len(passages)].split(". "):
            sentences.append(piece.strip().rstrip(".") + ".")
            total += len(piece) + 2
            if total >= size:
                break
        start += 1
    people = rng.sample(words.first_names, min(questions + 2, len(words.first_names)))
    facts = [fact(rng, words, who) for who in people]
    for said, _, _ in facts:
        sentences.insert(rng.randrange(len(sentences)), said)
    asked = [(q, a, f"The text says: {said}") for said, q, a in rng.sample(facts, questions)]
    return conversation(rng, " ".join(sentences), asked, "long_facts", False)


def catalogue(rng: random.Random, words: Words, size: int) -> Task:
    """Many declared tools (about 260 characters each), two requests in turn."""
    tools = toolbox(rng, words, max(2, size // 260))
    turns: list[Turn] = []
    for tool in rng.sample(tools, 2):
        slots = used(rng, tool)
        call = Call(tool.name, {s.name: s.value for s in slots})
        turns.append(Turn(role="user", content=request(rng, tool, slots)))
        turns.append(Turn(role="assistant", reasoning=call_reasoning((call,)), calls=(call,)))
        turns.append(Turn(role="tool", content="ok"))
        answer = f"The {tool.name} call answered: ok."
        turns.append(Turn(role="assistant", content=answer, reasoning="The result is here."))
    return Task(
        kind="long_tools",
        turns=tuple(turns),
        tools=tuple(t.declaration() for t in tools),
        noise_prompt=True,
    )


def long_task(rng: random.Random, words: Words, tokens: int, passages: Sequence[str]) -> Task:
    """One of the forms above with a prompt of about `tokens` tokens."""
    form, questions = rng.randrange(10), rng.choice((1, 1, 2, 3, 4, 6, 8, 10, 12))
    if form < 3:
        return key_value(rng, words, int(tokens * 2.0), questions)
    if form < 6:
        return records(rng, words, int(tokens * 2.2), questions)
    if form == 6:
        return log_lines(rng, words, int(tokens * 1.6), questions)
    if form < 9:
        return hidden_facts(rng, words, int(tokens * 3.4), questions, passages)
    return catalogue(rng, words, int(min(tokens, 4000) * 2.6))
