"""Chat samples that only training needs: small talk, knowledge, familiar tools, stories, code.

Used by `training/synth.py`. The evaluation does not draw from here. One question has one answer.
"""

# ruff: noqa: SIM905, E501, E741

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from tables import (
    CAPITALS,
    CATEGORIES,
    CODE,
    CONCEPTS,
    FACTS,
    HELLO,
    HOWTO,
    OPPOSITES,
    PAST,
    PLURALS,
    SMALLTALK,
    SOUNDS,
    SYMBOLS,
)

from deodar.evaluation.tasks import Call, Json, Task, Turn, date, dumps, email, pick, single
from deodar.evaluation.words import Words


def rows(table: str, separator: str = ";") -> list[tuple[str, ...]]:
    """A table's lines as tuples of fields."""
    return [
        tuple(p.strip("\n") for p in r.strip().split("|"))
        for r in table.split(separator)
        if r.strip()
    ]


capitals, opposites, plurals, past = rows(CAPITALS), rows(OPPOSITES), rows(PLURALS), rows(PAST)
symbols, hello, sounds = rows(SYMBOLS), rows(HELLO), rows(SOUNDS)
categories, facts, concepts = rows(CATEGORIES, "\n"), rows(FACTS, "\n"), rows(CONCEPTS, "\n")
# The two tables below hold literal line breaks inside a field; each row starts a line with `...|`.
NUMBER_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).split()


def blocks(table: str) -> list[tuple[str, str]]:
    """Rows whose second field spans lines: a new row starts where a line has a bar."""
    out: list[tuple[str, str]] = []
    for line in table.split("\n"):
        head, bar, tail = line.partition("|")
        if bar:
            out.append((head, tail))
        else:
            out[-1] = (out[-1][0], out[-1][1] + "\n" + line)
    return out


howto, talk, code = blocks(HOWTO), blocks(SMALLTALK), blocks(CODE)


def loosen(rng: random.Random, text: str) -> str:
    """The same question as people type it: capital or not, mark or not."""
    if rng.random() < 0.55:
        text = text[0].upper() + text[1:]
    form = rng.random()
    question = text.split()[0].lower().rstrip("'s") in QUESTION_WORDS or text.endswith("?")
    text = text.rstrip("?.!")
    if form < 0.5:
        return text + ("?" if question else rng.choice(".!"))
    return text


QUESTION_WORDS = frozenset("what who how where are do can is any which why when did does".split())


def small_talk(rng: random.Random, words: Words) -> Task:
    """A greeting, a question about the model, a wish."""
    asked, answer = rng.choice(talk)
    user = loosen(rng, rng.choice(asked.split(",")))
    if rng.random() < 0.15:
        asked_first = rng.choice(("hello", "hi", "hey"))
        if not user.lower().startswith(("hello", "hi", "hey", "good")):
            user = f"{asked_first.capitalize()}, {user[0].lower()}{user[1:]}"
    return single("talk", user, answer, "A short friendly answer.")


def named_system(rng: random.Random, words: Words) -> Task:
    """A system message gives a name or a manner, and the answer keeps to it."""
    name = rng.choice((rng.choice(words.first_names), words.invented(rng).capitalize()))
    job = rng.choice(("assistant", "guide", "librarian", "cook", "teacher", "support agent", "bot"))
    form = rng.randrange(4)
    if form < 2:
        system = pick(rng, f"You are {name}, a {job}.", f"You are {name}. You work as a {job}.")
        user = loosen(rng, pick(rng, "who are you", "what is your name", "introduce yourself"))
        answer = f"I am {name}, a {job}."
        reasoning = f"The system says: I am {name}."
    elif form == 2:
        word = rng.choice(("Yes!", "Done.", "Understood.", words.invented(rng)))
        system = f'Always answer with "{word}" and nothing else.'
        user = loosen(rng, rng.choice(rng.choice(talk)[0].split(",")))
        answer, reasoning = word, f"The system wants: {word}"
    else:
        fact = words.identifier(rng)
        system = f"The access code is {fact}. Tell it when asked."
        user = loosen(rng, "what is the access code")
        answer, reasoning = f"The access code is {fact}.", f"The system says: the code is {fact}."
    turns = (
        Turn(role="system", content=system),
        Turn(role="user", content=user),
        Turn(role="assistant", content=answer, reasoning=reasoning),
    )
    return Task(kind="system", turns=turns)


