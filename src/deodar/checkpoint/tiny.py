"""The deterministic tiny checkpoint of model.md 8 and its variant with real head sizes.

Called by `deodar make-tiny` and by tests. Weights come from an integer generator, so every machine
writes the same bytes; the goldens of 8.3 belong to the plain variant, docs/tiny.md holds the rest.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deodar.checkpoint.engram import TOKEN_MAP_FILE
from deodar.checkpoint.formats import encode_bf16
from deodar.checkpoint.inventory import TensorSpec, expected_tensors
from deodar.checkpoint.tiny_tokenizer import write_tokenizer
from deodar.checkpoint.writer import Array, write_checkpoint, write_json
from deodar.config import ModelConfig, RopeScaling

TINY = ModelConfig(
    vocab_size=512,
    hidden_size=256,
    num_hidden_layers=10,
    moe_intermediate_size=64,
    num_attention_heads=8,
    head_dim=64,
    qk_rope_head_dim=16,
    q_lora_rank=96,
    o_lora_rank=64,
    o_groups=4,
    swiglu_limit=10.0,
    rms_norm_eps=1e-20,
    max_position_embeddings=512,
    rope_theta=10000.0,
    rope_scaling=RopeScaling(
        factor=16.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=32
    ),
    compress_rope_theta=160000.0,
    n_routed_experts=16,
    n_shared_experts=1,
    num_experts_per_tok=3,
    routed_scaling_factor=1.5,
    sliding_window=8,
    compress_ratios=(0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0),
    kv_source_layer_ids=(2, 4, 6),
    index_source_layer_ids=(2, 4, 6, 8),
    index_n_heads=16,
    index_head_dim=32,
    index_topk=6,
    candidate_source_layer_id=6,
    candidate_topk_blocks=3,
    candidate_block_size=4,
    hc_mult=4,
    hc_sinkhorn_iters=20,
    hc_eps=1e-6,
    engram_layer_ids=(1, 4),
    engram_num_embeddings=(660, 864),
    engram_max_ngram_size=4,
    engram_vocab_size=100,
    engram_n_heads=2,
    engram_head_dim=32,
    engram_pad_token_id=2,
    engram_compressed_vocab_size=300,
    num_nextn_predict_layers=3,
    dspark_block_size=5,
    dspark_noise_token_id=509,
    dspark_target_layer_ids=(7, 8, 9),
    dspark_markov_rank=32,
    dspark_n_routed_experts=8,
    dspark_num_experts_per_tok=2,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=2,
    image_token_id=510,
)
"""The configuration of model.md 8.1."""

TINY_GPU_HEADS = replace(
    TINY,
    head_dim=512,
    qk_rope_head_dim=64,
    q_lora_rank=128,
    sliding_window=128,
    index_n_heads=32,
    index_head_dim=128,
    index_topk=16,
    candidate_topk_blocks=4,
    candidate_block_size=8,
    max_position_embeddings=1024,
    rope_scaling=replace(TINY.rope_scaling, original_max_position_embeddings=64),
)
"""The same depth and width with the head sizes that GPU kernels fix."""


def tiny_config(*, gpu_heads: bool = False) -> ModelConfig:
    return TINY_GPU_HEADS if gpu_heads else TINY


def make_tiny(out: Path | str, *, gpu_heads: bool = False) -> None:
    """Write the tiny checkpoint with tokenizer, token map and generation config into `out`."""
    folder, config = Path(out), tiny_config(gpu_heads=gpu_heads)
    write_checkpoint(folder, config, tiny_tensors(config))
    write_tokenizer(folder, config)
    compressed = config.engram_compressed_vocab_size
    write_json(folder / TOKEN_MAP_FILE, {"map": [i % compressed for i in range(config.vocab_size)]})
    generation = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "do_sample": True}
    write_json(folder / "generation_config.json", {**generation, "temperature": 1.0, "top_p": 0.95})


def tiny_tensors(config: ModelConfig) -> dict[str, Array]:
    """Stored arrays of every tensor by the rules of model.md 8.2."""
    specs = expected_tensors(config)
    logical = {s.scale_name: s for s in specs.values() if s.kind in ("fp8", "fp4", "rows")}
    return {
        name: _scale_bytes(spec, logical[name]) if spec.kind == "scale" else _weight(spec)
        for name, spec in specs.items()
    }


def prompt_ids(count: int, vocab_size: int = 512) -> tuple[int, ...]:
    """The prompt of 8.2: ids_i = (h_i("prompt") >> 40) mod vocab."""
    numbers = hashes("prompt", count) >> np.uint64(40)
    return tuple(int(h) % vocab_size for h in numbers)


def hashes(name: str, count: int) -> NDArray[np.uint64]:
    """h_0 .. h_{count-1} of a name (8.2), uint64 [count]."""
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = ((state ^ byte) * 0x100000001B3) % 2**64
    z = np.uint64(state) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _scale_bytes(spec: TensorSpec, weight: TensorSpec) -> Array:
    spread = (_top_bytes(spec) % 3).astype(np.int64)
    if weight.kind == "rows":
        return (120 + spread).astype(np.uint8)
    columns = weight.shape[1] * (2 if weight.kind == "fp4" else 1)
    divisor = 3 if weight.kind == "fp4" else 100
    exponent = round(math.log2(columns**-0.5 / divisor))
    return (127 + exponent - 1 + spread).astype(np.uint8)


def _weight(spec: TensorSpec) -> Array:
    if spec.kind == "dense":
        values = _dense_values(spec)
        return encode_bf16(values) if spec.dtype == "BF16" else values
    stored = _top_bytes(spec)
    if spec.kind == "fp4":
        return stored
    return np.where((stored & 0x7F) == 0x7F, stored ^ 1, stored).astype(np.uint8)  # no NaN


def _top_bytes(spec: TensorSpec) -> NDArray[np.uint8]:
    numbers = hashes(spec.name, math.prod(spec.shape)) >> np.uint64(56)
    return numbers.astype(np.uint8).reshape(spec.shape)


_EXPONENTS = {
    r"embed\.weight": -9,
    r"head\.weight": -10,
    r".*\.attn_sink": -7,
    r".*\.hc_\w+_fn": -13,
    r".*\.hc_\w+_base": -7,
    r".*\.gate\.weight": -9,
    r".*\.gate\.bias(_vl)?": -10,
    r".*\.compressor\.(wkv|wgate)\.weight": -10,
    r".*\.indexer\.weights_proj\.weight": -10,
    r".*\.indexer\.wk\.weight": -9,
    r".*\.markov_head\.embed\.weight": -9,
    r".*\.markov_head\.head\.weight": -8,
    r".*\.confidence_head\.proj\.weight": -10,
}
_NORMS = re.compile(r"(.*\.)?(\w*norm\.weight|q_weight|k_weight)")


def _dense_values(spec: TensorSpec) -> NDArray[np.float32]:
    numbers = hashes(spec.name, math.prod(spec.shape)).reshape(spec.shape)
    if _NORMS.fullmatch(spec.name):
        small = (numbers >> np.uint64(59)).astype(np.float32)
        return np.float32(1) + (small - np.float32(16)) / np.float32(128)
    centred = (numbers >> np.uint64(56)).astype(np.float32) - np.float32(128)
    if re.fullmatch(r".*\.hc_\w+_scale", spec.name):
        return centred * np.float32(2.0**-9) + np.float32(0.5)
    exponent = next(e for pattern, e in _EXPONENTS.items() if re.fullmatch(pattern, spec.name))
    return centred * np.float32(2.0**exponent)
