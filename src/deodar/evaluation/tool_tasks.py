"""Practice tasks with tools and with JSON answers.

Who calls it: `deodar eval` (held-out words) and the seedling's data generator (training words).
Tools are made up: name, parameters and types come from one side of the word split. What must hold:
the request contains every value literally, so the expected arguments follow from it alone.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from deodar.evaluation.tasks import (
    COLOURS,
    JOBS,
    Call,
    Json,
    Task,
    Turn,
    arithmetic,
    article,
    date,
    dumps,
    email,
    facts_question,
    item,
    list_task,
    listing,
    person,
    pick,
    repeat,
    sentence,
    thing,
)
from deodar.evaluation.words import Words

TYPES = (
    "string", "string", "string", "string", "integer", "integer", "number", "boolean", "enum",
    "strings", "integers", "object",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter: its name, its JSON schema, a value and how a request says the value."""

    name: str
    schema: dict[str, Json]
    value: Json
    said: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A made-up function and one use of it."""

    name: str
    verb: str
    noun: str
    description: str
    slots: tuple[Slot, ...]
    required: tuple[str, ...]

    def declaration(self) -> dict[str, Json]:
        """The function object that is declared to the model."""
        parameters: dict[str, Json] = {
            "type": "object",
            "properties": {s.name: s.schema for s in self.slots},
        }
        if self.required:
            parameters["required"] = list(self.required)
        return {"name": self.name, "description": self.description, "parameters": parameters}


def styled(rng: random.Random, parts: list[str], style: int) -> str:
    """Words as snake_case, camelCase or kebab-case."""
    if style < 7:
        return "_".join(parts)
    if style < 9:
        return parts[0] + "".join(p.capitalize() for p in parts[1:])
    return "-".join(parts)


def slot(rng: random.Random, words: Words, name: str) -> Slot:
    """A parameter of a random type with a value."""
    kind = rng.choice(TYPES)
    schema: dict[str, Json] = {"type": kind}
    value: Json
    if kind == "string":
        value = thing(rng, words) if rng.random() < 0.85 else sentence(rng, words)
        said = f'"{value}"' if " " in value or rng.random() < 0.25 else value
    elif kind == "integer":
        value = rng.randint(0, rng.choice((9, 99, 999, 99999)))
        said = str(value)
    elif kind == "number":
        value = round(rng.uniform(0, 200), rng.choice((1, 1, 2)))
        if value == int(value):
            value += 0.5
        said = str(value)
    elif kind == "boolean":
        value = rng.random() < 0.5
        said = "true" if value else "false"
    elif kind == "enum":
        options = list(dict.fromkeys(rng.choices(words.nouns + words.adjectives, k=4)))
        value = rng.choice(options)
        schema, said = {"type": "string", "enum": options}, value
    elif kind == "strings":
        value = [item(rng, words) for _ in range(rng.randint(1, 4))]
        schema, said = {"type": "array", "items": {"type": "string"}}, dumps(value)
        if rng.random() < 0.5:
            said = listing(value)
    elif kind == "integers":
        value = [rng.randint(0, 999) for _ in range(rng.randint(1, 4))]
        schema, said = {"type": "array", "items": {"type": "integer"}}, dumps(value)
        if rng.random() < 0.5:
            said = listing([str(v) for v in value])
    else:
        keys = list(dict.fromkeys(rng.choices(words.nouns, k=rng.randint(1, 2))))
        value = {k: rng.choice((item(rng, words), rng.randint(0, 99))) for k in keys}
        said = dumps(value)
    if rng.random() < 0.3:
        article = rng.choice(("The", "Which", "Name of the"))
        schema["description"] = f"{article} {re.sub('[_-]', ' ', name)}"
    return Slot(name, schema, value, said)


def made_up_tool(rng: random.Random, words: Words, style: int) -> Tool:
    """A tool with zero to four parameters."""
    verb, noun = rng.choice(words.verbs), rng.choice(words.nouns)
    parts = [verb, noun]
    if rng.random() < 0.2:
        parts.insert(1, rng.choice(words.adjectives))
    elif rng.random() < 0.12:
        parts = [noun, verb]
    elif rng.random() < 0.12:
        parts = [words.invented(rng), noun]
    names = list(
        dict.fromkeys(rng.choices(words.nouns, k=rng.choice((0, 1, 1, 1, 2, 2, 2, 3, 3, 4))))
    )
    if names and rng.random() < 0.25:
        names[0] = rng.choice(words.adjectives) + "_" + names[0]
    slots = tuple(slot(rng, words, n) for n in names)
    required = tuple(s.name for s in slots if rng.random() < 0.75)
    shape = rng.randrange(5)
    description = (
        f"{verb.capitalize()} the {' '.join(parts[1:]) if parts[0] == verb else noun}.",
        f"{verb.capitalize()} a {noun} by {listing(names) or 'default'}.",
        f"Use this to {verb} one {noun}.",
        sentence(rng, words),
        "",
    )[shape]
    return Tool(styled(rng, parts, style), verb, noun, description, slots, required)


def used(rng: random.Random, tool: Tool) -> tuple[Slot, ...]:
    """The slots one request fills: the required ones and some of the others."""
    return tuple(s for s in tool.slots if s.name in tool.required or rng.random() < 0.6)


def request(rng: random.Random, tool: Tool, slots: tuple[Slot, ...]) -> str:
    """A sentence that asks for one use of the tool and says every value."""
    label = re.sub("[_-]", " ", rng.choice((tool.name, f"{tool.verb} the {tool.noun}")))
    spoken = [
        (re.sub("[_-]", " ", s.name) if rng.random() < 0.7 else s.name, s.said) for s in slots
    ]
    if not spoken:
        return pick(
            rng,
            f"Please {label}.",
            f"Use {tool.name}.",
            f"Call {tool.name} now.",
            f"Can you {label}?",
        )
    form = rng.randrange(7)
    if form == 0:
        given = ", ".join(f"{n}={v}" for n, v in spoken)
        return f"Use {tool.name} with {given}."
    if form == 1:
        return f"Please {label}. " + " ".join(f"{n.capitalize()}: {v}." for n, v in spoken)
    if form == 2:
        return f"{label.capitalize()}\n" + "\n".join(f"{n}: {v}" for n, v in spoken)
    given = listing([f"{n} {v}" for n, v in spoken])
    return pick(
        rng,
        f"Please {label} with {given}.",
        f"I want to {label}, {given}.",
        f"Can you {label} with {given}?",
        f"Call {tool.name} for {given}.",
    )


def call_reasoning(calls: tuple[Call, ...]) -> str:
    """The one wording of the thought before calls."""
    return f"I need to call {listing([c.name for c in calls])}."


def outcome(rng: random.Random, words: Words, name: str) -> tuple[str, str]:
    """(what the tool answers, how the assistant tells it)."""
    form = rng.randrange(6)
    if form == 0:
        status = rng.choice(("ok", "done", "queued", "started", "saved", "created"))
        return status, f"The {name} call answered: {status}."
    if form == 1:
        number = rng.choice((rng.randint(0, 9999), round(rng.uniform(0, 99), 1)))
        return str(number), f"The result of {name} is {number}."
    if form == 2:
        keys = list(dict.fromkeys(rng.choices(words.nouns, k=rng.randint(1, 3))))
        record = {k: rng.choice((thing(rng, words), rng.randint(0, 999))) for k in keys}
        told = listing([f"{k} is {v}" for k, v in record.items()])
        return dumps(record), f"The {name} call returned: {told}."
    if form == 3:
        fault = pick(rng, "not found", "timeout", "access denied", "bad value", "already exists")
        return dumps({"error": fault}), f"The {name} call failed: {fault}."
    if form == 4:
        found = [item(rng, words) for _ in range(rng.randint(1, 4))]
        return dumps(found), f"The {name} call returned {listing(found)}."
    text = sentence(rng, words)
    return text, f"The {name} call says: {text}"


def toolbox(rng: random.Random, words: Words, count: int) -> list[Tool]:
    """Tools with distinct names in one naming style; sometimes two share the verb or the noun."""
    style = rng.randrange(10)
    tools: dict[str, Tool] = {}
    while len(tools) < count:
        tool = made_up_tool(rng, words, style)
        tools.setdefault(tool.name, tool)
    return list(tools.values())


def call_round(
    rng: random.Random, words: Words, tools: list[Tool], count: int
) -> tuple[Turn, Turn]:
    """A request for `count` uses of the tools, and the assistant's calls."""
    texts, made = [], []
    chosen: list[Tool] = []
    for _ in range(count):
        tool = rng.choice(tools)
        if tool in chosen:  # the same function again needs other values
            tool = again(rng, words, tool)
        chosen.append(tool)
        slots = used(rng, tool)
        texts.append(request(rng, tool, slots))
        made.append(Call(tool.name, {s.name: s.value for s in slots}))
    user = pick(rng, " Then: ", " Also: ", "\n\n").join(texts)
    calls = tuple(made)
    return (
        Turn(role="user", content=user),
        Turn(role="assistant", reasoning=call_reasoning(calls), calls=calls),
    )


