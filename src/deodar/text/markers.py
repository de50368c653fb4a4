"""Answers that are given as raw text: finds the markers by their spelling.

Only for callers that have no token ids (golden files, the parse route). With ids the detokeniser
makes the pieces and a spelled marker is text.
"""

from __future__ import annotations

import re

from deodar.text.segments import DSML, END_THINK, EOS, THINK, Piece, without_surrogates
from deodar.text.stop import prefix_at_end


class MarkerSplitter:
    """Raw text to pieces, for answers that are given as text: markers are found by spelling."""

    _MARKERS = (THINK, END_THINK, DSML, EOS)
    _PATTERN = re.compile("|".join(_MARKERS))

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> list[Piece]:
        """Pieces that are certain; a tail that may begin a marker is held back."""
        text = self._held + without_surrogates(text)
        pieces: list[Piece] = []
        at = 0
        for match in self._PATTERN.finditer(text):
            pieces.append(Piece(text[at : match.start()]))
            pieces.append(Piece(match.group(), special=True))
            at = match.end()
        rest = text[at:]
        held = prefix_at_end(rest, self._MARKERS)
        self._held = rest[len(rest) - held :]
        pieces.append(Piece(rest[: len(rest) - held]))
        return [piece for piece in pieces if piece.text]

    def finish(self) -> list[Piece]:
        held, self._held = self._held, ""
        return [Piece(held)] if held else []
