"""Sizes of pages, slots and snapshots against the published numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deodar.cache.geometry import Geometry
from deodar.checkpoint.tiny import tiny_config
from deodar.config import V4_1_FLASH, ModelConfig
from deodar.errors import ConfigError

SEEDLING = replace(
    tiny_config(),
    num_hidden_layers=8,
    sliding_window=128,
    compress_ratios=(0, 0, 2, 2, 2, 1, 1, 1, 0, 0, 0),
    kv_source_layer_ids=(2, 5),
    index_source_layer_ids=(2, 5, 7),
    candidate_source_layer_id=5,
    engram_layer_ids=(1,),
    engram_num_embeddings=(660,),
    dspark_target_layer_ids=(5, 6, 7),
)
"""The depth, window and head sizes of the shipped model; the cache depends on nothing else."""


def test_released_sizes() -> None:
    g = Geometry.from_config(V4_1_FLASH)
    assert (g.entry_bytes, g.index_key_bytes, g.window_row_bytes) == (288, 68, 528)
    assert (g.page_tokens, g.page_bytes) == (128, 3 * 64 * 356 + 128 * 356)
    assert g.kv_bytes_per_token == 890
    assert g.full_ring_bytes == 2_906_112
    assert g.encoder_ring_bytes == 1_351_680
    assert g.ring_tokens == 128 + 6
    assert g.snapshot_extra_bytes == 2 * 3 * 4096 + 4 * 8
    assert g.slot_bytes == 43 * 134 * 528 + 8 * 3 * 4096 + 10 * 8


def test_tiny_sizes() -> None:
    g = Geometry.from_config(tiny_config())
    # 64-wide heads: 32 + 4; 32-wide index keys: 16 + 1. Two writers of ratio 2, one of ratio 1.
    assert (g.page_tokens, g.page_bytes) == (8, (4 + 4 + 8) * 53)
    assert g.full_ring_bytes == 13 * 8 * 66
    assert g.encoder_ring_bytes == 6 * 8 * 66


def test_seedling_sizes() -> None:
    g = Geometry.from_config(SEEDLING)
    assert (g.page_tokens, g.page_bytes) == (128, (64 + 128) * 53)
    assert (g.full_ring_bytes, g.encoder_ring_bytes) == (92_928, 42_240)


@pytest.mark.parametrize("config", [V4_1_FLASH, tiny_config(), SEEDLING])
def test_bytes_per_token_agree_with_the_configuration(config: ModelConfig) -> None:
    assert Geometry.from_config(config).kv_bytes_per_token == config.kv_bytes_per_token


@pytest.mark.parametrize(("window", "tokens"), [(2, 2), (3, 2), (9, 8), (128, 128), (4096, 128)])
def test_pages_are_even_and_at_most_128_tokens(window: int, tokens: int) -> None:
    g = Geometry.from_config(replace(tiny_config(), sliding_window=window))
    assert g.page_tokens == tokens
    assert (g.pages_for(0), g.pages_for(tokens), g.pages_for(tokens + 1)) == (0, 1, 2)


def test_a_window_of_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="sliding_window is 1, must be at least 2"):
        Geometry.from_config(replace(tiny_config(), sliding_window=1))