def tool_call(rng: random.Random, words: Words, calls: int | None = None) -> Task:
    """One request, one or two calls; ends with the call block (the evaluation's form)."""
    tools = toolbox(rng, words, rng.choice((1, 2, 2, 3, 3, 4)))
    turns = call_round(rng, words, tools, calls or (2 if rng.random() < 0.25 else 1))
    return Task(kind="tool", turns=turns, tools=tuple(t.declaration() for t in tools))


def slot_again(rng: random.Random, words: Words, old: Slot) -> Slot:
    """The same parameter with another value (same type; an enum keeps its options)."""
    if "enum" in old.schema:
        value = rng.choice(old.schema["enum"])
        return Slot(old.name, old.schema, value, value)
    while True:
        new = slot(rng, words, old.name)
        same_items = new.schema.get("items") == old.schema.get("items")
        if new.schema["type"] == old.schema["type"] and "enum" not in new.schema and same_items:
            return Slot(old.name, old.schema, new.value, new.said)


def tool_conversation(rng: random.Random, words: Words) -> Task:
    """Call, result, answer; sometimes a second round or a small question after it."""
    tools = toolbox(rng, words, rng.choice((1, 2, 2, 3, 3, 4)))
    turns = list(call_round(rng, words, tools, 2 if rng.random() < 0.2 else 1))
    close_round(rng, words, turns)
    form = rng.random()
    if form < 0.2:
        turns += rng.choice((arithmetic, facts_question, list_task))(rng, words).turns[:2]
    elif form < 0.45:
        turns += call_round(rng, words, [again(rng, words, t) for t in tools], 1)
        if rng.random() < 0.7:
            close_round(rng, words, turns)
    return Task(kind="tool_talk", turns=tuple(turns), tools=tuple(t.declaration() for t in tools))


