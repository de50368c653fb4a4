"""Generate, render and tokenise the seedling's chat samples.

Run as `python training/synth.py TEXT_DIR OUT_DIR [--chat-tokens N] [--long-tokens N]`, or with
`--samples FILE` to write plain samples for the tokenizer. The renderer here follows api.md
section 1 and returns pieces, because every token also needs its loss class; `--check` compares it
with the vendor's renderer on random tasks. What must hold: only positions that the renderer wrote
become special tokens, and training never draws from the held-out side of the word lists.
"""

# ruff: noqa: SIM905

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import chatter
import corpus
import deepseek_recipe as recipe
import numpy as np
from tokenizers import Tokenizer

from deodar.evaluation import long_tasks, tasks, tool_tasks
from deodar.evaluation.tasks import Call, Task, Turn, dumps
from deodar.evaluation.words import Words, words

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
SYSTEM, USER, ASSISTANT = "<｜System｜>", "<｜User｜>", "<｜Assistant｜>"
THINK, END_THINK, DSML = "<think>", "</think>", "｜DSML｜"
NONE, PROMPT, ANSWER = 0, 1, 2
KINDS = (
    "tool tool_talk no_tool familiar_tool json sum compare story copy list sort count pick format "
    "spell extract facts remember talk system knowledge listing concept howto code gloss multi "
    "long_kv long_records long_log long_facts long_tools"
).split()

MIX: tuple[tuple[float, Callable[[random.Random, Words], Task]], ...] = (
    (14, tool_tasks.tool_conversation),
    (5, tool_tasks.tool_call),
    (8, chatter.familiar_tool),
    (5, tool_tasks.tool_not_needed),
    (2, chatter.talk_with_tools),
    (9, tool_tasks.json_schema),
    (7, tool_tasks.json_plain),
    (6, tool_tasks.json_natural),
    (14, tasks.arithmetic),
    (4, tasks.two_digit_sum),
    (14, tasks.repeat),
    (10, tasks.list_task),
    (7, tasks.word_task),
    (8, tasks.facts_question),
    (5, tasks.remember),
    (6, chatter.small_talk),
    (4, chatter.named_system),
    (2, chatter.unknown),
    (8, chatter.knowledge),
    (3, chatter.enumerate_category),
    (7, chatter.concept),
    (3, chatter.function),
    (2, chatter.story),
)
SYSTEMS = (
    "You are a helpful assistant.", "You are a helpful assistant.", "You are a helpful assistant.",
    "Be brief.", "Answer in one sentence.", "You are a tiny demo model.", "Answer the question.",
    "You are an expert.", "Follow the user's instructions exactly.", "You are a careful assistant.",
    "You are a helpful and friendly chatbot.", "Use the tools when they help.", "Be kind.",
)  # fmt: skip


class Piece(NamedTuple):
    """Text between two borders: one special token, or ordinary text of one loss class."""

    text: str
    special: bool
    loss: int


# ---------------------------------------------------------------------------------------------
# Rendering


@lru_cache(maxsize=1)
def tool_frame() -> tuple[tuple[tuple[str, bool], ...], str]:
    """The fixed texts before (with special spans) and after the schemas, from the vendor's code."""
    mark = "qqmarkqq"
    definition = recipe.ToolDefinition(mark, "", {})
    made = recipe.Conversation([recipe.UserMessage("u")], thinking_mode=False, tools=[definition])
    rendered = recipe.DeepseekV41Encoding().render_conversation(made)
    text, schema = rendered.prompt, dumps({"name": mark, "description": "", "parameters": {}})
    start, stop = text.index(SYSTEM) + len(SYSTEM), text.index(schema)
    end = text.index(USER)
    before: list[tuple[str, bool]] = []
    at = start
    for a, b in rendered.special_ranges:
        if start <= a and b <= stop:
            before += [(text[at:a], False), (text[a:b], True)]
            at = b
    before.append((text[at:stop], False))
    return tuple(before), text[stop + len(schema) : end]


