"""Token ids of an answer to events: detokeniser, parser and the count of reasoning tokens.

One `AnswerStream` per choice; the server, `deodar chat` and `LLM.chat` use it alike.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Sequence

from deodar.text.events import Event
from deodar.text.parser import Parser
from deodar.text.segments import END_THINK, Start
from deodar.text.tokenizer import Detokenizer, Tokenizer

_ALPHABET = string.ascii_letters + string.digits


def random_call_id() -> str:
    """`call_` and 24 letters and digits; never derived from a seed, so it cannot repeat."""
    return "call_" + "".join(secrets.choice(_ALPHABET) for _ in range(24))


class AnswerStream:
    """Feeds ids to the parser.

    tokens: ids read so far. reasoning_tokens: those that are reasoning, without `</think>`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        start: Start,
        *,
        tools: bool,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        max_calls: int | None = None,
        new_call_id: Callable[[], str] = random_call_id,
    ) -> None:
        self.parser = Parser(
            start,
            tools=tools,
            new_call_id=new_call_id,
            stop=stop,
            include_stop=include_stop,
            max_calls=max_calls,
        )
        self.tokens = 0
        self.reasoning_tokens = 0
        self._detokenizer = Detokenizer(tokenizer)
        self._end_think = tokenizer.special[END_THINK]
        self._eos = tokenizer.eos_id
        self._undecided = 0

    @property
    def ended(self) -> bool:
        """Whether the answer is over although the model may go on: stop string or call limit."""
        return self.parser.stop_match is not None or self.parser.call_limit_reached

    @property
    def stop_match(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return self.parser.stop_match

    @property
    def finished_calls(self) -> int:
        """Calls that are complete."""
        return self.parser.finished_calls

    def push(self, token_ids: Sequence[int]) -> list[Event]:
        """Events of one step; any number of ids. Ids after the end are not read nor counted."""
        events: list[Event] = []
        for token_id in token_ids:
            if self.ended:
                break
            self.tokens += 1
            was_reasoning = self.parser.state == "reasoning"
            new = self.parser.push(self._detokenizer.push((token_id,)))
            if was_reasoning:
                self._count(token_id, shown=bool(new))
            events += new
        return events

    def finish(self, *, cut: bool) -> list[Event]:
        """The rest of the answer; cut: the engine stopped the model at a limit."""
        self.reasoning_tokens += self._undecided
        self._undecided = 0
        return self.parser.push(self._detokenizer.finish()) + self.parser.finish(cut=cut)

    def _count(self, token_id: int, *, shown: bool) -> None:
        """A token whose text is held back is markup if a block opens, else reasoning."""
        if token_id not in (self._eos, self._end_think):
            self._undecided += 1
        if self.parser.state not in ("reasoning", "answer"):
            self._undecided = 0
        elif shown or token_id == self._end_think:
            self.reasoning_tokens += self._undecided
            self._undecided = 0