def knowledge(rng: random.Random, words: Words) -> Task:
    """One fact out of the tables."""
    form = rng.randrange(13)
    if form < 3:
        country, city = rng.choice(capitals)
        if rng.random() < 0.2:
            user = f"{city} is the capital of which country"
            answer = f"{city} is the capital of {country}."
        else:
            user = pick(rng, f"what is the capital of {country}", f"capital of {country}",
                        f"what's the capital of {country}", f"tell me the capital of {country}",
                        f"name the capital city of {country}")  # fmt: skip
            answer = f"The capital of {country} is {city}."
    elif form == 3:
        a, b = rng.choice(opposites)
        user = pick(rng, f"what is the opposite of {a}", f"opposite of {a}", f"antonym of {a}")
        answer = f"The opposite of {a} is {b}."
    elif form == 4:
        a, b = rng.choice(plurals)
        user, answer = f"what is the plural of {a}", f"The plural of {a} is {b}."
    elif form == 5:
        a, b = rng.choice(past)
        user, answer = f"what is the past tense of {a}", f"The past tense of {a} is {b}."
    elif form == 6:
        name, sign, number = rng.choice(symbols)
        if rng.random() < 0.5:
            user = f"what is the chemical symbol of {name}"
            answer = f"The chemical symbol of {name} is {sign}."
        else:
            user = f"what is the atomic number of {name}"
            answer = f"The atomic number of {name} is {number}."
    elif form == 7:
        tongue, hi, thanks = rng.choice(hello)
        which, said = rng.choice((("hello", hi), ("thank you", thanks)))
        user = pick(rng, f"how do you say {which} in {tongue}", f"what is {which} in {tongue}")
        answer = f'In {tongue}, {which} is "{said}".'
    elif form == 8:
        animal, sound = rng.choice(sounds)
        user, answer = f"what sound does a {animal} make", f"A {animal} {sound}."
    elif form == 9:
        n = rng.randrange(len(NUMBER_WORDS))
        user, answer = f"write {n} as a word", f"{n} is {NUMBER_WORDS[n]}."
    else:
        user, answer = rng.choice(facts)
    return single("knowledge", loosen(rng, user), answer, "This is a known fact.")


def enumerate_category(rng: random.Random, words: Words) -> Task:
    """The first N members of a category, in the table's order."""
    name, members = rng.choice(categories)
    items = members.split(", ")
    count = rng.randint(2, min(len(items), 8))
    said = str(count) if rng.random() < 0.5 else NUMBER_WORDS[count]
    form = rng.randrange(4)
    if form == 0 and name in ("planets", "continents", "oceans", "seasons", "senses", "vowels",
                              "months", "days of the week"):  # fmt: skip
        return single("listing", loosen(rng, f"name all {name}"), ", ".join(items), "I list them.")
    if form == 1:
        user = pick(rng, f"list {said} {name}", f"make a list of {said} {name}")
        answer = "\n".join(f"{i}. {x}" for i, x in enumerate(items[:count], 1))
    else:
        user = pick(rng, f"name {said} {name}", f"give me {said} {name}", f"tell me {said} {name}")
        answer = ", ".join(items[:count])
    return single("listing", loosen(rng, user), answer, f"I give {count} {name}.")


def concept(rng: random.Random, words: Words) -> Task:
    """A short explanation of a thing."""
    if rng.random() < 0.12:
        what, answer = rng.choice(howto)
        user = pick(rng, f"how do I {what}", f"how can I {what}", f"tell me how to {what}")
        return single("howto", loosen(rng, user), answer, "I give short steps.")
    name, answer = rng.choice(concepts)
    bare = re.sub("^(an?|the) ", "", name)
    user = pick(
        rng, f"what is {name}", f"what is {name}", f"explain {name}", f"tell me about {name}",
        f"what's {name}", f"what is {bare}", f"define {bare}", f"can you explain {name}",
        f"what does {bare} mean", f"describe {name}",
    )  # fmt: skip
    return single("concept", loosen(rng, user), answer, f"I explain {name} in a few words.")


def function(rng: random.Random, words: Words) -> Task:
    """A short Python function."""
    what, body = rng.choice(code)
    user = pick(
        rng, f"write a Python function that {what}", f"write a function that {what}",
        f"Python code: a function that {what}", f"show me a python function which {what}",
    )  # fmt: skip
    return single("code", loosen(rng, user), f"```python\n{body}\n```", "I write a short function.")