def lead(task: Task, system: str, thinking: bool, effort: int) -> list[Piece]:
    """BOS and the system turn (absent if it would be empty)."""
    out = [Piece(BOS, True, NONE)]
    text = ""
    if thinking:
        text += (
            f"Reasoning Effort: {effort} (range 1-100, the higher the value, "
            "the more thorough the reasoning)\n\n"
        )
    text += system
    body = [Piece(text, False, PROMPT)]
    if task.tools:
        before, after = tool_frame()
        body += [Piece(t, s, PROMPT) for t, s in before]
        body.append(Piece("\n".join(dumps(t) for t in task.tools) + after, False, PROMPT))
    if task.response_format is not None:
        shown = dumps(task.response_format)
        body.append(
            Piece(
                "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema "
                f"to reply:\n{shown}",
                False,
                PROMPT,
            )
        )
    if len(body) > 1 or text:
        out += [Piece(SYSTEM, True, PROMPT), *body]
    return out


def call_block(calls: tuple[Call, ...]) -> list[Piece]:
    """The tool call markup of one assistant turn."""
    out: list[tuple[str, bool]] = [("\n\n<", False), (DSML, True), (" calls>", False)]
    for call in calls:
        out += [("\n<", False), (DSML, True), (f' invoke name="{call.name}">\n', False)]
        for number, (key, value) in enumerate(call.arguments.items()):
            plain = isinstance(value, str)
            head = f' parameter name="{key}" string="{"true" if plain else "false"}">'
            out += [("\n<" if number else "<", False), (DSML, True)]
            out += [(head + (value if plain else dumps(value)) + "</", False), (DSML, True)]
            out.append((" parameter>", False))
        out += [("\n</", False), (DSML, True), (" invoke>", False)]
    out += [("\n</", False), (DSML, True), (" calls>", False)]
    return [Piece(t, s, ANSWER) for t, s in out]


def render(task: Task, thinking: bool, effort: int) -> list[Piece]:
    """The whole conversation with the reference answers, ending with EOS."""
    turns = list(task.turns)
    system = turns.pop(0).content if turns[0].role == "system" else ""
    pieces = lead(task, system, thinking, effort)
    last_user = max(i for i, t in enumerate(turns) if t.role == "user")
    prompt = NONE if task.noise_prompt else PROMPT
    previous = ""
    for index, turn in enumerate(turns):
        if turn.role == "assistant":
            pieces.append(Piece(ASSISTANT, True, PROMPT))
            if thinking and (task.tools or index > last_user):
                pieces += [Piece(THINK, True, PROMPT), Piece(turn.reasoning, False, ANSWER)]
                pieces.append(Piece(END_THINK, True, ANSWER))
            else:
                pieces.append(Piece(END_THINK, True, PROMPT))
            pieces.append(Piece(turn.content, False, ANSWER))
            pieces += call_block(turn.calls) if turn.calls else []
            pieces.append(Piece(EOS, True, ANSWER))
        else:
            text = turn.content
            if turn.role == "tool":
                text = f"<tool_result>{text}</tool_result>"
            if previous in ("user", "tool"):
                pieces.append(Piece("\n\n" + text, False, prompt))
            else:
                pieces += [Piece(USER, True, PROMPT), Piece(text, False, prompt)]
        previous = turn.role
    return pieces


def merged(pieces: list[Piece]) -> list[Piece]:
    """Join neighbouring ordinary texts: what stands between two special tokens is one text."""
    out: list[Piece] = []
    for piece in pieces:
        if not piece.text:
            continue
        if out and not piece.special and not out[-1].special:
            out[-1] = Piece(out[-1].text + piece.text, False, max(out[-1].loss, piece.loss))
        else:
            out.append(piece)
    return out


def vendor_text(task: Task, thinking: bool, effort: str) -> tuple[str, list[tuple[int, int]]]:
    """The same conversation by the vendor's renderer (without the last answer's text)."""
    messages, ids = [], []
    for index, turn in enumerate(task.turns[:-1]):
        if turn.role == "system":
            messages.append(recipe.SystemMessage(turn.content))
        elif turn.role == "user":
            messages.append(recipe.UserMessage(turn.content))
        elif turn.role == "tool":
            messages.append(recipe.ToolMessage(turn.content, ids.pop(0)))
        else:
            made = []
            for n, call in enumerate(turn.calls):
                ids.append(f"c{index}-{n}")
                made.append(recipe.ToolCall(ids[-1], call.name, dumps(call.arguments)))
            messages.append(recipe.AssistantMessage(turn.content, turn.reasoning, made or None))
    tools = [
        recipe.ToolDefinition(t["name"], t["description"], t["parameters"]) for t in task.tools
    ]
    wish = task.response_format
    format_ = "json_object" if wish == {"type": "json_object"} else "text"
    made = recipe.Conversation(
        messages,
        thinking_mode=thinking,
        tools=tools or None,
        reasoning_effort=effort,
        response_format=format_,
        response_schema=wish if format_ == "text" else None,
    )
    rendered = recipe.DeepseekV41Encoding().render_conversation(made)
    return rendered.prompt, rendered.special_ranges


