"""The tensors a configuration calls for: name, stored type, shape, part (model.md section 2).

The loader proves a checkpoint against this list, the writer writes by it, `deodar inspect` adds it
up. Pure arithmetic on a ModelConfig; nothing is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from deodar.config import TILE, ModelConfig, VisionConfig

Part = Literal["global", "backbone", "experts", "engram", "draft", "vision"]
PARTS: tuple[Part, ...] = ("experts", "backbone", "engram", "draft", "vision", "global")
Kind = Literal["fp8", "fp4", "rows", "scale", "dense"]

ITEM_BYTES = {"F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "BF16": 2, "F32": 4}
IGNORED = re.compile(r"mtp\.\d+\.(embed|head)\.weight")
"""Copies of the backbone's embedding and head that some files hold under mtp (2.5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One stored tensor. `kind` says how values are coded; scales belong to the weight before.

    fp8: 32x32 tiles; fp4: packed [R, C/2], 32 columns a scale; rows: Engram, 32 columns a scale.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    part: Part
    kind: Kind

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def num_parameters(self) -> int:
        """Logical numbers; scales are not counted (1.4)."""
        if self.kind == "scale":
            return 0
        return math.prod(self.shape) * (2 if self.kind == "fp4" else 1)

    @property
    def scale_name(self) -> str:
        return self.name.removesuffix(".weight") + ".scale"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTotal:
    """Sums over one part of the model."""

    part: str
    tensors: int
    num_bytes: int
    parameters: int


def expected_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """Every tensor of the released layout, by bare name, in the order of section 2."""
    specs: list[TensorSpec] = []
    for layer in range(config.num_hidden_layers):
        prefix = f"layers.{layer}."
        specs += _block(config, prefix, "backbone", "experts", config.n_routed_experts)
        specs += _source_extras(config, layer)
        if layer in config.engram_layer_ids:
            specs += _engram(config, layer)
    for block in range(config.num_nextn_predict_layers):
        specs += _block(config, f"mtp.{block}.", "draft", "draft", config.dspark_n_routed_experts)
    if config.num_nextn_predict_layers:
        specs += _draft_extras(config)
    specs += _global(config)
    if config.vision is not None:
        specs += _vision(config.hidden_size, config.vision)
    return {spec.name: spec for spec in specs}


def totals(specs: dict[str, TensorSpec]) -> tuple[PartTotal, ...]:
    """One line per part that has tensors, then the sum of all as part "total"."""
    lines = []
    for part in (*PARTS, "total"):
        chosen = [s for s in specs.values() if part in (s.part, "total")]
        if chosen:
            lines.append(
                PartTotal(
                    part=part,
                    tensors=len(chosen),
                    num_bytes=sum(s.num_bytes for s in chosen),
                    parameters=sum(s.num_parameters for s in chosen),
                )
            )
    return tuple(lines)


def _dense(name: str, shape: tuple[int, ...], part: Part, dtype: str = "BF16") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape, part=part, kind="dense")