def again(rng: random.Random, words: Words, tool: Tool) -> Tool:
    """The same function with other values."""
    slots = tuple(slot_again(rng, words, s) for s in tool.slots)
    return Tool(tool.name, tool.verb, tool.noun, tool.description, slots, tool.required)


def close_round(rng: random.Random, words: Words, turns: list[Turn]) -> None:
    """Append results for the calls of the last turn, and the answer that tells them."""
    told = []
    for call in turns[-1].calls:
        result, said = outcome(rng, words, call.name)
        turns.append(Turn(role="tool", content=result))
        told.append(said)
    reasoning = "The results are here." if len(told) > 1 else "The result is here."
    turns.append(Turn(role="assistant", content=" ".join(told), reasoning=reasoning))


def tool_not_needed(rng: random.Random, words: Words) -> Task:
    """Tools are declared, but the question needs none, or none of them fits."""
    tools = tuple(t.declaration() for t in toolbox(rng, words, rng.randint(1, 4)))
    if rng.random() < 0.3:
        other = made_up_tool(rng, words, 0)
        turns = (
            Turn(role="user", content=f"Please {other.verb} the {other.noun}."),
            Turn(
                role="assistant",
                content=f"I have no tool to {other.verb} the {other.noun}.",
                reasoning="None of the tools fits.",
            ),
        )
        if any(t["name"].startswith(other.verb) for t in tools):
            return tool_not_needed(rng, words)
        return Task(kind="no_tool", turns=turns, tools=tools)
    inner = rng.choice((arithmetic, arithmetic, repeat, list_task, facts_question))(rng, words)
    return Task(kind="no_tool", turns=inner.turns[:2], tools=tools)


