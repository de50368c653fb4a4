"""Practice tasks with known answers: tools, JSON, sums, copying, questions on given facts.

Who calls it: `deodar eval` (held-out words) and the seedling's data generator (training words).
Every generator takes a random source and one side of the word split and returns a `Task`, a whole
conversation including the reference answers. What must hold: the same random state gives the same
task, and one situation has one wording of reasoning and answer, so that exact comparison means
something.
"""

# ruff: noqa: SIM905

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from deodar.evaluation.words import Words

Json = Any
Generator = Callable[[random.Random, Words], "Task"]


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call: the function's name and its arguments."""

    name: str
    arguments: dict[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One message. `reasoning` and `calls` belong to assistant turns, `tool` turns answer calls."""

    role: str  # system | user | assistant | tool
    content: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A conversation that ends with the assistant turn the model should produce."""

    kind: str
    turns: tuple[Turn, ...]
    tools: tuple[dict[str, Json], ...] = ()
    response_format: dict[str, Json] | None = None  # a schema, or {"type": "json_object"}
    noise_prompt: bool = field(default=False)  # the prompt is unpredictable by nature

    @property
    def expected(self) -> Turn:
        """The reference answer."""
        return self.turns[-1]


def dumps(value: Json) -> str:
    """JSON on one line, as the chat format writes it (`", "`, `": "`, letters kept)."""
    return json.dumps(value, ensure_ascii=False)


def pick(rng: random.Random, *choices: str) -> str:
    """One of several phrasings."""
    return rng.choice(choices)


def listing(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(items) < 2:
        return "".join(items)
    return ", ".join(items[:-1]) + " and " + items[-1]


def article(phrase: str) -> str:
    """The phrase with `a` or `an`."""
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def single(kind: str, user: str, answer: str, reasoning: str, **more: Json) -> Task:
    """A task of one question and one answer."""
    turns = (
        Turn(role="user", content=user),
        Turn(role="assistant", content=answer, reasoning=reasoning),
    )
    return Task(kind=kind, turns=turns, **more)


# ---------------------------------------------------------------------------------------------
# Values


def person(rng: random.Random, words: Words) -> str:
    """A full name."""
    return f"{rng.choice(words.first_names)} {rng.choice(words.last_names)}"


def email(rng: random.Random, words: Words) -> str:
    """A mail address at a made-up domain."""
    name = rng.choice((rng.choice(words.first_names).lower(), words.invented(rng)))
    return f"{name}@{rng.choice(words.nouns)}.{rng.choice(('com', 'org', 'net', 'io'))}"


def date(rng: random.Random) -> str:
    """An ISO date."""
    return f"20{rng.randint(10, 39)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def thing(rng: random.Random, words: Words) -> str:
    """A short string: word, words, name, place, code, made-up word or address."""
    form = rng.randrange(12)
    if form < 2:
        return rng.choice(words.nouns)
    if form < 4:
        return f"{rng.choice(words.adjectives)} {rng.choice(words.nouns)}"
    if form == 4:
        return person(rng, words)
    if form == 5:
        return rng.choice(words.cities)
    if form < 8:
        return words.identifier(rng)
    if form < 10:
        return words.invented(rng)
    return email(rng, words) if form == 10 else date(rng)


def item(rng: random.Random, words: Words) -> str:
    """A single word without blanks: noun, made-up word or code."""
    form = rng.randrange(6)
    if form < 3:
        return rng.choice(words.nouns)
    return words.invented(rng) if form < 5 else words.identifier(rng)


def sentence(rng: random.Random, words: Words) -> str:
    """A plain sentence of known grammar and no further meaning."""
    a, b = rng.choice(words.adjectives), rng.choice(words.adjectives)
    n, m = rng.choice(words.nouns), rng.choice(words.nouns)
    who, city = rng.choice(words.first_names), rng.choice(words.cities)
    return pick(
        rng,
        f"The {a} {n} is near the {m}.",
        f"{who} put the {n} beside the {b} {m}.",
        f"{who} went to {city} with a {a} {n}.",
        f"There are {rng.randint(2, 90)} {a} things in the {m}.",
        f"Please bring the {n} to {who} in {city}.",
        f"{who} and {rng.choice(words.first_names)} talked about the {a} {n}.",
        f"The {n} of {city} was {b} but the {m} was {a}.",
    )


# ---------------------------------------------------------------------------------------------
# Sums


def column_addition(a: int, b: int) -> str:
    """Worked addition, ones first, in one fixed wording."""
    steps, carry, left, right = [], 0, a, b
    while left or right or carry:
        x, y = left % 10, right % 10
        if not (left or right):
            steps.append(f"the carry gives {carry}")
            break
        total = x + y + carry
        shown = f"{x} + {y} + {carry}" if carry else f"{x} + {y}"
        carry = total // 10
        steps.append(f"{shown} = {total}" + (f", write {total % 10} carry 1" if carry else ""))
        left, right = left // 10, right // 10
    return f"{a} + {b}: " + "; ".join(steps) + f". So {a + b}."


def column_subtraction(a: int, b: int) -> str:
    """Worked subtraction; a smaller number first is turned around."""
    if a < b:
        turned = column_subtraction(b, a)
        return f"{a} is less than {b}, so the result is negative. {turned} With minus: {a - b}."
    steps, borrow, left, right = [], 0, a, b
    while left or right:
        x, y = left % 10, right % 10 + borrow
        borrow = int(x < y)
        x += 10 * borrow
        steps.append(f"{x} - {y} = {x - y}" + (", borrow 1" if borrow else ""))
        left, right = left // 10, right // 10
    return f"{a} - {b}: " + "; ".join(steps) + f". So {a - b}."


def long_product(a: int, b: int) -> str:
    """Worked product of a number and a digit."""
    tens, ones = a // 10 * 10, a % 10
    if a < 11 or not ones:
        return f"{a} x {b} = {a * b}."
    return (
        f"{tens} x {b} = {tens * b}; {ones} x {b} = {ones * b}; {tens * b} + {ones * b} = {a * b}."
    )


def two_digit_sum(rng: random.Random, words: Words) -> Task:
    """`a + b` of two two-digit numbers, asked plainly (also the evaluation's sum)."""
    a, b = rng.randint(10, 99), rng.randint(10, 99)
    return single("sum", f"What is {a} + {b}?", f"{a} + {b} = {a + b}.", column_addition(a, b))


def arithmetic(rng: random.Random, words: Words) -> Task:
    """Addition, subtraction, products, division, comparison and one-step stories."""
    form = rng.randrange(12)
    top = rng.choice((20, 99, 99, 99, 999))
    a, b = rng.randint(1, top), rng.randint(1, top)
    if form < 4:
        work, sign, verb, result = column_addition(a, b), "+", "plus", a + b
        wish = f"Add {a} and {b}."
    elif form < 7:
        if rng.random() < 0.85:
            a, b = max(a, b), min(a, b)
        work, sign, verb, result = column_subtraction(a, b), "-", "minus", a - b
        wish = f"Subtract {b} from {a}."
    elif form < 9:
        a, b = rng.randint(2, rng.choice((12, 12, 99))), rng.randint(2, 9)
        if a <= 12 and rng.random() < 0.3:
            b = rng.randint(2, 12)
        work, sign, verb, result = long_product(a, b), "x", "times", a * b
        wish = f"Multiply {a} by {b}."
    elif form == 9:
        result, b = rng.randint(2, 12), rng.randint(2, 12)
        a = result * b
        work, sign, verb = f"{b} x {result} = {a}, so {a} / {b} = {result}.", "/", "divided by"
        wish = f"Divide {a} by {b}."
    elif form == 10:
        return comparison(rng)
    else:
        return story_sum(rng, words)
    ask = rng.randrange(8)
    if ask == 0:
        text, answer = f"{a} {sign} {b} = ? Answer with the number only.", f"{result}"
    elif ask == 1:
        text, answer = f"What is {a} {sign} {b}? Just the number.", f"{result}"
    else:
        tight = f"{a}{'*' if sign == 'x' else sign}{b}"
        text = pick(
            rng,
            f"What is {a} {sign} {b}?",
            f"What is {a} {verb} {b}?",
            wish,
            f"Calculate {a} {sign} {b}.",
            f"{a} {sign} {b} = ?",
            f"what's {a} {sign} {b}",
            f"How much is {a} {verb} {b}?",
            tight,
            f"{tight}=?",
            f"Can you compute {a} {sign} {b} for me?",
        )
        answer = f"{a} {sign} {b} = {result}."
    return single("sum", text, answer, work)


def comparison(rng: random.Random) -> Task:
    """Larger, smaller, or yes and no."""
    a, b = rng.sample(range(0, rng.choice((20, 100, 1000))), 2)
    if rng.random() < 0.4:
        sign = rng.choice(("greater", "less"))
        holds = a > b if sign == "greater" else a < b
        truth = f"{a} is {'greater' if a > b else 'less'} than {b}."
        return single(
            "compare", f"Is {a} {sign} than {b}?", f"{'Yes' if holds else 'No'}, {truth}", truth
        )
    word = rng.choice(("larger", "smaller"))
    result = max(a, b) if word == "larger" else min(a, b)
    text = pick(rng, f"Which is {word}, {a} or {b}?", f"Which number is {word}: {a} or {b}?")
    low, high = min(a, b), max(a, b)
    return single("compare", text, f"{result} is {word}.", f"{low} is less than {high}.")


def story_sum(rng: random.Random, words: Words) -> Task:
    """A one-step story about things owned."""
    who, what = rng.choice(words.first_names), rng.choice(words.nouns) + " cards"
    what = rng.choice(("apples", "coins", "books", "stamps", "eggs", "tickets", what))
    a, b = rng.randint(2, 60), rng.randint(2, 40)
    if rng.random() < 0.5:
        text = pick(
            rng,
            f"{who} has {a} {what} and gets {b} more. How many {what} does {who} have now?",
            f"{who} had {a} {what}. Then {who} bought {b} more. How many now?",
        )
        result, work = a + b, column_addition(a, b)
    else:
        a, b = max(a, b), min(a, b)
        text = pick(
            rng,
            f"{who} has {a} {what} and gives away {b}. How many {what} are left?",
            f"{who} had {a} {what} and lost {b}. How many {what} does {who} have now?",
        )
        result, work = a - b, column_subtraction(a, b)
    return single("story", text, f"{who} has {result} {what}.", work)


# ---------------------------------------------------------------------------------------------
# Copying and lists


def repeat(rng: random.Random, words: Words) -> Task:
    """Say it again, exactly."""
    form = rng.randrange(5)
    if form == 0:
        text = sentence(rng, words)
    elif form == 1:
        text = " ".join(words.invented(rng) for _ in range(rng.randint(1, 5)))
    elif form == 2:
        text = words.identifier(rng)
    else:
        text = " ".join(thing(rng, words) for _ in range(rng.randint(1, 5)))
    user = pick(
        rng,
        f"Repeat exactly: {text}",
        f"Repeat after me: {text}",
        f"Say this again: {text}",
        f"Copy this line: {text}",
        f'Write "{text}" and nothing else.',
        f"Echo: {text}",
        f"Please repeat the following text.\n\n{text}",
    )
    return single("copy", user, text, "I copy the text.")


def list_task(rng: random.Random, words: Words) -> Task:
    """Reverse, sort, count, first, last, numbered and bulleted lists."""
    items = list(dict.fromkeys(item(rng, words) for _ in range(rng.randint(2, 7))))
    form, count = rng.randrange(9), len(items)
    shown = ", ".join(items)
    if form == 0:
        user = pick(rng, f"Reverse this list: {shown}", f"Write this list backwards: {shown}")
        return single("list", user, ", ".join(items[::-1]), "I start with the last item.")
    if form == 1:
        plain = sorted(set(rng.choices(words.nouns, k=rng.randint(2, 6))))
        mixed = rng.sample(plain, len(plain))
        ask = pick(rng, "Sort alphabetically: ", "Put in alphabetical order: ")
        firsts = ", ".join(word[0] for word in plain)
        return single("sort", ask + ", ".join(mixed), ", ".join(plain), f"First letters: {firsts}.")
    if form == 2:
        numbers = rng.sample(range(1, rng.choice((20, 100, 1000))), rng.randint(2, 6))
        down = rng.random() < 0.3
        order = sorted(numbers, reverse=down)
        first = "The largest" if down else "The smallest"
        ask = f"Sort these numbers{' from largest to smallest' if down else ''}: "
        answer = ", ".join(map(str, order))
        asked = ask + ", ".join(map(str, numbers))
        return single("sort", asked, answer, f"{first} is {order[0]}.")
    if form == 3:
        user = pick(rng, f"How many items are in this list: {shown}?", f"Count the items: {shown}")
        walk = ", ".join(f"{i} {name}" for i, name in enumerate(items, 1))
        return single("count", user, f"There are {count} items.", f"{walk}.")
    if form in (4, 5):
        place = rng.randrange(count)
        names = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")
        name = "last" if place == count - 1 and rng.random() < 0.7 else names[place]
        user = pick(
            rng,
            f"What is the {name} item of this list: {shown}?",
            f"{shown}\n\nName the {name} one.",
        )
        return single("pick", user, items[place], f"The {name} item is {items[place]}.")
    if form == 6:
        answer = "\n".join(f"- {name}" for name in items)
        return single("format", f"Make a bullet list: {shown}", answer, "One line per item.")
    if form == 7:
        answer = "\n".join(f"{i}. {name}" for i, name in enumerate(items, 1))
        return single("format", f"Make a numbered list: {shown}", answer, "One line per item.")
    user = f"Join with commas: {' '.join(items)}"
    return single("format", user, shown, "I put a comma after each item.")


def word_task(rng: random.Random, words: Words) -> Task:
    """Spelling, letter case, first letters, and picking a code or address out of a sentence."""
    form = rng.randrange(7)
    word = rng.choice(words.nouns)
    if form == 0:
        user = pick(rng, f"Spell the word {word}.", f"How do you spell {word}?")
        return single("spell", user, "-".join(word), "I write letter by letter.")
    if form == 1:
        user = f"What is the first letter of {word}?"
        return single("spell", user, f"The first letter of {word} is {word[0]}.", "-".join(word))
    if form == 2:
        user = f"Write {word} in capital letters."
        return single("spell", user, word.upper(), "I change each letter.")
    if form == 3:
        user = f"How many letters does {word} have?"
        walk = ", ".join(f"{i} {c}" for i, c in enumerate(word, 1)) + "."
        return single("spell", user, f"The word {word} has {len(word)} letters.", walk)
    before, after = sentence(rng, words), sentence(rng, words)
    what, value, middle = extractable(rng, words)
    user = pick(
        rng,
        f"Extract the {what}: {before} {middle} {after}",
        f"Find the {what} in this text.\n\n{before} {middle} {after}",
        f"{before} {middle} {after}\n\nWhat is the {what}?",
    )
    return single("extract", user, value, f"The {what} is {value}.")


def extractable(rng: random.Random, words: Words) -> tuple[str, str, str]:
    """(what it is, its value, a sentence that holds it)."""
    form = rng.randrange(5)
    who = rng.choice(words.first_names)
    if form == 0:
        value = email(rng, words)
        return "email address", value, f"You can reach {who} at {value} every day."
    if form == 1:
        value = date(rng)
        return "date", value, f"The meeting with {who} is on {value} at noon."
    if form == 2:
        value = words.identifier(rng)
        return "code", value, f"The code is {value} for now."
    if form == 3:
        value = f"{rng.randint(10, 9999)}-{rng.randint(1000, 9999)}"
        return "phone number", value, f"{who} can be called at {value} after lunch."
    value = rng.choice(words.cities)
    return "city", value, f"{who} lives in {value} now."


# ---------------------------------------------------------------------------------------------
# Questions on given facts

JOBS = (
    "baker teacher doctor farmer pilot painter nurse lawyer sailor tailor writer driver carpenter "
    "dentist plumber singer chemist gardener waiter judge"
).split()
COLOURS = "red blue green yellow white brown grey orange purple pink silver golden".split()


def fact(rng: random.Random, words: Words, who: str) -> tuple[str, str, str]:
    """(statement, question, answer) about one person or thing."""
    form = rng.randrange(9)
    if form == 0:
        v = rng.choice(words.cities)
        return f"{who} lives in {v}.", f"Where does {who} live?", f"{who} lives in {v}."
    if form == 1:
        v = rng.choice(JOBS)
        return f"{who} works as a {v}.", f"What is the job of {who}?", f"{who} works as a {v}."
    if form == 2:
        v = rng.choice(COLOURS) + " " + rng.choice(words.nouns)
        said = f"{who} owns {article(v)}."
        return said, f"What does {who} own?", said
    if form == 3:
        n = rng.randint(18, 90)
        return f"{who} is {n} years old.", f"How old is {who}?", f"{who} is {n} years old."
    if form == 4:
        v = words.identifier(rng)
        said = f"The code of {who} is {v}."
        return said, f"What is the code of {who}?", said
    if form == 5:
        v = rng.choice(words.nouns)
        said = f"{who} keeps the key in the {v}."
        return said, f"Where does {who} keep the key?", said
    if form == 6:
        v = words.invented(rng)
        said = f"{who} has a dog called {v.capitalize()}."
        return said, f"What is the name of {who}'s dog?", f"{who}'s dog is called {v.capitalize()}."
    if form == 7:
        v = rng.choice(words.nouns)
        said = f"{who} likes the {v} best."
        return said, f"What does {who} like best?", said
    other = person(rng, words)
    return (
        f"The boss of {who} is {other}.",
        f"Who is the boss of {who}?",
        (f"The boss of {who} is {other}."),
    )


def facts_question(rng: random.Random, words: Words) -> Task:
    """A few facts, one or more questions in turn."""
    people = rng.sample(words.first_names, rng.randint(2, 7))
    facts = [fact(rng, words, who) for who in people]
    text = " ".join(said for said, _, _ in facts)
    asked = rng.sample(facts, min(len(facts), rng.choice((1, 1, 1, 2, 3))))
    lead = pick(rng, "", "", "Read this and answer.\n\n", "Here are some facts. ", "Text: ")
    turns: list[Turn] = []
    for number, (said, question, answer) in enumerate(asked):
        user = question if number else f"{lead}{text}\n\n{question}"
        turns.append(Turn(role="user", content=user))
        turns.append(Turn(role="assistant", content=answer, reasoning=f"The text says: {said}"))
    return Task(kind="facts", turns=tuple(turns))


def remember(rng: random.Random, words: Words) -> Task:
    """Tell something about oneself, talk of something else, be asked about it."""
    who = rng.choice(words.first_names)
    thing_, value = rng.choice(
        (
            ("name", who),
            ("favourite colour", rng.choice(COLOURS)),
            ("city", rng.choice(words.cities)),
            ("code", words.identifier(rng)),
            ("password", words.invented(rng)),
            ("pet's name", words.invented(rng).capitalize()),
            ("lucky number", str(rng.randint(1, 99))),
        )
    )
    tell = pick(rng, f"My {thing_} is {value}.", f"Remember this: my {thing_} is {value}.")
    turns = [
        Turn(role="user", content=tell),
        Turn(
            role="assistant",
            content=f"Noted: your {thing_} is {value}.",
            reasoning=f"I keep in mind: {thing_} is {value}.",
        ),
    ]
    for _ in range(rng.randint(0, 2)):
        turns += rng.choice((arithmetic, list_task, repeat))(rng, words).turns
    turns += [
        Turn(role="user", content=pick(rng, f"What is my {thing_}?", f"Do you know my {thing_}?")),
        Turn(
            role="assistant",
            content=f"Your {thing_} is {value}.",
            reasoning=f"The user said: my {thing_} is {value}.",
        ),
    ]
    return Task(kind="remember", turns=tuple(turns))
