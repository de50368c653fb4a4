"""Call markup as patterns: what follows the marker of a tag, and whether more text may complete it.

Used by the parser only. Inside its buffer the three markers are lone surrogates, which no decoded
text can contain. What must hold: whether a text is a tag never depends on how it was cut, so a
tag ends at its first possible end and is given up after TAG_CHARS characters or at a marker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from deodar.text.segments import DSML, END_THINK, THINK

THINK_MARK, END_MARK, DSML_MARK = "\ud800", "\ud801", "\ud802"
INNER = {THINK: THINK_MARK, END_THINK: END_MARK, DSML: DSML_MARK}
_SPELLED = {ord(mark): text for text, mark in INNER.items()}

TAG_CHARS = 4096
WORDS = ("calls", "tool_calls", "invoke", "parameter")
_M = THINK_MARK + END_MARK + DSML_MARK
ANY = re.compile(f"[{_M}]")

# Blanks are tolerated everywhere (P10), and the older spelling of the block (P11).
OPEN_CALLS = re.compile(r"\s*(?:tool_calls|calls)\s*>")
# Groups: name, "/" if the tag closes itself (P9).
OPEN_INVOKE = re.compile(rf'\s*invoke\s+name\s*=\s*"([^"{_M}]*)"[^>/{_M}]*(/?)\s*>')
_STRING = r'string\s*=\s*"?(\w*)"?'
# Groups: string before the name, name, string after it, "/". A key may hold quotes: it is written
# unescaped, so it ends at the first quote after which the tag can be complete.
OPEN_PARAMETER = re.compile(
    rf'\s*parameter\s+(?:{_STRING}\s+)?name\s*=\s*"([^{_M}]*?)"(?:\s*{_STRING})?\s*(/?)>'
)
# Group: the word.
CLOSE = re.compile(r"\s*(tool_calls|calls|invoke|parameter)\s*>")


@dataclass(frozen=True, slots=True)
class Tag:
    """A marker in a buffer with the `<` or `</` before it and up to TAG_CHARS of what follows.

    begin: where the `<` is; the marker's own place if there is none, then it is no tag.
    pending: more text may still make it a tag.
    """

    begin: int
    rest: str
    closing: bool
    pending: bool


def tag_at(buffer: str, at: int, words: Sequence[str]) -> Tag:
    """The tag whose marker is at `at`; an opening one is pending only for these words."""
    rest = buffer[at + 1 : at + 1 + TAG_CHARS]
    if buffer[max(0, at - 2) : at] == "</":
        return Tag(at - 2, rest, True, may_become_tag(rest, WORDS, closing=True))
    if buffer[max(0, at - 1) : at] != "<":
        return Tag(at, "", False, False)
    return Tag(at - 1, rest, False, may_become_tag(rest, words, closing=False))


def may_become_tag(rest: str, words: Sequence[str], *, closing: bool) -> bool:
    """Whether more text could still turn `rest`, which follows a marker, into a tag."""
    if len(rest) >= TAG_CHARS or ANY.search(rest):
        return False
    rest = rest.lstrip()
    for word in words:
        if word.startswith(rest):
            return True
        if rest.startswith(word):
            after = rest[len(word) :]
            bare = closing or word.endswith("calls")
            if not after.strip() if bare else after[0].isspace():
                return True
    return False


def held_tail(text: str, *, newlines: bool = False) -> int:
    """How many characters at the end may belong to a tag that is still to come."""
    tail = 2 if text.endswith("</") else 1 if text.endswith("<") else 0
    if newlines:
        body = text[: len(text) - tail]
        tail += len(body) - len(body.rstrip("\n"))
    return tail


def spell(text: str) -> str:
    """Text for people: markers that turned out to be text are spelled out again."""
    return text.translate(_SPELLED)
