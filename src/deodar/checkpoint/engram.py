"""Integer mathematics of Engram (3.10 a-d): token map, offsets, multipliers, hash rows.

Called by the loader (token map), the model room (rows of positions) and the trainer. NumPy and
int64 only; every product of an id and a multiplier fits int64 by construction of the multipliers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, normalizers

from deodar.checkpoint.jsonfile import read_object
from deodar.config import ModelConfig
from deodar.errors import CheckpointError, TokenizerError

Ints = NDArray[np.int64]

DEAD = -1
"""Compressed id of what n-grams must not see: image spans, and all before position 0."""
TOKEN_MAP_FILE = "engram_token_map.json"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngramHash:
    """Hash of one Engram layer (3.10 b-d). Arrays are int64, columns in file order.

    primes, offsets: [columns], n-gram sizes 2..max, heads inside. multipliers: [max n-gram].
    """

    primes: Ints
    offsets: Ints
    multipliers: Ints
    heads: int
    pad_id: int

    @property
    def history(self) -> int:
        """Compressed ids that must be kept from before a chunk."""
        return len(self.multipliers) - 1

    def rows(self, compressed: Ints) -> Ints:
        """Table rows of every new position.

        compressed: int64 [history + n], the `history` ids before the chunk and then the chunk's;
        DEAD where there is none (before position 0) or where the token is in an image span.
        Returns int64 [n, columns]. Rows of a DEAD position are those of pads; its gate is shut.
        """
        count = len(compressed) - self.history
        # dead[k]: tok_k and everything older is replaced by the pad id.
        dead = np.zeros(count, dtype=bool)
        mixed = np.zeros(count, dtype=np.int64)
        result = np.empty((count, len(self.primes)), dtype=np.int64)
        for k, multiplier in enumerate(self.multipliers):
            start = self.history - k
            token = compressed[start : start + count]
            dead = dead | (token < 0)
            mixed = mixed ^ (np.where(dead, self.pad_id, token) * multiplier)
            if k:
                columns = slice((k - 1) * self.heads, k * self.heads)
                result[:, columns] = mixed[:, None] % self.primes[columns] + self.offsets[columns]
        return result


@lru_cache(maxsize=64)
def engram_hash(config: ModelConfig, layer: int) -> EngramHash:
    """The hash of backbone layer `layer`, which must be one of `engram_layer_ids`."""
    primes = np.array(config.engram_primes()[config.engram_layer_ids.index(layer)], dtype=np.int64)
    return EngramHash(
        primes=primes,
        offsets=np.concatenate([[0], np.cumsum(primes)[:-1]]).astype(np.int64),
        multipliers=multipliers(config, layer),
        heads=config.engram_n_heads,
        pad_id=config.engram_pad_token_id,
    )


def multipliers(config: ModelConfig, layer: int) -> Ints:
    """3.10c: odd numbers of PCG64 seeded with 10007 * layer; int64 [max n-gram]."""
    bound = ((2**63 - 1) // config.engram_compressed_vocab_size) // 2
    draw = np.random.default_rng(10007 * layer).integers(
        0, bound, size=config.engram_max_ngram_size, dtype=np.int64
    )
    return 2 * draw + 1


def hash_rows(config: ModelConfig, layer: int, compressed: Ints) -> Ints:
    """`EngramHash.rows` of one layer: int64 [history + n] to int64 [n, columns]."""
    return engram_hash(config, layer).rows(np.asarray(compressed, dtype=np.int64))


def load_token_map(folder: Path, config: ModelConfig) -> Ints:
    """Compressed id of every token id, int64 [vocab_size] (3.10a).

    Reads `engram_token_map.json` ({"map": [...]}) where present, else derives the map from
    `tokenizer.json`. Raises CheckpointError if it has not one id per token or not exactly
    `engram_compressed_vocab_size` different ids from 0 on: every multiplier depends on that size.
    """
    path = folder / TOKEN_MAP_FILE
    if path.exists():
        entries = read_object(path).get("map")
        if not isinstance(entries, list) or not all(type(e) is int for e in entries):
            raise CheckpointError(f'{path.name}: "map" must be a list of integers')
        if not all(0 <= e < 2**31 for e in entries):
            raise CheckpointError(f"{path.name}: compressed ids must be from 0 to 2147483647")
        token_map, source = np.array(entries, dtype=np.int64), path.name
    else:
        token_map, source = derive_token_map(folder / "tokenizer.json", config.vocab_size), "map"
    _check_map(token_map, config, source)
    return token_map


def _check_map(token_map: Ints, config: ModelConfig, source: str) -> None:
    size = config.engram_compressed_vocab_size
    if len(token_map) != config.vocab_size:
        raise CheckpointError(
            f"{source}: Engram token map has {len(token_map)} entries, "
            f"must be vocab_size ({config.vocab_size})"
        )
    used = np.unique(token_map)
    if len(used) != size or used[-1] != size - 1:
        raise CheckpointError(
            f"{source}: Engram token map has {len(used)} compressed ids up to {used[-1]}, must be "
            f"every id below engram_compressed_vocab_size ({size})"
        )


def derive_token_map(tokenizer_file: Path, vocab_size: int) -> Ints:
    """3.10a from a tokenizer.json. Raises TokenizerError if the file cannot be read."""
    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"{tokenizer_file.name} cannot be read: {error}") from error
    normalizer = _normalizer()
    known: dict[str, int] = {}
    token_map = np.empty(vocab_size, dtype=np.int64)
    for token_id in range(vocab_size):
        text = tokenizer.decode([token_id], skip_special_tokens=False)
        if "\ufffd" in text:
            key = tokenizer.id_to_token(token_id) or text
        else:
            key = normalizer.normalize_str(text) or text
        token_map[token_id] = known.setdefault(key, len(known))
    return token_map


def _normalizer() -> normalizers.Normalizer:
    lone = "\ue000"  # stands for a token that is one space, so that Strip leaves it alone
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), lone),
            normalizers.Strip(),
            normalizers.Replace(lone, " "),
        ]
    )
