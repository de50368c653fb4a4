"""`deodar chat`: talk to the model in the terminal; answers stream, reasoning is dim.

Also works in a pipe: each line of standard input is one message. Only the answer goes to standard
output then; prompts and reasoning are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from uuid import uuid4

from deodar.cli.engine_flags import add_engine_arguments, engine_options
from deodar.cli.model_argument import add_model_argument, chosen_model
from deodar.cli.open_model import OpenModel, open_model
from deodar.cli.sampling_arguments import add_sampling_arguments, requested_sampling
from deodar.errors import ConfigError, DeodarError, RequestError
from deodar.text.chat import DEFAULT_EFFORT, Conversation, Message, render
from deodar.text.events import ContentText, Event, ReasoningText
from deodar.text.stream import AnswerStream
from deodar.types import GenerateRequest, SamplingParams

HELP = "talk to the model in the terminal"
COMMANDS = "/reset forgets the conversation, /exit leaves, Ctrl-C stops an answer"
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--no-thinking", action="store_true", help="answer without reasoning")
    parser.add_argument(
        "--effort",
        type=int,
        default=DEFAULT_EFFORT,
        metavar="N",
        help=f"1 to 100 ({DEFAULT_EFFORT})",
    )
    add_sampling_arguments(parser)
    parser.add_argument("--context", type=int, metavar="TOKENS", help="prompt and answer together")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if not 1 <= args.effort <= 100:
        raise ConfigError(f"--effort is {args.effort}, it must be between 1 and 100")
    model = open_model(chosen_model(args), engine_options(args))
    try:
        session = Session(
            model=model,
            sampling=requested_sampling(args, model.sampling),
            system=args.system,
            thinking=not args.no_thinking,
            effort=args.effort,
            terminal=sys.stdin.isatty() and sys.stdout.isatty(),
        )
        asyncio.run(session.talk())
    finally:
        model.engine.close()
    return 0


@dataclass(slots=True, kw_only=True)
class Session:
    """One conversation. `terminal`: a person is looking, so reasoning and hints are shown."""

    model: OpenModel
    sampling: SamplingParams
    system: str | None
    thinking: bool
    effort: int
    terminal: bool
    history: list[Message] = field(default_factory=list)

    async def talk(self) -> None:
        """Read lines and answer them until the end of input or /exit."""
        if self.terminal:
            print(f"{COMMANDS}; thinking is {'on' if self.thinking else 'off'}")
        for line in _lines(self.terminal):
            text = line.strip()
            if text in ("/exit", "/quit"):
                return
            if text == "/reset":
                self.history.clear()
            elif text:
                await self._answer(line.rstrip("\n"))

    async def _answer(self, text: str) -> None:
        self.history.append(Message(role="user", content=(text,)))
        try:
            self.history.append(await self._run())
        except DeodarError as error:
            self.history.pop()
            if not self.terminal:
                raise
            print(f"deodar chat: {error}", file=sys.stderr)

    async def _run(self) -> Message:
        system = [Message(role="system", content=(self.system,))] if self.system else []
        prompt = render(
            Conversation(
                messages=(*system, *self.history), thinking=self.thinking, effort=self.effort
            )
        )
        answer = AnswerStream(self.model.tokenizer, prompt.start, tools=False)
        ids = tuple(self.model.tokenizer.encode_prompt(prompt))
        room = self.model.context - len(ids)
        if room < 1:
            raise RequestError(
                f"the conversation has {len(ids)} tokens, the context {self.model.context}; /reset"
            )
        request = GenerateRequest(
            request_id=f"chat-{uuid4().hex}",
            prompt_ids=ids,
            sampling=replace(self.sampling, max_tokens=min(self.sampling.max_tokens or room, room)),
            arrival=time.monotonic(),
        )
        printer = _Printer(self.terminal)
        over = False
        loop = asyncio.get_running_loop()
        if self.terminal:  # Ctrl-C ends the answer, not the conversation

            def interrupt() -> None:
                loop.create_task(self.model.engine.abort(request.request_id))

            loop.add_signal_handler(signal.SIGINT, interrupt)
        try:
            async for event in self.model.engine.submit(request):
                over = event.finish_reason is not None
                if event.error is not None:
                    raise RequestError(event.error, status=500)
                printer.show(answer.push(event.token_ids))
                if over:
                    printer.show(answer.finish(cut=event.finish_reason != "stop"))
        finally:
            if self.terminal:
                loop.remove_signal_handler(signal.SIGINT)
            printer.end()
            if not over:
                await self.model.engine.abort(request.request_id)
        return Message(role="assistant", content=(printer.content,), reasoning=printer.reasoning)


class _Printer:
    """Prints events as they come and keeps what the history needs."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        self._dim = False
        self.content = ""
        self.reasoning = ""

    def show(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case ReasoningText(text):
                    self.reasoning += text
                    if self._terminal:
                        self._write(text, dim=True)
                case ContentText(text):
                    self.content += text
                    self._write(text, dim=False)
                case _:
                    pass

    def end(self) -> None:
        self._write("\n", dim=False)

    def _write(self, text: str, *, dim: bool) -> None:
        if dim != self._dim:
            text = (_DIM if dim else _PLAIN + "\n") + text
            self._dim = dim
        sys.stdout.write(text)
        sys.stdout.flush()


def _lines(terminal: bool) -> Iterator[str]:
    while True:
        if terminal:
            sys.stdout.write("> ")
            sys.stdout.flush()
        line = sys.stdin.readline()
        if not line:
            if terminal:
                print()
            return
        yield line
