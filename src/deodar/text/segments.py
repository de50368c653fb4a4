"""Pieces of a prompt or of an answer: ordinary text, or one special token.

The renderer writes pieces, the tokenizer turns them into ids; the detokeniser writes pieces again,
the parser reads them. What must hold: only a piece marked `special` ever becomes a special token,
and two text pieces never stand side by side in a prompt (merges do not cross piece borders).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
PAD = "<｜▁pad▁｜>"
SYSTEM = "<｜System｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
REMINDER = "<｜latest_reminder｜>"
THINK = "<think>"
END_THINK = "</think>"
DSML = "｜DSML｜"
IMAGE = "<｜deepseek_image｜>"
FIM_BEGIN, FIM_HOLE, FIM_END = "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"
TASKS = ("action", "query", "authority", "domain", "title", "read_url")

SPECIAL_TOKENS: tuple[str, ...] = (
    BOS,
    EOS,
    PAD,
    SYSTEM,
    FIM_HOLE,
    FIM_BEGIN,
    FIM_END,
    USER,
    ASSISTANT,
    "<|EOT|>",
    THINK,
    END_THINK,
    DSML,
    REMINDER,
    *(f"<｜{task}｜>" for task in TASKS),
    IMAGE,
    *(f"<｜{slash}{mark}｜>" for mark in ("polygon", "point", "box", "ref") for slash in ("/", "")),
)
"""The 29 texts of spec api 1.1 that every tokenizer of this model must hold as single ids."""

_SURROGATES = re.compile("[\ud800-\udfff]")


def without_surrogates(text: str) -> str:
    """`text` with lone surrogates replaced by U+FFFD: they are no characters and have no bytes."""
    return _SURROGATES.sub("\ufffd", text)


@dataclass(frozen=True, slots=True)
class Piece:
    """Ordinary text, or the spelling of exactly one special token."""

    text: str
    special: bool = False


StartState = Literal["reasoning", "answer", "block"]


@dataclass(frozen=True, slots=True)
class Start:
    """Where the answer begins, told by the prompt's tail (spec api 2.2).

    continuation: the prompt ends inside a text, so leading newlines of the answer are kept.
    """

    state: StartState
    continuation: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt and the parser state in which its answer starts."""

    pieces: tuple[Piece, ...]
    start: Start

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def special_spans(self) -> list[tuple[int, int]]:
        """Half-open code point ranges of `text` that are single special tokens."""
        spans, at = [], 0
        for piece in self.pieces:
            if piece.special:
                spans.append((at, at + len(piece.text)))
            at += len(piece.text)
        return spans


class PieceWriter:
    """Collects pieces; neighbouring texts become one piece."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._open: list[str] = []

    def special(self, token: str) -> None:
        self._close()
        self._pieces.append(Piece(token, special=True))

    def text(self, text: str) -> None:
        self._open.append(text)

    def finish(self) -> tuple[Piece, ...]:
        self._close()
        return tuple(self._pieces)

    def _close(self) -> None:
        text = without_surrogates("".join(self._open))
        self._open.clear()
        if text:
            self._pieces.append(Piece(text))
