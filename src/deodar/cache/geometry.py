"""Sizes of everything a request keeps, in tokens and bytes, from the model's configuration.

Called by the memory plan, the cache manager and the storage that allocates the pools. Integers
only. What must hold: the bytes a pool allocates are what `Geometry` says, on every device.

    page   compressed entries and index keys of all sources for `page_tokens` tokens (shared)
    slot   window rings of every layer, unpaired compressor rows, n-gram history (one sequence)
    snapshot   the last window of every ring of a slot at one position, with its small state
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from deodar.config import TILE, ModelConfig
from deodar.errors import ConfigError

MAX_PAGE_TOKENS = 128
_FP32_BYTES = 4
_ID_BYTES = 8
_ENTRY_SCALE_GROUP = 16  # one e4m3 scale for 16 e2m1 codes (4.3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Every size of the cache. Suffixes name the unit; make one with `from_config`."""

    page_tokens: int
    entry_bytes: int
    index_key_bytes: int
    source_ratios: tuple[int, ...]
    window_tokens: int
    ring_tokens: int
    window_row_bytes: int
    encoder_layers: int
    ring_layers: int
    unpaired_tokens: int
    unpaired_row_bytes: int
    history_tokens: int

    @classmethod
    def from_config(cls, config: ModelConfig) -> Geometry:
        """Sizes for one checkpoint (4.3, 4.4). Raises ConfigError for a window below 2."""
        window = config.sliding_window
        if window < 2:
            raise ConfigError(f"sliding_window is {window}, must be at least 2 for the cache")
        # A verify step writes 1 + drafts rows, and the step after it may be on its way already;
        # the room keeps the whole window before the last committed token readable meanwhile.
        room = config.dspark_block_size + 1
        ratios = tuple(config.ratio(layer) for layer in config.kv_source_layer_ids)
        head, key = config.head_dim, config.index_head_dim
        return cls(
            page_tokens=_page_tokens(window),
            entry_bytes=head // 2 + head // _ENTRY_SCALE_GROUP,
            index_key_bytes=key // 2 + key // TILE,
            source_ratios=ratios,
            window_tokens=window,
            ring_tokens=window + room,
            window_row_bytes=head + head // TILE,
            encoder_layers=config.kv_source_layer_ids[-1],
            ring_layers=config.num_layers_with_draft,
            unpaired_tokens=2 + room,
            unpaired_row_bytes=2 * head * _FP32_BYTES * sum(r > 1 for r in ratios),
            history_tokens=config.engram_max_ngram_size + room,
        )

    @property
    def page_bytes(self) -> int:
        """One page over all sources; a source of ratio r has page_tokens / r entries in it."""
        entries = sum(self.page_tokens // ratio for ratio in self.source_ratios)
        return entries * (self.entry_bytes + self.index_key_bytes)

    @property
    def kv_bytes_per_token(self) -> Fraction:
        return Fraction(self.page_bytes, self.page_tokens)

    @property
    def slot_bytes(self) -> int:
        """Rings of backbone and draft layers, unpaired (a, g) rows in fp32, history ids."""
        rings = self.ring_layers * self.ring_tokens * self.window_row_bytes
        unpaired = self.unpaired_tokens * self.unpaired_row_bytes
        return rings + unpaired + self.history_tokens * _ID_BYTES

    @property
    def full_ring_bytes(self) -> int:
        """Window rows of a full snapshot: every backbone layer and draft block."""
        return self.ring_layers * self.window_tokens * self.window_row_bytes

    @property
    def encoder_ring_bytes(self) -> int:
        """Window rows of an encoder snapshot: the layers below the last memory writer."""
        return self.encoder_layers * self.window_tokens * self.window_row_bytes

    @property
    def snapshot_extra_bytes(self) -> int:
        """Beside the rings: unpaired rows of two tokens, ids that the n-grams look back on.

        Two tokens and one id more than one position needs, because a snapshot serves its own
        position and the one before it.
        """
        ids = self.history_tokens - (self.ring_tokens - self.window_tokens)
        return 2 * self.unpaired_row_bytes + ids * _ID_BYTES

    @property
    def full_snapshot_bytes(self) -> int:
        return self.full_ring_bytes + self.snapshot_extra_bytes

    @property
    def encoder_snapshot_bytes(self) -> int:
        return self.encoder_ring_bytes + self.snapshot_extra_bytes

    def pages_for(self, tokens: int) -> int:
        """Pages that hold `tokens` tokens."""
        return -(-tokens // self.page_tokens)


def _page_tokens(window: int) -> int:
    # Even, so that a pair of ratio 2 never straddles two pages. Not longer than the window: a
    # shorter page would only help hits that a window of replay makes worthless anyway.
    return min(MAX_PAGE_TOKENS, window) // 2 * 2