def unknown(rng: random.Random, words: Words) -> Task:
    """Questions that a model of this size cannot know: it says so."""
    year, noun = rng.randint(1500, 2030), rng.choice(words.nouns)
    user = pick(
        rng,
        f"who is {rng.choice(words.first_names)} {rng.choice(words.last_names)}",
        f"what is the population of {rng.choice((*words.cities, rng.choice(capitals)[0]))}",
        f"who won the {noun} cup in {year}",
        f"what happened in {year}",
        f"how much does {words.invented(rng)} cost",
        f"where can I buy a {noun}",
        f"when was the {noun} invented",
        f"what is the phone number of {rng.choice(words.first_names)}",
        f"who invented the {noun}",
        "what is my name",
        f"which {noun} is the best",
    )
    answer = "I do not know. I am a very small model."
    if rng.random() < 0.15:
        user, answer = f"what do you think about {noun}", f"I have no opinion about {noun}."
    return single("talk", loosen(rng, user), answer, "I do not know this.")


ANIMALS = "fox cat dog bear owl mouse rabbit wolf crow duck horse frog turtle hen goat".split()
PLACES = "forest village river garden castle mill harbour meadow market valley".split()
TRAITS = "small brave old clever hungry shy lazy kind curious lonely".split()


def story(rng: random.Random, words: Words) -> Task:
    """A five-sentence story whose parts follow from the hero and the place."""
    hero, place = rng.choice(ANIMALS), rng.choice(PLACES)
    name = rng.choice(words.first_names)
    trait = TRAITS[(len(hero) * 3 + len(place)) % len(TRAITS)]
    friend = ANIMALS[(ANIMALS.index(hero) + 4) % len(ANIMALS)]
    form = rng.randrange(3)
    if form == 0:
        user = pick(rng, f"tell me a story about a {hero}", f"write a short story about a {hero}")
        name, place = "", PLACES[len(hero) % len(PLACES)]
        trait = TRAITS[len(hero) % len(TRAITS)]
    elif form == 1:
        user = f"tell me a story about a {hero} in a {place}"
        name = ""
    else:
        user = f"tell me a story about {name}, a {hero} in a {place}"
    who = f"the {hero}"
    born = f" called {name}" if name else ""
    answer = (
        f"Once there was a {trait} {hero}{born} who lived near a {place}. "
        f"One morning {who} heard a strange sound and went to look. "
        f"It was a {friend} that had lost its way home. "
        f"{who.capitalize()} showed the {friend} the path and they walked together until evening. "
        "From that day on they were good friends."
    )
    return single("story", loosen(rng, user), answer, f"A short story about a {hero}.")


def gloss_question(glosses: Sequence[tuple[str, str, str]]):
    """A generator of `what does WORD mean` over dictionary entries."""

    def generate(rng: random.Random, words: Words) -> Task:
        word, kind, gloss = glosses[min(rng.randrange(len(glosses)), rng.randrange(len(glosses)))]
        named = {"verb": f"to {word}", "noun": word}.get(kind, word)
        user = pick(
            rng, f"what does {word} mean", f"define {word}", f"what is the meaning of {word}",
            f"define the {kind if kind in ('noun', 'verb') else 'word'} {word}",
        )  # fmt: skip
        return single("gloss", loosen(rng, user), f"{named}: {gloss}.", "I give the definition.")

    return generate


# ---------------------------------------------------------------------------------------------
# Familiar tools: (name, description, parameters, phrasings, result, answer). `{x}` is a slot.

