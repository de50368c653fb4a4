"""`LLM`: the engine as a Python object, for scripts and evaluations. No thread, no event loop.

    from deodar import LLM, SamplingParams
    llm = LLM()
    print(llm.generate("The deodar is", SamplingParams(max_tokens=32))[0].text)

All prompts of a call run together; results come in the order of the prompts.
"""

from __future__ import annotations

import operator
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from deodar.cache.resume import Replay, Trim
from deodar.checkpoint.loader import read_config, read_generation_config
from deodar.checkpoint.locate import resolve_model
from deodar.engine.defaults import sampling_defaults
from deodar.engine.ledger import Ledger, Record
from deodar.engine.loop import Engine
from deodar.engine.options import EngineOptions
from deodar.env import processor_count
from deodar.errors import RequestError
from deodar.text.chat import Conversation, Message, render
from deodar.text.events import ContentText, ReasoningText
from deodar.text.segments import Start
from deodar.text.stream import AnswerStream
from deodar.text.tokenizer import Tokenizer
from deodar.types import FinishReason, GenerateRequest, SamplingParams, TokenEvent, Usage

Progress = Callable[[int, int], None]
_ROLES = ("system", "user", "assistant", "latest_reminder")


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One answer. `text` has no special tokens; `reasoning` is set by `chat` with thinking only.

    token_ids and logprobs include the stop token. seed: the one that was used. error: set if this
    prompt could not be run; the other prompts of the call are not affected.
    """

    text: str
    reasoning: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    prompt_ids: tuple[int, ...]
    usage: Usage
    seed: int
    error: str | None = None


class LLM:
    """A loaded model.

    model: "seedling" or a checkpoint folder. context: tokens of prompt and answer together, None
    for what the model was made for. decoder_trim, replay: "bounded" gives the approximate rules of
    other engines and changes answers. Raises DeodarError if the model cannot be loaded. ledger: add
    an observer to it to see the record of every answer.
    """

    def __init__(
        self,
        model: str = "seedling",
        *,
        context: int | None = None,
        decoder_trim: Trim = "exact",
        replay: Replay = "exact",
    ) -> None:
        folder = resolve_model(model)
        self.config = read_config(folder)
        self.tokenizer = Tokenizer.from_folder(folder)
        self.default_sampling = sampling_defaults(
            read_generation_config(folder), self.config.eos_token_id
        )
        options = EngineOptions(context=context, decoder_trim=decoder_trim, replay=replay)
        self._engine = Engine.open(folder, options, threads=processor_count())
        self.ledger = Ledger()
        self._count = 0

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: Progress | None = None,
    ) -> list[Output]:
        """Continue prompts: a text, texts, or lists of token ids.

        A text gets the begin token; special tokens typed in it are special (raw prompts). sampling:
        for all, one per prompt, or None for the model's defaults. progress is called with
        (finished, all) after every answer. A prompt that cannot be run (too long, empty) gives an
        Output with `error`; RequestError if the numbers of prompts and parameters differ.
        """
        several = [prompts] if isinstance(prompts, str) else prompts
        ids = [self._prompt_ids(prompt) for prompt in several]
        runs = self._run(ids, self._params(sampling, len(ids)), progress)
        return [run.output(self.tokenizer.decode(run.record.token_ids), "") for run in runs]

    def chat(
        self,
        messages: Sequence[Mapping[str, str]] | Sequence[Sequence[Mapping[str, str]]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        thinking: bool = True,
        progress: Progress | None = None,
    ) -> list[Output]:
        """Answer one conversation or several; a message is {"role": ..., "content": ...}.

        Other arguments as in `generate`. Tools are offered by the server only.
        """
        single = not messages or isinstance(messages[0], Mapping)
        several = cast("Sequence[Sequence[Mapping[str, str]]]", [messages] if single else messages)
        rendered = [
            render(Conversation(messages=_messages(one), thinking=thinking)) for one in several
        ]
        ids = [tuple(self.tokenizer.encode_prompt(prompt)) for prompt in rendered]
        runs = self._run(ids, self._params(sampling, len(ids)), progress)
        return [self._parsed(run, prompt.start) for run, prompt in zip(runs, rendered, strict=True)]

    def _prompt_ids(self, prompt: str | Sequence[int]) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self.tokenizer.encode_raw(prompt))
        return tuple(map(operator.index, prompt))

    def _params(
        self, sampling: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        if sampling is None or isinstance(sampling, SamplingParams):
            return [sampling or self.default_sampling] * count
        if len(sampling) != count:
            raise RequestError(
                f"sampling has {len(sampling)} entries for {count} prompts", param="sampling"
            )
        return list(sampling)

    def _run(
        self,
        prompts: Sequence[tuple[int, ...]],
        sampling: Sequence[SamplingParams],
        progress: Progress | None,
    ) -> list[_Run]:
        runs: dict[str, _Run] = {}
        try:
            for prompt_ids, params in zip(prompts, sampling, strict=True):
                self._count += 1
                request = GenerateRequest(
                    request_id=f"llm-{self._count}",
                    prompt_ids=prompt_ids,
                    sampling=params,
                    arrival=time.monotonic(),
                )
                record = self.ledger.begin(request.request_id, len(prompt_ids), request.arrival)
                run = runs[request.request_id] = _Run(prompt_ids, record)
                try:
                    self._engine.add(request)
                except RequestError as error:
                    self.ledger.discard(record)
                    run.error = str(error)
            self._drain(runs, progress)
        except BaseException:  # interrupted: the next call must find the engine empty
            for request_id, run in runs.items():
                if self._engine.abort(request_id) is not None:
                    self.ledger.end(run.record, "abort")
                self.ledger.discard(run.record)
            raise
        return list(runs.values())

    def _drain(self, runs: dict[str, _Run], progress: Progress | None) -> None:
        finished = sum(run.error is not None for run in runs.values())
        while self._engine.scheduler.has_work:
            for event in self._engine.step():
                run = runs[event.request_id]
                run.take(event)
                self.ledger.commit(run.record, event, len(event.token_ids))
                if event.finish_reason is not None:
                    finished += 1
                    self.ledger.end(run.record, event.finish_reason)
                    if progress is not None:
                        progress(finished, len(runs))

    def _parsed(self, run: _Run, start: Start) -> Output:
        answer = AnswerStream(self.tokenizer, start, tools=False)
        events = answer.push(run.record.token_ids) + answer.finish(
            cut=run.finish_reason == "length"
        )
        text = "".join(e.text for e in events if isinstance(e, ContentText))
        reasoning = "".join(e.text for e in events if isinstance(e, ReasoningText))
        return run.output(text, reasoning)


@dataclass(slots=True)
class _Run:
    """What has come of one prompt."""

    prompt_ids: tuple[int, ...]
    record: Record
    finish_reason: FinishReason = "error"
    seed: int = 0
    error: str | None = None

    def take(self, event: TokenEvent) -> None:
        self.seed, self.error = event.seed, event.error
        self.finish_reason = event.finish_reason or self.finish_reason

    def output(self, text: str, reasoning: str) -> Output:
        record = self.record
        return Output(
            text=text,
            reasoning=reasoning,
            token_ids=tuple(record.token_ids),
            logprobs=tuple(record.logprobs),
            finish_reason=self.finish_reason,
            prompt_ids=self.prompt_ids,
            usage=record.engine or Usage(prompt_tokens=record.prompt_tokens, completion_tokens=0),
            seed=self.seed,
            error=self.error,
        )


def terminal_progress(finished: int, count: int) -> None:
    """A `progress` for terminals: one line on standard error that is written over."""
    end = "\n" if finished == count else ""
    sys.stderr.write(f"\r{finished}/{count} answers{end}")
    sys.stderr.flush()


def _messages(conversation: Sequence[Mapping[str, str]]) -> tuple[Message, ...]:
    messages = []
    for place, message in enumerate(conversation):
        role, content = message.get("role"), message.get("content")
        if role not in _ROLES or not isinstance(content, str):
            raise RequestError(
                f"messages[{place}] needs a role of {', '.join(_ROLES)} and a content text",
                param="messages",
            )
        messages.append(Message(role=role, content=(content,)))  # type: ignore[arg-type]
    if not messages:
        raise RequestError("messages is empty, it needs at least 1", param="messages")
    return tuple(messages)