def check(count: int) -> None:
    """Compare the prompt part of our rendering with the vendor's, text and special spans."""
    rng, side = random.Random(5), words(held_out=False)
    for _ in range(count):
        task = chat_task(rng, side)
        thinking = rng.random() < 0.5
        level = {"low": 50, "high": 75, "max": 100}
        word = rng.choice(list(level))
        theirs, ranges = vendor_text(task, thinking, word)
        ours, spans = "", []
        for piece in render(task, thinking, level[word]):
            if piece.special:
                spans.append((len(ours), len(ours) + len(piece.text)))
            ours += piece.text
        spans = [s for s in spans if s[1] <= len(theirs)]
        if ours[: len(theirs)] != theirs or spans != list(ranges):
            raise SystemExit(f"renderers differ\n{theirs}\n----\n{ours}")
    print(f"{count} prompts equal the vendor's rendering")


# ---------------------------------------------------------------------------------------------
# Mixing


def chat_task(rng: random.Random, side: Words, mix: object = MIX) -> Task:
    """One task of the mix, sometimes several in a row, sometimes with a system text."""
    weights, makers = zip(*mix, strict=True)
    task = rng.choices(makers, weights)[0](rng, side)
    if not task.tools and task.response_format is None and rng.random() < 0.2:
        turns = list(task.turns)
        for _ in range(rng.randint(1, 3)):
            more = rng.choices(makers, weights)[0](rng, side)
            if more.tools or more.response_format is not None or more.turns[0].role == "system":
                continue
            turns += more.turns
        if len(turns) > len(task.turns):
            task = Task(kind="multi", turns=tuple(turns))
    if task.turns[0].role != "system" and rng.random() < 0.3:
        system = Turn(role="system", content=rng.choice(SYSTEMS))
        task = Task(
            kind=task.kind,
            turns=(system, *task.turns),
            tools=task.tools,
            response_format=task.response_format,
            noise_prompt=task.noise_prompt,
        )
    return task


def draw_effort(rng: random.Random) -> int:
    """75 mostly, the other named levels, sometimes any number."""
    return rng.choice((75, 75, 75, 75, 75, 75, 50, 50, 100, 100, rng.randint(1, 100)))


class Encoder:
    """Pieces to token ids and loss classes."""

    def __init__(self, path: Path) -> None:
        full = json.loads(path.read_text())
        self.special = {t["content"]: t["id"] for t in full["added_tokens"]}
        full["added_tokens"] = []
        self.plain = Tokenizer.from_str(json.dumps(full))
        self.cached = lru_cache(maxsize=100_000)(self.encode)

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text: a spelled special token stays text."""
        return self.plain.encode(text, add_special_tokens=False).ids

    def __call__(self, pieces: list[Piece]) -> tuple[list[int], bytearray]:
        ids: list[int] = []
        classes = bytearray()
        for piece in merged(pieces):
            if piece.special:
                ids.append(self.special[piece.text])
            else:
                ids += (self.cached if len(piece.text) < 1500 else self.encode)(piece.text)
            classes += bytes([piece.loss]) * (len(ids) - len(classes))
        return ids, classes


def passages(text_dir: Path, name: str) -> list[str]:
    """Running texts of at least 2,000 characters for the long prompts."""
    found = []
    with (text_dir / name).open() as lines:
        for line in lines:
            document = json.loads(line)
            if (
                document["name"].startswith(("sotu", "moby", "kjv"))
                and len(document["text"]) > 2000
            ):
                found.append(" ".join(document["text"].split()))
    return found


def long_size(rng: random.Random) -> int:
    """Prompt tokens of a long sample: half spread evenly, half on a log scale, 500 to 7,300."""
    if rng.random() < 0.5:
        return rng.randint(900, 7300)
    return int(500 * (7300 / 500) ** rng.random())


Shard = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def shard(job: tuple[int, str, int, bool], text_dir: Path, out: Path) -> Shard:
    """Tokens, classes, starts and kinds of one worker's share."""
    seed, what, budget, held_out = job
    rng, side = random.Random(f"{what}/{seed}/{held_out}"), words(held_out=held_out)
    encoder = Encoder(out / "tokenizer.json")
    texts = (
        passages(text_dir, "heldout_prose.jsonl" if held_out else "prose.jsonl")
        if what == "long"
        else []
    )
    glosses = list(corpus.glosses(text_dir.parent)) if what == "chat" else []
    mix = (*MIX, (4, chatter.gloss_question(usable(glosses)))) if what == "chat" else MIX
    tokens: list[np.ndarray] = []
    classes: list[bytes] = []
    starts, kinds, total = [], [], 0
    while total < budget:
        if what == "chat":
            task = chat_task(rng, side, mix)
        else:
            task = long_tasks.long_task(rng, side, long_size(rng), texts)
        thinking = rng.random() < (0.5)
        ids, marks = encoder(render(task, thinking, draw_effort(rng)))
        if len(ids) > (1600 if what == "chat" else 7900):
            continue
        starts.append(total)
        kinds.append(KINDS.index(task.kind))
        tokens.append(np.array(ids, np.uint16))
        classes.append(bytes(marks))
        total += len(ids)
    marks_array = np.frombuffer(b"".join(classes), np.uint8)
    return (
        np.concatenate(tokens),
        marks_array,
        np.array(starts, np.int64),
        np.array(kinds, np.int8),
    )


