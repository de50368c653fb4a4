"""Stop strings on a stream of text (spec api 2.5). Used by the parser on the answer text only."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Finds the first stop string to end; holds back what may still become one.

    What must hold: the text shown does not depend on how it is cut. So the match that ends first
    wins, and of those that end together the longest.
    """

    def __init__(self, stop: Sequence[str], *, include: bool = False) -> None:
        self._stop = tuple(stop)
        self._include = include
        self._held = ""
        self.match: str | None = None
        self.active = bool(self._stop)

    def push(self, text: str) -> str:
        """The text that may be shown now; nothing after a match."""
        if self.match is not None:
            return ""
        if not self._stop:
            return text
        text = self._held + text
        ends = [(at + len(stop), at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if ends:
            end, begin, self.match = min(ends)
            self._held = ""
            return text[: end if self._include else begin]
        keep = prefix_at_end(text, self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What is held back, when the text has ended."""
        held, self._held = self._held, ""
        return held


def prefix_at_end(text: str, words: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins, but does not complete, one of the words."""
    for count in range(min(len(text), max(map(len, words)) - 1), 0, -1):
        tail = text[-count:]
        if any(len(word) > count and word.startswith(tail) for word in words):
            return count
    return 0