# ---------------------------------------------------------------------------------------------
# JSON


def record(rng: random.Random, words: Words) -> dict[str, tuple[dict[str, Json], Json]]:
    """Field name -> (schema, value), two to six fields."""
    fields: dict[str, tuple[dict[str, Json], Json]] = {}
    for _ in range(rng.randint(1, 6)):
        form = rng.randrange(9)
        if form == 0:
            fields["name"] = ({"type": "string"}, person(rng, words))
        elif form == 1:
            fields["age"] = ({"type": "integer"}, rng.randint(1, 99))
        elif form == 2:
            fields["city"] = ({"type": "string"}, rng.choice(words.cities))
        elif form == 3:
            fields["email"] = ({"type": "string"}, email(rng, words))
        elif form == 4:
            fields["date"] = ({"type": "string"}, date(rng))
        elif form == 5:
            fields["colour"] = ({"type": "string"}, rng.choice(COLOURS))
        else:
            made = slot(rng, words, rng.choice(words.nouns))
            schema = {k: v for k, v in made.schema.items() if k != "description"}
            fields[made.name] = (schema, made.value)
    return fields


def spoken(rng: random.Random, key: str, value: Json, style: int) -> str:
    """One field in words."""
    said = dumps(value) if not isinstance(value, str) else value
    if isinstance(value, list) and rng.random() < 0.5:
        said = listing([str(v) for v in value])
    if style == 0:
        return f"{key}: {said}"
    if style == 1:
        return f"{key} is {said}"
    return f"{key} = {said}"


def schema_of(fields: dict[str, tuple[dict[str, Json], Json]]) -> dict[str, Json]:
    """The JSON schema of a record."""
    return {
        "type": "object",
        "properties": {k: s for k, (s, _) in fields.items()},
        "required": list(fields),
    }


def described(rng: random.Random, fields: dict[str, tuple[dict[str, Json], Json]]) -> str:
    """A record in words, in the fields' order or mixed."""
    keys = list(fields)
    if rng.random() < 0.35:
        rng.shuffle(keys)
    style = rng.randrange(3)
    parts = [spoken(rng, k, fields[k][1], style) for k in keys]
    if style == 1:
        return "The " + "; the ".join(parts) + "."
    return (", " if style else rng.choice(("\n", "; "))).join(parts)


def json_schema(rng: random.Random, words: Words) -> Task:
    """Fill a schema given as response format (the evaluation's JSON form)."""
    fields = record(rng, words)
    value = {k: v for k, (_, v) in fields.items()}
    extra = f" {sentence(rng, words)}" if rng.random() < 0.3 else ""
    lead = pick(rng, "", "", "Extract the data. ", "Here is the record. ", "Fill in the fields.\n")
    turns = (
        Turn(role="user", content=lead + described(rng, fields) + extra),
        Turn(role="assistant", content=dumps(value), reasoning=fill_reasoning(value)),
    )
    return Task(kind="json", turns=turns, response_format=schema_of(fields))