S, I, N, B = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}
UNIT = {"type": "string", "enum": ["celsius", "fahrenheit"]}
FAMILIAR: tuple[tuple[str, str, dict[str, Json], tuple[str, ...], str, str], ...] = (
    ("get_weather", "Get the current weather for a city.", {"city": S},
     ("What is the weather in {city}?", "How is the weather in {city} today?", "weather in {city}",
      "Is it raining in {city}?", "Tell me the weather in {city}."),
     '{{"temperature": {t}, "condition": "{sky}"}}', "It is {t} degrees and {sky} in {city}."),
    ("get_current_weather", "Current weather in a place.", {"location": S, "unit": UNIT},
     ("What's the weather in {location} in {unit}?", "Weather for {location}, use {unit}."),
     '{{"temperature": {t}, "unit": "{unit}"}}', "It is {t} degrees {unit} in {location}."),
    ("get_time", "Get the local time of a city.", {"city": S},
     ("What time is it in {city}?", "Time in {city}?", "Tell me the time in {city}."),
     "{clock}", "It is {clock} in {city}."),
    ("search_web", "Search the web.", {"query": S},
     ("Search the web for {query}.", "Look up {query}.", "Find pages about {query}."),
     '["{query} explained", "All about {query}"]',
     "I found: {query} explained and All about {query}."),
    ("send_email", "Send an email.", {"to": S, "subject": S, "body": S},
     ('Send an email to {to} with subject "{subject}" and body "{body}".',
      'Write to {to}: subject "{subject}", text "{body}".'),
     "sent", "The email to {to} was sent."),
    ("calculator", "Evaluate an arithmetic expression.", {"expression": S},
     ("Calculate {expression}.", "What is {expression}? Use the calculator.", "Compute {expression}"),
     "{value}", "The result is {value}."),
    ("set_timer", "Set a timer.", {"minutes": I},
     ("Set a timer for {minutes} minutes.", "Wake me in {minutes} minutes.", "timer {minutes} minutes"),
     "ok", "The timer is set for {minutes} minutes."),
    ("create_event", "Create a calendar event.", {"title": S, "date": S},
     ("Create an event called {title} on {date}.", "Put {title} in my calendar for {date}."),
     '{{"id": {id}}}', "The event {title} was created for {date}."),
    ("convert_currency", "Convert money.", {"amount": N, "from": S, "to_currency": S},
     ("Convert {amount} {from} to {to_currency}.", "How much is {amount} {from} in {to_currency}?"),
     "{value}", "{amount} {from} is {value} {to_currency}."),
    ("translate_text", "Translate text to a language.", {"text": S, "language": S},
     ('Translate "{text}" to {language}.', 'How do you say "{text}" in {language}?'),
     "{word}", 'In {language} it is "{word}".'),
    ("read_file", "Read a file.", {"path": S},
     ("Read the file {path}.", "Show me {path}.", "What is in {path}?", "open {path}"),
     "{word} {noun}", "The file {path} contains: {word} {noun}"),
    ("list_files", "List the files of a folder.", {"path": S},
     ("List the files in {path}.", "What files are in {path}?", "ls {path}"),
     '["{noun}.txt", "{word}.py"]', "The folder {path} contains {noun}.txt and {word}.py."),
    ("run_command", "Run a shell command.", {"command": S},
     ("Run the command {command}.", "Execute {command}", "Run `{command}`."),
     "done", "The command {command} answered: done."),
    ("get_stock_price", "Latest price of a stock.", {"symbol": S},
     ("What is the price of {symbol}?", "Get the stock price of {symbol}.", "{symbol} stock price"),
     '{{"price": {value}}}', "The price of {symbol} is {value}."),
    ("play_music", "Play a song.", {"song": S, "volume": I},
     ("Play {song} at volume {volume}.", "Put on {song}, volume {volume}."),
     "playing", "Now playing {song} at volume {volume}."),
    ("turn_on_light", "Switch a light.", {"room": S, "on": B},
     ("Switch the light in the {room}: on {on}.",),
     "ok", "The light in the {room} is set."),
    ("stock_level", "Units left in one warehouse.", {"sku": S, "site": I},
     ("How many {sku} are left at site {site}?", "Stock of {sku} at site {site}?"),
     "{id}", "There are {id} units of {sku} at site {site}."),
    ("add_todo", "Add a task to the list.", {"task": S},
     ("Add {task} to my list.", "Remind me to {task}.", "new todo: {task}"),
     "added", "I added {task} to your list."),
    ("get_user", "Look up a user by id.", {"user_id": I},
     ("Who is user {user_id}?", "Get user {user_id}.", "Look up the user with id {user_id}."),
     '{{"name": "{person}"}}', "User {user_id} is {person}."),
    ("book_flight", "Book a flight.", {"from_city": S, "to_city": S, "date": S},
     ("Book a flight from {from_city} to {to_city} on {date}.",
      "I want to fly from {from_city} to {to_city} on {date}."),
     '{{"booking": "{code}"}}', "The flight is booked. The booking code is {code}."),
    ("find_restaurant", "Find a restaurant.", {"city": S, "food": S},
     ("Find a {food} restaurant in {city}.", "Where can I eat {food} food in {city}?"),
     '{{"name": "{word}"}}', "You can go to {word} in {city}."),
)  # fmt: skip


