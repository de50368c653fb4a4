"""Sizes of a checkpoint of this structure, read from config.json (model.md 1.1).

Called by every file of the training code. Pure Python and NumPy.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Field names follow model.md 1.1 with the long prefixes cut."""

    vocab: int
    hidden: int
    layers: int
    inter: int
    heads: int
    head_dim: int
    rope_dim: int
    q_lora: int
    o_lora: int
    o_groups: int
    window: int
    ratios: tuple[int, ...]
    kv_sources: tuple[int, ...]
    index_sources: tuple[int, ...]
    index_heads: int
    index_dim: int
    index_topk: int
    candidate_source: int
    candidate_blocks: int
    candidate_size: int
    experts: int
    top: int
    route_scale: float
    limit: float
    theta: float
    compress_theta: float
    yarn_factor: float
    yarn_original: int
    beta_fast: float
    beta_slow: float
    copies: int
    engram_layers: tuple[int, ...]
    engram_ngram: int
    engram_heads: int
    engram_dim: int
    engram_start: int
    engram_pad: int
    engram_classes: int
    draft_layers: int
    draft_block: int
    noise: int
    taps: tuple[int, ...]
    markov_rank: int
    draft_experts: int
    draft_top: int

    def kv_source(self, layer: int) -> int:
        """The layer whose compressed memory `layer` reads (section 0)."""
        return max(s for s in self.kv_sources if s <= layer)

    def index_source(self, layer: int) -> int:
        """The layer whose choice of entries `layer` uses."""
        return max(s for s in self.index_sources if s <= layer)

    def frequencies(self, compressed: bool) -> np.ndarray:
        """fp32 rotation frequencies [rope_dim/2] of section 3.4."""
        d = self.rope_dim
        base = (self.compress_theta if compressed else self.theta) ** (-np.arange(0, d, 2) / d)
        if not compressed:
            return base.astype(np.float32)
        low = max(math.floor(self._turn(self.beta_fast)), 0)
        high = min(math.ceil(self._turn(self.beta_slow)), d - 1)
        ramp = np.clip((np.arange(d // 2) - low) / max(high - low, 0.001), 0, 1)
        return (base / self.yarn_factor * ramp + base * (1 - ramp)).astype(np.float32)

    def _turn(self, beta: float) -> float:
        turns = math.log(self.yarn_original / (2 * math.pi * beta))
        return self.rope_dim * turns / (2 * math.log(self.compress_theta))

    def primes(self) -> dict[int, np.ndarray]:
        """Per Engram layer the primes [columns] in column order (3.10b)."""
        columns = (self.engram_ngram - 1) * self.engram_heads
        found: list[int] = []
        n = self.engram_start
        while len(found) < columns * len(self.engram_layers):
            if all(n % k for k in range(2, math.isqrt(n) + 1)):
                found.append(n)
            n += 1
        rows = np.array(found, dtype=np.int64).reshape(len(self.engram_layers), columns)
        return dict(zip(self.engram_layers, rows, strict=True))

    def multipliers(self, layer: int) -> np.ndarray:
        """int64 [ngram] multipliers of an Engram layer (3.10c)."""
        bound = ((2**63 - 1) // self.engram_classes) // 2
        draw = np.random.default_rng(10007 * layer).integers(0, bound, self.engram_ngram)
        return (2 * draw + 1).astype(np.int64)


def shape_from_config(config: dict) -> Shape:
    """Shape of a parsed config.json in the released nested layout."""
    t = config["text_config"]
    yarn = t["rope_scaling"]
    return Shape(
        vocab=t["vocab_size"],
        hidden=t["hidden_size"],
        layers=t["num_hidden_layers"],
        inter=t["moe_intermediate_size"],
        heads=t["num_attention_heads"],
        head_dim=t["head_dim"],
        rope_dim=t["qk_rope_head_dim"],
        q_lora=t["q_lora_rank"],
        o_lora=t["o_lora_rank"],
        o_groups=t["o_groups"],
        window=t["sliding_window"],
        ratios=tuple(t["compress_ratios"]),
        kv_sources=tuple(t["kv_source_layer_ids"]),
        index_sources=tuple(t["index_source_layer_ids"]),
        index_heads=t["index_n_heads"],
        index_dim=t["index_head_dim"],
        index_topk=t["index_topk"],
        candidate_source=t["candidate_source_layer_id"],
        candidate_blocks=t["candidate_topk_blocks"],
        candidate_size=t["candidate_block_size"],
        experts=t["n_routed_experts"],
        top=t["num_experts_per_tok"],
        route_scale=t["routed_scaling_factor"],
        limit=t["swiglu_limit"],
        theta=t["rope_theta"],
        compress_theta=t["compress_rope_theta"],
        yarn_factor=yarn["factor"],
        yarn_original=yarn["original_max_position_embeddings"],
        beta_fast=yarn["beta_fast"],
        beta_slow=yarn["beta_slow"],
        copies=t["hc_mult"],
        engram_layers=tuple(t["engram_layer_ids"]),
        engram_ngram=t["engram_max_ngram_size"],
        engram_heads=t["engram_n_heads"],
        engram_dim=t["engram_head_dim"],
        engram_start=t["engram_vocab_size"],
        engram_pad=t["engram_pad_token_id"],
        engram_classes=t["engram_compressed_vocab_size"],
        draft_layers=t["num_nextn_predict_layers"],
        draft_block=t["dspark_block_size"],
        noise=t["dspark_noise_token_id"],
        taps=tuple(t["dspark_target_layer_ids"]),
        markov_rank=t["dspark_markov_rank"],
        draft_experts=t["dspark_n_routed_experts"],
        draft_top=t["dspark_num_experts_per_tok"],
    )


def load_shape(path: str | Path) -> Shape:
    """Shape of a config.json file."""
    return shape_from_config(json.loads(Path(path).read_text()))