def _fp8(name: str, rows: int, columns: int, part: Part) -> Iterator[TensorSpec]:
    yield TensorSpec(
        name=f"{name}.weight", dtype="F8_E4M3", shape=(rows, columns), part=part, kind="fp8"
    )
    tiles = (-(-rows // TILE), -(-columns // TILE))
    yield TensorSpec(name=f"{name}.scale", dtype="F8_E8M0", shape=tiles, part=part, kind="scale")


def _fp4(name: str, rows: int, columns: int, part: Part) -> Iterator[TensorSpec]:
    packed, groups = (rows, columns // 2), (rows, columns // TILE)
    yield TensorSpec(name=f"{name}.weight", dtype="I8", shape=packed, part=part, kind="fp4")
    yield TensorSpec(name=f"{name}.scale", dtype="F8_E8M0", shape=groups, part=part, kind="scale")


def _block(
    c: ModelConfig, prefix: str, part: Part, expert_part: Part, experts: int
) -> Iterator[TensorSpec]:
    """2.2: attention, hyper-connections, router, experts; also a draft block (2.5)."""
    hidden, inner, wide = c.hidden_size, c.moe_intermediate_size, c.num_attention_heads * c.head_dim
    attn, ffn = prefix + "attn.", prefix + "ffn."
    yield from _fp8(attn + "wq_a", c.q_lora_rank, hidden, part)
    yield _dense(attn + "q_norm.weight", (c.q_lora_rank,), part)
    yield from _fp8(attn + "wq_b", wide, c.q_lora_rank, part)
    yield from _fp8(attn + "wkv", c.head_dim, hidden, part)
    yield _dense(attn + "kv_norm.weight", (c.head_dim,), part)
    yield from _fp8(attn + "wo_a", c.o_groups * c.o_lora_rank, wide // c.o_groups, part)
    yield from _fp8(attn + "wo_b", hidden, c.o_groups * c.o_lora_rank, part)
    yield _dense(attn + "attn_sink", (c.num_attention_heads,), part, "F32")
    yield _dense(prefix + "attn_norm.weight", (hidden,), part)
    yield _dense(prefix + "ffn_norm.weight", (hidden,), part)
    mix = (2 + c.hc_mult) * c.hc_mult
    for half in ("attn", "ffn"):
        yield _dense(f"{prefix}hc_{half}_fn", (mix, c.hc_mult * hidden), part, "F32")
        yield _dense(f"{prefix}hc_{half}_base", (mix,), part, "F32")
        yield _dense(f"{prefix}hc_{half}_scale", (3,), part, "F32")
    yield _dense(ffn + "gate.weight", (experts, hidden), part)
    yield _dense(ffn + "gate.bias", (experts,), part, "F32")
    yield _dense(ffn + "gate.bias_vl", (experts,), part, "F32")
    for expert in range(experts):
        for matrix, rows, columns in (("w1", inner, hidden), ("w3", inner, hidden)):
            yield from _fp4(f"{ffn}experts.{expert}.{matrix}", rows, columns, expert_part)
        yield from _fp4(f"{ffn}experts.{expert}.w2", hidden, inner, expert_part)
    for matrix, rows, columns in (("w1", inner, hidden), ("w3", inner, hidden)):
        yield from _fp8(f"{ffn}shared_experts.{matrix}", rows, columns, part)
    yield from _fp8(f"{ffn}shared_experts.w2", hidden, inner, part)


def _source_extras(c: ModelConfig, layer: int) -> Iterator[TensorSpec]:
    """2.3: compressor of a writer, indexer of a chooser."""
    prefix = f"layers.{layer}.attn."
    writes = layer in c.kv_source_layer_ids
    if writes:
        matrix = (c.head_dim, c.hidden_size)
        yield _dense(prefix + "compressor.wkv.weight", matrix, "backbone")
        yield _dense(prefix + "compressor.norm.weight", (c.head_dim,), "backbone")
        if c.ratio(layer) == 2:
            yield _dense(prefix + "compressor.wgate.weight", matrix, "backbone")
    if layer in c.index_source_layer_ids:
        query = c.index_n_heads * c.index_head_dim
        yield from _fp8(prefix + "indexer.wq_b", query, c.q_lora_rank, "backbone")
        weights = (c.index_n_heads, c.hidden_size)
        yield _dense(prefix + "indexer.weights_proj.weight", weights, "backbone")
        if writes:
            keys = (c.index_head_dim, c.head_dim)
            yield _dense(prefix + "indexer.wk.weight", keys, "backbone")
            yield _dense(prefix + "indexer.k_norm.weight", (c.index_head_dim,), "backbone")


def _engram(c: ModelConfig, layer: int) -> Iterator[TensorSpec]:
    """2.4: the table with one scale per row and 32 columns, and the projection."""
    prefix = f"layers.{layer}.engram."
    rows = c.engram_num_embeddings[c.engram_layer_ids.index(layer)]
    width = c.engram_head_dim
    yield TensorSpec(
        name=prefix + "embed.weight", dtype="F8_E4M3", shape=(rows, width), part="engram",
        kind="rows",
    )  # fmt: skip
    yield TensorSpec(
        name=prefix + "embed.scale", dtype="F8_E8M0", shape=(rows, width // TILE), part="engram",
        kind="scale",
    )  # fmt: skip
    out = (c.hc_mult + 1) * c.hidden_size
    yield from _fp8(prefix + "wkv", out, c.engram_columns * width, "engram")
    for name in ("q_weight", "k_weight"):
        yield _dense(prefix + name, (c.hc_mult, c.hidden_size), "engram")


def _draft_extras(c: ModelConfig) -> Iterator[TensorSpec]:
    """2.5: conditioning in the first block, heads in the last."""
    hidden, rank = c.hidden_size, c.dspark_markov_rank
    last = f"mtp.{c.num_nextn_predict_layers - 1}."
    yield from _fp8("mtp.0.main_proj", hidden, len(c.dspark_target_layer_ids) * hidden, "draft")
    yield _dense("mtp.0.main_norm.weight", (hidden,), "draft")
    yield _dense(last + "norm.weight", (hidden,), "draft")
    yield _dense(last + "markov_head.embed.weight", (c.vocab_size, rank), "draft")
    yield _dense(last + "markov_head.head.weight", (c.vocab_size, rank), "draft")
    yield _dense(last + "confidence_head.proj.weight", (1, hidden + rank), "draft")


def _global(c: ModelConfig) -> Iterator[TensorSpec]:
    yield _dense("embed.weight", (c.vocab_size, c.hidden_size), "global")
    yield _dense("head.weight", (c.vocab_size, c.hidden_size), "global")
    yield _dense("norm.weight", (c.hidden_size,), "global")


def _vision(hidden: int, v: VisionConfig) -> Iterator[TensorSpec]:
    """2.6: tower, aligner, three learned vectors."""
    width = v.hidden_size
    cell = width * v.downsample_ratio**2
    shapes: dict[str, tuple[int, ...]] = {
        "vision.patch_embed.proj.weight": (width, 3 * v.patch_size**2),
        "vision.patch_embed.proj.bias": (width,),
    }
    for block in range(v.num_hidden_layers):
        prefix = f"vision.blocks.{block}."
        shapes[prefix + "norm1.weight"] = (width,)
        shapes[prefix + "norm2.weight"] = (width,)
        shapes[prefix + "attn.wqkv.weight"] = (3 * width, width)
        shapes[prefix + "attn.wqkv.bias"] = (3 * width,)
        shapes[prefix + "attn.wo.weight"] = (width, width)
        shapes[prefix + "attn.wo.bias"] = (width,)
        shapes[prefix + "mlp.w1.weight"] = (2 * v.intermediate_size, width)
        shapes[prefix + "mlp.w2.weight"] = (width, v.intermediate_size)
    shapes["vision.norm.weight"] = (width,)
    shapes["aligner.w1.weight"] = (hidden, cell)
    shapes["aligner.w1.bias"] = (hidden,)
    shapes["aligner.w2.weight"] = (hidden, hidden)
    shapes["aligner.w2.bias"] = (hidden,)
    for name in ("image_start", "image_end", "image_newline"):
        shapes[name] = (hidden,)
    for name, shape in shapes.items():
        yield _dense(name, shape, "vision")