def json_natural(rng: random.Random, words: Words) -> Task:
    """A sentence about a person, turned into an object with named keys."""
    name, age, city = person(rng, words), rng.randint(1, 99), rng.choice(words.cities)
    job, colour, mail = rng.choice(JOBS), rng.choice(COLOURS), email(rng, words)
    name = name if rng.random() < 0.5 else name.split()[0]
    parts: list[tuple[str, dict[str, Json], Json, str]] = [
        ("age", {"type": "integer"}, age, pick(rng, f"is {age} years old", f"is {age}")),
        ("city", {"type": "string"}, city, f"lives in {city}"),
        ("job", {"type": "string"}, job, f"works as {article(job)}"),
        ("email", {"type": "string"}, mail, f"has the email {mail}"),
        ("colour", {"type": "string"}, colour, f"likes {colour}"),
    ]
    chosen = rng.sample(parts, rng.randint(1, 4))
    text = f"{name} {listing([said for _, _, _, said in chosen])}."
    value: dict[str, Json] = {"name": name, **{key: v for key, _, v, _ in chosen}}
    reasoning = fill_reasoning(value)
    if rng.random() < 0.45:
        schemas = {"name": {"type": "string"}, **{key: s for key, s, _, _ in chosen}}
        schema: dict[str, Json] = {"type": "object", "properties": schemas}
        if rng.random() < 0.7:
            schema["required"] = list(value)
        user = pick(rng, text, f"Extract the data: {text}", f"{text} Answer in JSON.")
        return one(user, dumps(value), reasoning, schema)
    keys = listing(list(value))
    user = pick(
        rng,
        f"{text} Give JSON with {keys}.",
        f"Extract {keys} as JSON: {text}",
        f"Write a JSON object with the keys {keys}. {text}",
        f"Give me json with {keys} for this: {text}",
    )
    declared = {"type": "json_object"} if rng.random() < 0.5 else None
    return one(user, dumps(value), reasoning, declared)


def fill_reasoning(value: dict[str, Json]) -> str:
    """The one wording of the thought before a JSON answer."""
    return f"The keys are {listing(list(value))}."


def json_plain(rng: random.Random, words: Words) -> Task:
    """Write, read or change JSON on request, with or without the json_object format."""
    fields = {k: v for k, (_, v) in record(rng, words).items()}
    form = rng.randrange(6)
    declared = {"type": "json_object"} if rng.random() < 0.5 else None
    if form < 3:
        body = described(rng, {k: ({}, v) for k, v in fields.items()})
        user = pick(
            rng,
            f"Convert to JSON: {body}",
            f"Turn this into a JSON object.\n\n{body}",
            f"Write this as json: {body}",
            f"Make JSON of the following record.\n{body}",
        )
        keys = sorted(fields, key=lambda k: user.index(f"{k}:") if f"{k}:" in user else 0)
        answer = {k: fields[k] for k in ordered_keys(fields, body) or keys}
        return one(user, dumps(answer), fill_reasoning(answer), declared)
    if form == 3:
        key = rng.choice(list(fields))
        value = fields[key]
        user = pick(
            rng,
            f"What is {key} in this JSON?\n\n{dumps(fields)}",
            f"{dumps(fields)}\n\nGive the value of {key}.",
        )
        said = value if isinstance(value, str) else dumps(value)
        return one(user, said, f"The key {key} has the value {said}.", None)
    if form == 4:
        key, new = rng.choice(list(fields)), item(rng, words)
        user = f"Set {key} to {new} in this JSON:\n{dumps(fields)}"
        answer = {**fields, key: new}
        return one(user, dumps(answer), f"I change {key}.", declared)
    people = [
        {"name": rng.choice(words.first_names), "age": rng.randint(1, 99)}
        for _ in range(rng.randint(2, 4))
    ]
    said = listing([f"{p['name']} is {p['age']}" for p in people])
    user = pick(
        rng,
        f"Give a JSON array with name and age: {said}.",
        f"List these people as a json array of objects with name and age. {said}.",
    )
    return one(user, dumps(people), "One object for each person.", None)


def ordered_keys(fields: dict[str, Json], body: str) -> list[str]:
    """Keys in the order in which the text names them; empty if the text is ambiguous."""
    places = {}
    for key in fields:
        found = [m.start() for m in re.finditer(rf"(?:^|[;,\n]|[Tt]he) ?{key}(?::| is| =)", body)]
        if len(found) != 1:
            return []
        places[key] = found[0]
    return sorted(fields, key=places.__getitem__)


def one(user: str, answer: str, reasoning: str, declared: dict[str, Json] | None) -> Task:
    """A JSON task of one question."""
    turns = (
        Turn(role="user", content=user),
        Turn(role="assistant", content=answer, reasoning=reasoning),
    )
    return Task(kind="json", turns=turns, response_format=declared)
