"""Configurations: both written forms, and every contradiction named with field, value and limit."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deodar.checkpoint.tiny import TINY, TINY_GPU_HEADS
from deodar.config import V4_1_FLASH, ModelConfig, VisionConfig, builtin_config
from deodar.errors import ConfigError

# The vendor's run config (1.2), written by hand from the list of names.
VENDOR = {
    "dim": 5120, "moe_inter_dim": 2304, "n_layers": 40, "n_mtp_layers": 3, "n_heads": 64,
    "vocab_size": 129280, "head_dim": 512, "rope_head_dim": 64, "q_lora_rank": 1280,
    "o_lora_rank": 1024, "o_groups": 8, "swiglu_limit": 10.0, "norm_eps": 1e-20,
    "rope_theta": 10000.0, "compress_rope_theta": 160000.0, "original_seq_len": 65536,
    "rope_factor": 16, "beta_fast": 32, "beta_slow": 1, "n_routed_experts": 384,
    "n_shared_experts": 1, "n_activated_experts": 6, "score_func": "sqrtsoftplus",
    "route_scale": 1.5, "window_size": 128,
    "compress_ratios": [0, 0] + [2] * 18 + [1] * 20 + [0] * 3,
    "kv_source_layers": [2, 8, 14, 20], "index_source_layers": [2, 8, 14, 20, 24, 28, 32, 36],
    "index_n_heads": 32, "index_head_dim": 128, "index_topk": 512, "candidate_source_layer": 20,
    "candidate_topk_blocks": 2048, "candidate_block_size": 8, "hc_mult": 4,
    "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "engram_layer_ids": [1, 14],
    "engram_num_embeddings": [384006168, 384016682], "engram_max_ngram_size": 4,
    "engram_vocab_size": 16000000, "engram_n_heads": 8, "engram_head_dim": 256,
    "engram_pad_id": 2, "engram_compressed_vocab_size": 99092, "dspark_block_size": 5,
    "dspark_noise_token_id": 128799, "dspark_target_layer_ids": [37, 38, 39],
    "dspark_markov_rank": 256, "dspark_n_routed_experts": 128, "dspark_n_activated_experts": 3,
    "vision_n_layers": 32, "vision_dim": 1024, "vision_n_heads": 16, "vision_inter_dim": 2816,
    "vision_patch_size": 14, "vision_rope_theta": 10000, "vision_downsample_ratio": 3,
    "vision_max_n_token": 1024, "vision_min_pixels": 295936, "vision_max_wh_ratio": None,
    "dtype": "fp8", "expert_dtype": "fp4",
}  # fmt: skip


@pytest.mark.parametrize("config", [V4_1_FLASH, TINY, TINY_GPU_HEADS])
def test_nested_form_comes_back(config: ModelConfig) -> None:
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_vendor_form_is_the_released_one() -> None:
    assert ModelConfig.from_dict(VENDOR) == V4_1_FLASH


def test_short_vision_names_inside_vision_config() -> None:
    data = V4_1_FLASH.to_dict()
    data["vision_config"] = {"vision_n_layers": 5, "hidden_size": 512, "num_attention_heads": 8}
    config = ModelConfig.from_dict(data)
    assert config.vision == VisionConfig(
        num_hidden_layers=5, hidden_size=512, num_attention_heads=8
    )


def test_expert_dtype_in_either_place() -> None:
    data = TINY.to_dict()
    del data["quantization_config"]["expert_dtype"]  # type: ignore[attr-defined]
    data["expert_dtype"] = "fp4"
    assert ModelConfig.from_dict(data) == TINY
    data["expert_dtype"] = "fp8"
    with pytest.raises(ConfigError, match="expert_dtype is 'fp8', must be 'fp4'"):
        ModelConfig.from_dict(data)


def test_unknown_builtin() -> None:
    assert builtin_config("v4.1-flash") is V4_1_FLASH
    with pytest.raises(ConfigError, match=r"no built-in configuration 'v5'; known: v4\.1-flash"):
        builtin_config("v5")


def test_sources_follow_section_0() -> None:
    c = V4_1_FLASH
    assert [c.kv_source(layer) for layer in (0, 2, 7, 19, 20, 39, 40)] == [
        None, 2, 2, 14, 20, 20, None,
    ]  # fmt: skip
    assert [c.index_source(layer) for layer in (1, 13, 23, 24, 27, 39)] == [
        None, 8, 20, 24, 24, 36,
    ]  # fmt: skip


def test_byte_sums_of_10_1() -> None:
    assert V4_1_FLASH.kv_bytes_per_token == 890
    assert V4_1_FLASH.window_bytes_per_sequence == 2_703_360
    assert TINY.kv_bytes_per_token * 2 == 2 * (32 + 4 + 16 + 1) * 2


CONTRADICTIONS: list[tuple[str, Any, str]] = [
    ("kv_source_layer_ids", [2, 6, 4], "kv_source_layer_ids is [2, 6, 4], must be strictly incr"),
    ("kv_source_layer_ids", [2, 2, 4, 6], "strictly increasing"),
    ("kv_source_layer_ids", [1, 2, 4, 6], "must be a layer whose compress_ratio is above 0"),
    ("kv_source_layer_ids", [2, 3, 4, 6], "one of index_source_layer_ids as well"),
    ("kv_source_layer_ids", [2, 4], "compress_ratios[6] is 1, must be the ratio of its source"),
    ("kv_source_layer_ids", [4, 6], "compress_ratios[2] is 2, must be the ratio of its source"),
    ("kv_source_layer_ids", [2, 4, 6, 77], "below num_hidden_layers (10)"),
    ("index_source_layer_ids", [2, 4, 8, 6], "strictly increasing"),
    ("index_source_layer_ids", [0, 2, 4, 6, 8], "above 0"),
    ("index_source_layer_ids", "2,4", "must be a list of integers"),
    ("index_source_layer_ids", [2, 4, 6, True], "must be a list of integers"),
    ("index_source_layer_ids", [-2, 4, 6], "integers from 0"),
    ("compress_ratios", [0, 0, 2], "length of compress_ratios is 3, must be num_hidden_layers + "),
    ("compress_ratios", [0, 0, 3, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0], "compress_ratios[2] is 3"),
    ("compress_ratios", [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0, 1, 0], "must be 0 in a draft layer"),
    ("compress_ratios", [0, 0, 2, 1, 2, 2, 1, 1, 1, 1, 0, 0, 0], "compress_ratios[3] is 1"),
    ("dspark_target_layer_ids", [7, 8, 10], "below num_hidden_layers (10)"),
    ("dspark_target_layer_ids", [8, 7, 9], "strictly increasing"),
    ("dspark_target_layer_ids", [], "must be not empty"),
    ("dspark_noise_token_id", 512, "must be below vocab_size (512)"),
    ("num_experts_per_tok", 17, "must be at most n_routed_experts (16)"),
    ("dspark_num_experts_per_tok", 9, "must be at most dspark_n_routed_experts (8)"),
    ("hidden_size", 250, "hidden_size is 250, must be a multiple of 32"),
    ("moe_intermediate_size", 48, "multiple of 32"),
    ("q_lora_rank", 100, "multiple of 32"),
    ("o_lora_rank", 16, "multiple of 32"),
    ("head_dim", 72, "multiple of 32"),
    ("index_head_dim", 40, "multiple of 32"),
    ("engram_head_dim", 8, "multiple of 32"),
    ("qk_rope_head_dim", 15, "must be even"),
    ("qk_rope_head_dim", 48, "index_head_dim is 32, must be at least qk_rope_head_dim (48)"),
    ("o_groups", 3, "num_attention_heads is 8, must be a multiple of o_groups (3)"),
    ("candidate_source_layer_id", 8, "one of kv_source_layer_ids and of index_source_layer_ids"),
    ("candidate_source_layer_id", 5, "one of kv_source_layer_ids and of index_source_layer_ids"),
    ("sliding_window", 0, "sliding_window is 0, must be from 1"),
    ("index_topk", -1, "index_topk is -1, must be from 1"),
    ("candidate_topk_blocks", 0, "must be from 1"),
    ("engram_num_embeddings", [660, 863], "engram_num_embeddings[1] is 863, must be the sum of "),
    ("engram_num_embeddings", [660], "length of engram_num_embeddings is 1"),
    ("engram_layer_ids", [4, 1], "strictly increasing"),
    ("engram_layer_ids", [1, 10], "below num_hidden_layers"),
    ("engram_vocab_size", 2**60, "engram_vocab_size"),
    ("engram_compressed_vocab_size", 513, "must be at most vocab_size (512)"),
    ("engram_pad_token_id", 300, "must be below engram_compressed_vocab_size (300)"),
    ("n_shared_experts", 2, "must be from 1 to 1"),
    ("vocab_size", 512.0, "vocab_size is 512.0, must be an integer"),
    ("vocab_size", True, "vocab_size is True, must be an integer"),
    ("vocab_size", "512", "must be an integer"),
    ("vocab_size", None, "must be an integer"),
    ("vocab_size", 10**30, "must be from 1 to"),
    ("num_hidden_layers", 10**6, "must be from 1 to 512"),
    ("rms_norm_eps", math.nan, "must be above 0"),
    ("rms_norm_eps", -1, "must be above 0"),
    ("rope_theta", math.inf, "must be above 0"),
    ("swiglu_limit", "10", "must be a number"),
    ("hc_eps", 10**400, "must be above 0 and at most"),
    ("rope_scaling", None, "rope_scaling is NoneType, must be a JSON object"),
    ("rope_scaling", {"rope_type": "linear"}, "rope_scaling.rope_type is 'linear', must be 'yarn'"),
    ("rope_scaling", {"factor": 16}, "rope_scaling.beta_fast is missing"),
    ("scoring_func", "softmax", "scoring_func is 'softmax', must be 'sqrtsoftplus'"),
    ("norm_topk_prob", False, "must be True"),
    ("norm_topk_prob", 1, "must be True"),
    ("num_key_value_heads", 8, "num_key_value_heads is 8, must be 1"),
    ("tie_word_embeddings", True, "must be False"),
    ("index_k_source_layer_ids", [2], "index_k_source_layer_ids is [2], must be [2, 4, 6]"),
    ("window_size", 9, "sliding_window is 8, must be equal to window_size (9)"),
]


@pytest.mark.parametrize(("field", "value", "words"), CONTRADICTIONS)
def test_contradictions(field: str, value: Any, words: str) -> None:
    data = copy.deepcopy(TINY.to_dict())
    data["text_config"][field] = value  # type: ignore[index]
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_dict(data)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("field", sorted(TINY.to_dict()["text_config"]))  # type: ignore[arg-type]
def test_missing_keys(field: str) -> None:
    data = copy.deepcopy(TINY.to_dict())
    del data["text_config"][field]  # type: ignore[attr-defined]
    if hasattr(TINY, field):
        with pytest.raises(ConfigError, match=f"{field}|rope_scaling"):
            ModelConfig.from_dict(data)
    else:  # keys with one value may be absent
        assert ModelConfig.from_dict(data) == TINY


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("bos_token_id", 512, "bos_token_id is 512, must be below vocab_size (512)"),
        ("eos_token_id", [1], "eos_token_id is [1], must be an integer"),
        ("image_token_id", -1, "must be from 0"),
        ("model_type", "llama", "model_type is 'llama', must be 'deepseek_v41'"),
        ("text_config", [], "text_config is list, must be a JSON object"),
        ("vision_config", 3, "vision_config is int, must be a JSON object"),
        ("vision_config", {"num_hidden_layers": 0}, "vision_config.num_hidden_layers is 0"),
        ("vision_config", {"num_attention_heads": 7}, "multiple of 4 times num_attention_heads"),
        ("quantization_config", {"quant_method": "awq"}, "quantization_config.quant_method is"),
        ("quantization_config", {"weight_block_size": [128, 128]}, "must be [32, 32]"),
    ],
)
def test_top_level_contradictions(field: str, value: object, words: str) -> None:
    data = {**TINY.to_dict(), field: value}
    with pytest.raises(ConfigError) as caught:
        ModelConfig.from_dict(data)
    assert words in str(caught.value)


def test_nested_form_needs_token_ids() -> None:
    data = TINY.to_dict()
    del data["eos_token_id"]
    with pytest.raises(ConfigError, match="eos_token_id is missing"):
        ModelConfig.from_dict(data)


def test_only_a_vision_tower_needs_an_image_token() -> None:
    data = TINY.to_dict()
    del data["image_token_id"]
    config = ModelConfig.from_dict(data)
    assert config == replace(TINY, image_token_id=None)
    assert ModelConfig.from_dict(config.to_dict()) == config
    data["vision_config"] = {}
    with pytest.raises(ConfigError, match="image_token_id is missing"):
        ModelConfig.from_dict(data)
    with pytest.raises(ConfigError, match="image_token_id is None, must be set where"):
        replace(config, vision=VisionConfig())


def test_a_config_made_in_code_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="index_topk is 0"):
        replace(TINY, index_topk=0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_json_is_a_config_or_a_config_error(data: st.DataObject) -> None:
    changed: dict[str, Any] = copy.deepcopy(TINY.to_dict())
    places = [changed, changed["text_config"], changed["text_config"]["rope_scaling"]]
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(places))
        place[data.draw(st.sampled_from(sorted(place) + ["vision_config"]))] = data.draw(JSON)
    try:
        config = ModelConfig.from_dict(changed)
    except ConfigError:
        return
    assert ModelConfig.from_dict(config.to_dict()) == config