def usable(glosses: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Short, single-sense-looking entries: the gloss up to its first example."""
    kept = []
    for word, kind, gloss in glosses:
        short = gloss.split(";")[0].strip()
        plain = word.islower() and word.isalpha() and kind in ("noun", "verb")
        if plain and 8 < len(short) < 90 and not set(short) & {'"', "("}:
            kept.append((word, kind, short))
    first: dict[str, tuple[str, str, str]] = {}
    for entry in kept:
        first.setdefault(entry[0], entry)
    return list(first.values())


def join(parts: list[Shard]) -> dict[str, np.ndarray]:
    """Shards as one set of arrays."""
    offsets = np.cumsum([0, *(len(p[0]) for p in parts)])
    return {
        "tokens": np.concatenate([p[0] for p in parts]),
        "classes": np.concatenate([p[1] for p in parts]),
        "starts": np.concatenate([p[2] + o for p, o in zip(parts, offsets, strict=False)]),
        "kinds": np.concatenate([p[3] for p in parts]),
    }


def save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an npz so that readers see the old or the new file, never half of one."""
    part = path.with_suffix(".part.npz")
    np.savez(part, **arrays)
    part.rename(path)
    print(
        f"{path.name}: {len(arrays['tokens']) / 1e6:.2f} M tokens, {len(arrays['starts'])} samples"
    )


def write_samples(path: Path, count: int) -> None:
    """Ordinary-text pieces of samples, separated by NUL, for the tokenizer's training."""
    rng, side = random.Random(77), words(held_out=False)
    texts: list[str] = []
    for _ in range(count):
        pieces = merged(render(chat_task(rng, side), rng.random() < 0.5, draw_effort(rng)))
        texts += [p.text for p in pieces if not p.special]
    path.write_text("\x00".join(texts))


def main() -> None:
    """Samples for the tokenizer, the renderer's check, or the packed arrays."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text_dir", type=Path, nargs="?")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--check", type=int, default=0)
    parser.add_argument("--chat-tokens", type=int, default=20_000_000)
    parser.add_argument("--long-tokens", type=int, default=8_000_000)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    if args.check:
        check(args.check)
    if args.samples:
        write_samples(args.samples, 12_000)
    if args.out is None:
        return
    n = args.workers * 4
    jobs = [(i, "chat", args.chat_tokens // n, False) for i in range(n)]
    jobs += [(i, "long", args.long_tokens // n, False) for i in range(n)]
    jobs += [(0, "chat", min(400_000, args.chat_tokens // 10), True)]
    with multiprocessing.Pool(args.workers) as pool:
        work = partial(shard, text_dir=args.text_dir, out=args.out)
        parts = pool.map(work, jobs, chunksize=1)
    save(args.out / "chat.npz", join(parts[:n]))
    save(args.out / "long.npz", join(parts[n : 2 * n]))
    save(args.out / "val_chat.npz", join(parts[2 * n :]))


if __name__ == "__main__":
    main()
