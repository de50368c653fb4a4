"""Text to token ids and back, over the checkpoint's own `tokenizer.json`.

Used by the server, the chat command and `LLM`. What must hold: ordinary text never yields a
special id, whatever it spells; special ids are looked up by text, never assumed; detokenised
chunks join to the same text however the ids are cut, and no chunk ends inside a character.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as _Backend

from deodar.errors import TokenizerError
from deodar.text.segments import (
    BOS,
    EOS,
    SPECIAL_TOKENS,
    Piece,
    Prompt,
    without_surrogates,
)

LONG_TEXT = 10_000  # characters


class Tokenizer:
    """One vocabulary. `special` maps each text of spec api 1.1 to its id.

    vocab_size: above the largest id; ids in between may stand for nothing.
    """

    def __init__(self, definition: dict[str, Any], source: str = "tokenizer.json") -> None:
        """`definition` is the parsed tokenizer.json; TokenizerError if it cannot serve."""
        if not isinstance(definition, dict) or "model" not in definition:
            raise TokenizerError(f"{source}: no 'model' section, this is not a tokenizer.json")
        if not _is_byte_level(definition.get("decoder")):
            raise TokenizerError(f"{source}: the decoder must be ByteLevel")
        plain = {**definition, "added_tokens": [], "post_processor": None}
        try:
            full = _Backend.from_str(json.dumps({**definition, "post_processor": None}))
            self._plain = _Backend.from_str(json.dumps(plain))
        except Exception as error:  # the backend raises bare Exception for any defect
            raise TokenizerError(f"{source}: {error}") from None
        self._plain.no_truncation()
        self._plain.no_padding()
        added = {id_: token.content for id_, token in full.get_added_tokens_decoder().items()}
        self.special: dict[str, int] = _special_ids(full, added, source)
        self._added = added
        self._bytes = _vocabulary_bytes(full, added, source)
        self.vocab_size = len(self._bytes)
        self._longest_bytes = max(map(len, self._bytes), default=1)
        self._special_pattern = re.compile(f"({'|'.join(map(re.escape, self.special))})")
        self.bos_id = self.special[BOS]
        self.eos_id = self.special[EOS]

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read `folder/tokenizer.json`; TokenizerError if it is missing or damaged."""
        path = folder / "tokenizer.json"
        try:
            definition = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise TokenizerError(f"{path}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise TokenizerError(f"{path}: not JSON: {error}") from None
        return cls(definition, str(path))

    def encode_text(self, text: str) -> list[int]:
        """Ids of ordinary text; spellings of special tokens in it stay text (spec api 1.12)."""
        text = without_surrogates(text)
        if len(text) < LONG_TEXT:
            return list(self._plain.encode(text, add_special_tokens=False).ids)
        # Only the batch form lets other threads run meanwhile; a long text takes seconds.
        return list(self._plain.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def encode_raw(self, text: str) -> list[int]:
        """Ids of a raw prompt, begin token first; special tokens typed in it are special here.

        Only for prompts that are no conversation (spec api 1.13).
        """
        ids = [self.bos_id]
        for part in self._special_pattern.split(text):
            ids += [self.special[part]] if part in self.special else self.encode_text(part)
        return ids

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Ids of a rendered prompt: each special piece is one id, each text piece is encoded."""
        ids: list[int] = []
        for piece in prompt.pieces:
            if piece.special:
                ids.append(self.special[piece.text])
            else:
                ids.extend(self.encode_text(piece.text))
        return ids

    def fewest_tokens(self, prompt: Prompt) -> int:
        """A lower bound of the tokens of a prompt, in no time: its bytes over the longest token.

        Lets a prompt that can never fit be refused before megabytes are tokenised.
        """
        num_bytes = sum(len(piece.text.encode("utf-8")) for piece in prompt.pieces)
        return num_bytes // self._longest_bytes

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; empty for ids without a token."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def is_special(self, token_id: int) -> bool:
        """Whether the id is an added token, never made from ordinary text."""
        return token_id in self._added

    def special_text(self, token_id: int) -> str:
        """The text of an added token."""
        return self._added[token_id]

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of ids; bytes that are not UTF-8 become U+FFFD."""
        kept = (t for t in token_ids if not (skip_special and t in self._added))
        return b"".join(self.token_bytes(t) for t in kept).decode("utf-8", errors="replace")


class Detokenizer:
    """Turns a stream of ids into pieces; holds back the bytes of an unfinished character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_ids: Sequence[int]) -> list[Piece]:
        """Pieces that are certain after these ids, in order; neighbouring texts are joined."""
        pieces: list[Piece] = []
        text = ""
        for token_id in token_ids:
            if self._tokenizer.is_special(token_id):
                text += self._utf8.decode(b"", final=True)
                if text:
                    pieces.append(Piece(text))
                    text = ""
                pieces.append(Piece(self._tokenizer.special_text(token_id), special=True))
            else:
                text += self._utf8.decode(self._tokenizer.token_bytes(token_id))
        if text:
            pieces.append(Piece(text))
        return pieces

    def finish(self) -> list[Piece]:
        """What is left at the end: U+FFFD if the ids stop inside a character."""
        text = self._utf8.decode(b"", final=True)
        return [Piece(text)] if text else []


def _is_byte_level(decoder: object) -> bool:
    if not isinstance(decoder, dict):
        return False
    if decoder.get("type") == "Sequence":
        return any(_is_byte_level(part) for part in decoder.get("decoders", []))
    return decoder.get("type") == "ByteLevel"


def _special_ids(full: _Backend, added: dict[int, str], source: str) -> dict[str, int]:
    by_text = {text: id_ for id_, text in added.items()}
    for token in SPECIAL_TOKENS:
        if token not in by_text:
            raise TokenizerError(f"{source}: the special token {token!r} is missing")
        ids = full.encode(token, add_special_tokens=False).ids
        if ids != [by_text[token]]:
            raise TokenizerError(
                f"{source}: the special token {token!r} is not a single id, it encodes as {ids}"
            )
    return {token: by_text[token] for token in SPECIAL_TOKENS}


def _vocabulary_bytes(full: _Backend, added: dict[int, str], source: str) -> list[bytes]:
    vocabulary: dict[str, int] = full.get_vocab(with_added_tokens=True)
    table = _byte_of_character()
    size = max(vocabulary.values(), default=-1) + 1
    values = [b""] * size
    for token, token_id in vocabulary.items():
        if token_id in added:
            values[token_id] = added[token_id].encode("utf-8")
            continue
        try:
            values[token_id] = bytes(table[character] for character in token)
        except KeyError:
            raise TokenizerError(
                f"{source}: token {token_id} {token!r} is not spelled in byte-level characters"
            ) from None
    return values


def _byte_of_character() -> dict[str, int]:
    """The byte-level alphabet: printable bytes stand for themselves, the others follow U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return table