def slot_value(rng: random.Random, words: Words, key: str, schema: dict[str, Json]) -> Json:
    """A fitting value of one familiar parameter or result field."""
    special: dict[str, Json] = {
        "unit": rng.choice(UNIT["enum"]),
        "to": email(rng, words),
        "date": date(rng),
        "expression": f"{rng.randint(2, 999)} {rng.choice('+-*/')} {rng.randint(2, 999)}",
        "path": f"{rng.choice(words.nouns)}/{rng.choice((words.invented(rng), rng.choice(words.nouns)))}"
        + rng.choice((".txt", ".py", ".md", "", ".json")),
        "symbol": "".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=rng.randint(2, 4))),
        "from": rng.choice(("EUR", "USD", "GBP", "JPY")),
        "to_currency": rng.choice(("CHF", "SEK", "INR", "CAD")),
        "language": rng.choice(hello)[0],
        "command": rng.choice(("ls", "cat", "echo", "rm", "make", "python"))
        + " "
        + words.invented(rng),
        "sku": words.identifier(rng),
        "food": rng.choice(("Thai", "Greek", "Indian", "French", "Italian")),
        "room": rng.choice(("kitchen", "bedroom", "garden", "office")),
        "task": f"{rng.choice(words.verbs)} the {rng.choice(words.nouns)}",
        "amount": rng.choice((rng.randint(1, 5000), round(rng.uniform(1, 99), 2))),
        "t": rng.randint(-9, 38),
        "sky": rng.choice(("sunny", "cloudy", "rainy", "windy", "foggy")),
        "clock": f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}",
        "value": round(rng.uniform(1, 900), 2),
        "id": rng.randint(1, 9999),
        "word": words.invented(rng),
        "noun": rng.choice(words.nouns),
        "person": f"{rng.choice(words.first_names)} {rng.choice(words.last_names)}",
        "code": words.identifier(rng),
    }
    if key in special:
        return special[key]
    if key in ("city", "location", "from_city", "to_city"):
        return rng.choice(capitals)[1] if rng.random() < 0.3 else rng.choice(words.cities)
    if schema == B:
        return rng.random() < 0.5
    if schema == I:
        return rng.randint(1, rng.choice((9, 99, 9999)))
    return f"{rng.choice(words.adjectives)} {rng.choice(words.nouns)}"


def familiar_tool(rng: random.Random, words: Words) -> Task:
    """A well-known kind of tool: call, result, answer; other familiar tools stand beside it."""
    chosen = rng.sample(FAMILIAR, rng.randint(1, 4))
    name, _, parameters, phrasings, result, answer = chosen[0]
    rng.shuffle(chosen)
    given = {k: slot_value(rng, words, k, s) for k, s in parameters.items()}
    extra = {
        k: slot_value(rng, words, k, {})
        for k in ("t", "sky", "clock", "value", "id", "word", "noun", "person", "code")
    }
    shown = {**extra, **{k: dumps(v) if isinstance(v, bool) else v for k, v in given.items()}}
    user = rng.choice(phrasings).format(**shown)
    made = Call(name, given)
    turns = [
        Turn(role="user", content=user),
        Turn(role="assistant", reasoning=f"I need to call {name}.", calls=(made,)),
    ]
    if rng.random() < 0.6:
        turns.append(Turn(role="tool", content=result.format(**shown)))
        told = answer.format(**shown)
        turns.append(Turn(role="assistant", content=told, reasoning="The result is here."))
    tools = []
    for tool_name, description, parts, _, _, _ in chosen:
        required = list(parts) if rng.random() < 0.8 else [next(iter(parts))]
        properties = {k: dict(s) for k, s in parts.items()}
        schema = {"type": "object", "properties": properties, "required": required}
        tools.append({"name": tool_name, "description": description, "parameters": schema})
    return Task(kind="familiar_tool", turns=tuple(turns), tools=tuple(tools))


def talk_with_tools(rng: random.Random, words: Words) -> Task:
    """Small talk while familiar tools are declared: no call."""
    inner = rng.choice((small_talk, knowledge, concept))(rng, words)
    tools = familiar_tool(rng, words).tools
    return Task(kind="no_tool", turns=inner.turns, tools=tools)
