"""Token ids of a raw continuation to text: no parser, stop strings only (spec api 1.13, 2.5)."""

from __future__ import annotations

from collections.abc import Sequence

from deodar.text.events import ContentText, Event
from deodar.text.stop import StopMatcher
from deodar.text.tokenizer import Detokenizer, Tokenizer


class RawStream:
    """Feeds ids to the detokeniser. Special tokens are left out, or shown if `show_special`.

    The end token is never shown. tokens: ids read so far. Has the face of `AnswerStream`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        show_special: bool = False,
    ) -> None:
        self.tokens = 0
        self.reasoning_tokens = 0
        self._eos = tokenizer.eos_id
        self._show_special = show_special
        self._stop = StopMatcher(stop, include=include_stop)
        self._detokenizer = Detokenizer(tokenizer)

    @property
    def ended(self) -> bool:
        """Whether a stop string was found."""
        return self._stop.match is not None

    @property
    def stop_match(self) -> str | None:
        """The stop string that was found."""
        return self._stop.match

    @property
    def finished_calls(self) -> int:
        """Raw text has no calls."""
        return 0

    def push(self, token_ids: Sequence[int]) -> list[Event]:
        """Text of one step; ids after a stop string are not read."""
        text = ""
        for token_id in token_ids:
            if self.ended:
                break
            self.tokens += 1
            for piece in self._detokenizer.push((token_id,)):
                hidden = piece.special and (not self._show_special or token_id == self._eos)
                text += "" if hidden else self._stop.push(piece.text)
        return [ContentText(text)] if text else []

    def finish(self, *, cut: bool) -> list[Event]:
        """The rest of the text."""
        text = "".join(self._stop.push(piece.text) for piece in self._detokenizer.finish())
        text += self._stop.flush()
        return [ContentText(text)] if text else []
