"""The checkpoint under examination: scores given tokens, continues prompts, replays its drafts.

Used by the suites of `deodar eval`. Runs the compiled CPU model, the same code that serves. What
must hold: greedy continuations and scores are exact functions of the checkpoint, so two runs of
one build give the same table.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deodar.checkpoint.loader import Checkpoint
from deodar.evaluation.tasks import Call, Task, Turn, dumps
from deodar.model.cpu import CpuModel
from deodar.model.drafter import Drafter
from deodar.text.chat import Conversation, Message, Tool, ToolCall, render
from deodar.text.events import CallArguments, CallEnd, CallStart, ContentText, ReasoningText
from deodar.text.segments import Start
from deodar.text.stream import AnswerStream
from deodar.text.tokenizer import Tokenizer

MAX_ROWS = 512
SLOTS = 8
CONTEXT = 8704


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt: its ids and where the answer starts."""

    ids: list[int]
    start: Start


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A parsed continuation. `calls` holds (name, arguments as JSON text) of finished calls."""

    ids: list[int]
    reasoning: str
    content: str
    calls: tuple[tuple[str, str], ...]
    finished: bool  # ended by EOS


class Subject:
    """One checkpoint on the CPU. `threads` changes the speed only."""

    def __init__(self, folder: Path, *, threads: int = 2) -> None:
        checkpoint = Checkpoint.open(folder)
        self.config = checkpoint.config
        self.context = min(CONTEXT, self.config.max_position_embeddings)
        self.model = CpuModel(
            checkpoint,
            slots=SLOTS,
            context=self.context,
            max_rows=MAX_ROWS,
            threads=threads,
            keep_taps=True,
        )
        self.tokenizer = Tokenizer.from_folder(folder)
        self._checkpoint = checkpoint
        self._drafter: Drafter | None = None

    # ------------------------------------------------------------------ prompts

    def prompt(self, task: Task, *, thinking: bool) -> Prompt:
        """The task without its last turn, as the chat format shows it (spec api 1)."""
        rendered = render(conversation(task, thinking=thinking))
        return Prompt(self.tokenizer.encode_prompt(rendered), rendered.start)

    def answer(self, prompt: Prompt, ids: list[int]) -> Answer:
        """Parse a continuation as the server would."""
        stream = AnswerStream(self.tokenizer, prompt.start, tools=True)
        finished = bool(ids) and ids[-1] == self.tokenizer.eos_id
        events = stream.push(ids) + stream.finish(cut=not finished)
        reasoning = "".join(e.text for e in events if isinstance(e, ReasoningText))
        content = "".join(e.text for e in events if isinstance(e, ContentText))
        names = {e.index: e.name for e in events if isinstance(e, CallStart)}
        ended = {e.index for e in events if isinstance(e, CallEnd)}
        texts = {
            i: "".join(e.text for e in events if isinstance(e, CallArguments) and e.index == i)
            for i in names
        }
        calls = tuple((names[i], texts[i]) for i in sorted(names) if i in ended)
        return Answer(ids=ids, reasoning=reasoning, content=content, calls=calls, finished=finished)

    # ------------------------------------------------------------------ running

    def score(
        self, ids: list[int], *, hide_memory: bool = False, first: int = 1
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
        """Log-probability (nats) and arg-max hit of tokens `first`, first + 1, ... of `ids`.

        hide_memory: attend to the window only.
        """
        logs, hits = [], []
        for start in range(0, len(ids), MAX_ROWS):
            stop = min(start + MAX_ROWS, len(ids))
            rows = range(max(start, first - 1), min(stop, len(ids) - 1))
            logits = self.model.run_rows(
                ids[start:stop],
                [0] * (stop - start),
                range(start, stop),
                [r - start for r in rows],
                hide_memory=hide_memory,
            ).astype(np.float64)
            if not rows:
                continue
            following = np.array([ids[r + 1] for r in rows])
            top = logits.max(axis=1)
            total = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
            picked = logits[np.arange(len(rows)), following]
            logs.append(picked - total)
            hits.append(logits.argmax(axis=1) == following)
        return np.concatenate(logs), np.concatenate(hits)

    def greedy(self, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        """Arg-max continuations, EOS included, of at most `SLOTS` prompts side by side."""
        assert len(prompts) <= SLOTS
        outputs: list[list[int]] = [[] for _ in prompts]
        nexts = [self._prefill(ids, slot) for slot, ids in enumerate(prompts)]
        while True:
            for slot, token in enumerate(nexts):
                if token >= 0:
                    outputs[slot].append(token)
                    if token == self.tokenizer.eos_id or len(outputs[slot]) >= max_tokens:
                        nexts[slot] = -1
            live = [slot for slot, token in enumerate(nexts) if token >= 0]
            if not live:
                return outputs
            positions = [len(prompts[s]) + len(outputs[s]) - 1 for s in live]
            logits = self.model.run_rows(
                [nexts[s] for s in live], live, positions, range(len(live))
            )
            for slot, row in zip(live, logits, strict=True):
                nexts[slot] = int(row.argmax())

    def _prefill(self, ids: list[int], slot: int) -> int:
        """Run a prompt in `slot`; returns the arg-max token after it."""
        token = -1
        for start in range(0, len(ids), MAX_ROWS):
            part = ids[start : start + MAX_ROWS]
            end = start + len(part) == len(ids)
            logits = self.model.run_rows(
                part,
                [slot] * len(part),
                range(start, start + len(part)),
                [len(part) - 1] if end else [],
            )
            token = int(logits[0].argmax()) if end else -1
        return token

    def accepted_drafts(self, prompt: list[int], output: list[int]) -> list[int]:
        """Drafts accepted in each verify step along `output` (one greedy run of the model).

        Needs the slot state of the run: call right after `greedy([prompt], ...)`. The model keeps
        the taps of the last MAX_ROWS positions, so `output` may not be longer.
        """
        assert len(output) <= MAX_ROWS
        if self._drafter is None:
            self._drafter = Drafter(self._checkpoint)
        accepted, at = [], 0
        while at + 1 < len(output):
            position = len(prompt) + at - 1
            taps = self.model.taps(0, position)
            drafts = self._drafter.propose(taps, position, output[at])
            rest = output[at + 1 :]
            if len(rest) < len(drafts) and output[-1] != self.tokenizer.eos_id:
                break  # the run was cut here: the tail would count too few
            count = 0
            while count < min(len(drafts), len(rest)) and drafts[count] == rest[count]:
                count += 1
            accepted.append(count)
            at += count + 1
        return accepted


def conversation(task: Task, *, thinking: bool) -> Conversation:
    """A task's turns before the reference answer, as the server would receive them."""
    messages: list[Message] = []
    waiting: list[str] = []
    for index, turn in enumerate(task.turns[:-1]):
        messages.append(_message(index, turn, waiting))
    tools = tuple(Tool(t["name"], t["description"], t["parameters"]) for t in task.tools)
    return Conversation(
        messages=tuple(messages),
        tools=tools,
        thinking=thinking,
        response_schema=task.response_format,
    )


def _message(index: int, turn: Turn, waiting: list[str]) -> Message:
    """One turn; ids of calls are made up and handed to the results in order."""
    if turn.role == "assistant":
        made = tuple(_call(f"c{index}-{n}", c) for n, c in enumerate(turn.calls))
        waiting.extend(c.id for c in made)
        return Message(
            role="assistant", content=(turn.content,), reasoning=turn.reasoning, tool_calls=made
        )
    if turn.role == "tool":
        return Message(role="tool", content=(turn.content,), tool_call_id=waiting.pop(0))
    assert turn.role in ("system", "user")
    return Message(role="user" if turn.role == "user" else "system", content=(turn.content,))


def _call(id_: str, call: Call) -> ToolCall:
    return ToolCall(id_, call.name, dumps(call.arguments))
