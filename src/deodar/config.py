"""Configuration of the model: the released nested config.json and the vendor's flat run config.

Called by the checkpoint room (files), the model room (sizes) and `deodar inspect` (built-in
numbers). Pure: no files, no torch. A ModelConfig that exists is consistent: every way to make one
runs `__post_init__`, which raises ConfigError with field, value and limit. Section numbers are
those of the model specification.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction

from deodar.errors import ConfigError

TILE = 32
"""Side of an fp8 tile and length of an fp4 or Engram scale group (2.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """YaRN numbers (3.4); always on in layers with a compressed memory."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """Sizes of the vision tower (9); the tower itself is not run yet."""

    num_hidden_layers: int = 32
    hidden_size: int = 1024
    num_attention_heads: int = 16
    intermediate_size: int = 2816
    patch_size: int = 14
    rope_theta: float = 10000.0
    downsample_ratio: int = 3
    max_image_tokens: int = 1024
    min_pixels: int = 295936
    max_wh_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One checkpoint's structure (1.1). Field names are those of the released config.json.

    image_token_id may be absent where there is no vision tower.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    moe_intermediate_size: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    swiglu_limit: float
    rms_norm_eps: float
    max_position_embeddings: int
    rope_theta: float
    rope_scaling: RopeScaling
    compress_rope_theta: float
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    routed_scaling_factor: float
    sliding_window: int
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    engram_layer_ids: tuple[int, ...]
    engram_num_embeddings: tuple[int, ...]
    engram_max_ngram_size: int
    engram_vocab_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int
    num_nextn_predict_layers: int
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_target_layer_ids: tuple[int, ...]
    dspark_markov_rank: int
    dspark_n_routed_experts: int
    dspark_num_experts_per_tok: int
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    image_token_id: int | None = None
    vision: VisionConfig | None = None

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> ModelConfig:
        """Read the released nested form, or the vendor's flat run config (1.2).

        Raises ConfigError for a missing key, a wrong type, a fixed key with another value than the
        one this engine computes, and every contradiction. Keys that nothing here reads are ignored.
        """
        return _parse(data)

    def to_dict(self) -> dict[str, object]:
        """The released nested form; `from_dict(to_dict())` is the same configuration."""
        return _nested(self)

    def ratio(self, layer: int) -> int:
        """Compression ratio of a layer; draft blocks follow the backbone (ids 40, 41, 42)."""
        return self.compress_ratios[layer]

    def kv_source(self, layer: int) -> int | None:
        """The layer whose compressed memory `layer` reads: largest source id <= layer (0)."""
        return _largest_at_most(self.kv_source_layer_ids, layer) if self.ratio(layer) else None

    def index_source(self, layer: int) -> int | None:
        """The layer whose top-k choice `layer` uses."""
        return _largest_at_most(self.index_source_layer_ids, layer) if self.ratio(layer) else None

    @property
    def num_layers_with_draft(self) -> int:
        return self.num_hidden_layers + self.num_nextn_predict_layers

    @property
    def engram_columns(self) -> int:
        """Hash columns of one Engram layer: n-gram sizes 2..max, times heads (1.4)."""
        return (self.engram_max_ngram_size - 1) * self.engram_n_heads

    def engram_primes(self) -> tuple[tuple[int, ...], ...]:
        """Primes per Engram layer in column order; none is used twice over all layers (3.10b)."""
        return _engram_primes(
            len(self.engram_layer_ids), self.engram_columns, self.engram_vocab_size
        )

    @property
    def kv_bytes_per_token(self) -> Fraction:
        """Bytes of compressed memory one token costs: entry and index key of every writer (4.3)."""
        main = self.head_dim // 2 + self.head_dim // 16
        key = self.index_head_dim // 2 + self.index_head_dim // TILE
        return sum(
            (Fraction(main + key, self.ratio(layer)) for layer in self.kv_source_layer_ids),
            Fraction(0),
        )

    @property
    def window_bytes_per_sequence(self) -> int:
        """Bytes of the backbone's window rings of one sequence (4.4)."""
        per_token = self.head_dim + self.head_dim // TILE
        return self.sliding_window * per_token * self.num_hidden_layers


def builtin_config(name: str) -> ModelConfig:
    """Numbers that need no weights. Raises ConfigError naming what is known."""
    if name not in BUILTIN_CONFIGS:
        known = ", ".join(BUILTIN_CONFIGS)
        raise ConfigError(f"no built-in configuration {name!r}; known: {known}")
    return BUILTIN_CONFIGS[name]


def _largest_at_most(sources: tuple[int, ...], layer: int) -> int | None:
    return max((s for s in sources if s <= layer), default=None)


# --- Engram primes (3.10b) -----------------------------------------------------------------------


def _engram_primes(layers: int, columns: int, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    # Each (layer, size) restarts at vocab_size - 1 but skips used primes, so the result is the
    # plain sequence of primes >= vocab_size.
    stream = _primes_from(vocab_size)
    return tuple(tuple(next(stream) for _ in range(columns)) for _ in range(layers))


def _primes_from(start: int) -> Iterator[int]:
    number = max(start, 2)
    while True:
        if _is_prime(number):
            yield number
        number += 1


_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)  # exact below 3.3e24


def _is_prime(number: int) -> bool:
    for p in _WITNESSES:
        if number % p == 0:
            return number == p
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for witness in _WITNESSES:
        x = pow(witness, odd, number)
        if x in (1, number - 1):
            continue
        if not any((x := x * x % number) == number - 1 for _ in range(twos - 1)):
            return False
    return True


# --- consistency ---------------------------------------------------------------------------------

_MAX_INT = 2**40
# Upper limits keep a damaged file from asking for millions of tensors; all are far above the
# released values.
_LIMITS: dict[str, tuple[int, int]] = {
    "vocab_size": (1, 2**24),
    "hidden_size": (1, 2**20),
    "num_hidden_layers": (1, 512),
    "n_routed_experts": (1, 4096),
    "dspark_n_routed_experts": (1, 4096),
    "n_shared_experts": (1, 1),
    "hc_mult": (1, 16),
    "hc_sinkhorn_iters": (1, 1000),
    "engram_max_ngram_size": (2, 8),
    "engram_n_heads": (1, 64),
    "engram_vocab_size": (2, 2**36),
    "num_nextn_predict_layers": (0, 64),
    "candidate_source_layer_id": (0, 511),
    "max_position_embeddings": (1, 2**31 - 1),
    "bos_token_id": (0, 2**24),
    "eos_token_id": (0, 2**24),
    "pad_token_id": (0, 2**24),
    "image_token_id": (0, 2**24),
    "dspark_noise_token_id": (0, 2**24),
    "engram_pad_token_id": (0, 2**24),
}
_TILED = (
    "hidden_size",
    "moe_intermediate_size",
    "head_dim",
    "q_lora_rank",
    "o_lora_rank",
    "index_head_dim",
    "engram_head_dim",
)


def _check(c: ModelConfig) -> None:
    _check_numbers(c)
    _check_sizes(c)
    _check_sources(c)
    _check_engram(c)
    _check_draft(c)
    for name in _TOP_LEVEL:
        token_id = getattr(c, name)
        if token_id is None:
            _require(c.vision is None, name, None, "set where there is a vision_config")
        else:
            _require(token_id < c.vocab_size, name, token_id, _below_vocab(c))


def _require(holds: bool, name: str, value: object, limit: str) -> None:
    if not holds:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        raise ConfigError(f"{name} is {shown}, must be {limit}")


def _below_vocab(c: ModelConfig) -> str:
    return f"below vocab_size ({c.vocab_size})"


def _check_numbers(c: ModelConfig) -> None:
    """Types and plain ranges of every field, also of the two inner structures."""
    for field in fields(c):
        value = getattr(c, field.name)
        if field.type == "int" or (field.type == "int | None" and value is not None):
            low, high = _LIMITS.get(field.name, (1, _MAX_INT))
            _require(type(value) is int, field.name, value, "an integer")
            _require(low <= value <= high, field.name, value, f"from {low} to {high}")
        elif field.type == "float":
            _check_positive(field.name, value)
        elif field.type == "tuple[int, ...]":
            whole = isinstance(value, tuple) and all(type(v) is int for v in value)
            _require(whole, field.name, value, "a list of integers")
            _require(len(value) <= 1024, f"length of {field.name}", len(value), "at most 1024")
            fits = all(0 <= v <= _MAX_INT for v in value)
            _require(fits, field.name, value, f"integers from 0 to {_MAX_INT}")
    rope = c.rope_scaling
    for name in ("factor", "beta_fast", "beta_slow"):
        _check_positive(f"rope_scaling.{name}", getattr(rope, name))
    _require(rope.factor >= 1, "rope_scaling.factor", rope.factor, "at least 1")
    _require(
        rope.beta_fast > rope.beta_slow, "rope_scaling.beta_fast", rope.beta_fast,
        f"above beta_slow ({rope.beta_slow})",
    )  # fmt: skip
    original = rope.original_max_position_embeddings
    name = "rope_scaling.original_max_position_embeddings"
    _require(type(original) is int and 1 <= original < 2**31, name, original, "a positive integer")
    if c.vision is not None:
        _check_vision(c.vision)


def _check_positive(name: str, value: object) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    _require(number, name, value, "a number")
    assert isinstance(value, (int, float))
    # No isfinite: it overflows on huge integers. NaN fails the comparison.
    _require(0 < value <= 1e30, name, value, "above 0 and at most 1e30")


def _check_vision(v: VisionConfig) -> None:
    for field in fields(v):
        name, value = f"vision_config.{field.name}", getattr(v, field.name)
        if field.type == "int":
            _require(type(value) is int and 1 <= value <= 2**31, name, value, "a positive integer")
        elif value is not None:
            _check_positive(name, value)
    name = "vision_config.num_hidden_layers"
    _require(v.num_hidden_layers <= 512, name, v.num_hidden_layers, "at most 512")
    name, value = "vision_config.hidden_size", v.hidden_size
    limit = f"a multiple of 4 times num_attention_heads ({v.num_attention_heads})"
    _require(value % (4 * v.num_attention_heads) == 0, name, value, limit)


def _check_sizes(c: ModelConfig) -> None:
    for name in _TILED:
        _require(getattr(c, name) % TILE == 0, name, getattr(c, name), f"a multiple of {TILE}")
    _require(c.qk_rope_head_dim % 2 == 0, "qk_rope_head_dim", c.qk_rope_head_dim, "even")
    for name in ("head_dim", "index_head_dim"):
        limit = f"at least qk_rope_head_dim ({c.qk_rope_head_dim})"
        _require(getattr(c, name) >= c.qk_rope_head_dim, name, getattr(c, name), limit)
    _require(
        c.num_attention_heads % c.o_groups == 0, "num_attention_heads", c.num_attention_heads,
        f"a multiple of o_groups ({c.o_groups})",
    )  # fmt: skip
    pairs = (
        ("num_experts_per_tok", "n_routed_experts"),
        ("dspark_num_experts_per_tok", "dspark_n_routed_experts"),
    )
    for few, many in pairs:
        limit = f"at most {many} ({getattr(c, many)})"
        _require(getattr(c, few) <= getattr(c, many), few, getattr(c, few), limit)


def _check_sources(c: ModelConfig) -> None:
    """Who writes, who reads, who chooses (section 0): every reader has a writer of its ratio."""
    _require(
        len(c.compress_ratios) == c.num_layers_with_draft, "length of compress_ratios",
        len(c.compress_ratios),
        f"num_hidden_layers + num_nextn_predict_layers ({c.num_layers_with_draft})",
    )  # fmt: skip
    for layer, ratio in enumerate(c.compress_ratios):
        _require(ratio in (0, 1, 2), f"compress_ratios[{layer}]", ratio, "0, 1 or 2")
        if layer >= c.num_hidden_layers:
            _require(ratio == 0, f"compress_ratios[{layer}]", ratio, "0 in a draft layer")
    for name in ("kv_source_layer_ids", "index_source_layer_ids"):
        sources: tuple[int, ...] = getattr(c, name)
        _check_increasing(name, sources, c.num_hidden_layers)
        for layer in sources:
            _require(c.ratio(layer) > 0, name, layer, "a layer whose compress_ratio is above 0")
    for layer in c.kv_source_layer_ids:
        owned = layer in c.index_source_layer_ids
        _require(owned, "kv_source_layer_ids", layer, "one of index_source_layer_ids as well")
    for layer in range(c.num_hidden_layers):
        if c.ratio(layer):
            source = c.kv_source(layer)
            same = source is not None and c.ratio(source) == c.ratio(layer)
            limit = f"the ratio of its source layer in kv_source_layer_ids ({source})"
            _require(same, f"compress_ratios[{layer}]", c.ratio(layer), limit)
    source = c.candidate_source_layer_id
    both = source in c.kv_source_layer_ids and source in c.index_source_layer_ids
    limit = "one of kv_source_layer_ids and of index_source_layer_ids"
    _require(both, "candidate_source_layer_id", source, limit)


def _check_increasing(name: str, ids: tuple[int, ...], end: int) -> None:
    ordered = all(a < b for a, b in zip(ids, ids[1:], strict=False))
    _require(ordered, name, list(ids), "strictly increasing")
    _require(all(i < end for i in ids), name, list(ids), f"below num_hidden_layers ({end})")


def _check_engram(c: ModelConfig) -> None:
    _check_increasing("engram_layer_ids", c.engram_layer_ids, c.num_hidden_layers)
    columns = len(c.engram_layer_ids) * c.engram_columns
    _require(columns <= 4096, "number of Engram hash columns", columns, "at most 4096")
    count = len(c.engram_num_embeddings)
    limit = f"one per engram layer ({len(c.engram_layer_ids)})"
    _require(count == len(c.engram_layer_ids), "length of engram_num_embeddings", count, limit)
    primes = c.engram_primes()
    for index, (rows, used) in enumerate(zip(c.engram_num_embeddings, primes, strict=True)):
        limit = f"the sum of the layer's primes ({sum(used)})"
        _require(rows == sum(used), f"engram_num_embeddings[{index}]", rows, limit)
    size = c.engram_compressed_vocab_size
    limit = _below_vocab(c).replace("below", "at most")
    _require(size <= c.vocab_size, "engram_compressed_vocab_size", size, limit)
    limit = f"below engram_compressed_vocab_size ({size})"
    _require(c.engram_pad_token_id < size, "engram_pad_token_id", c.engram_pad_token_id, limit)


def _check_draft(c: ModelConfig) -> None:
    _check_increasing("dspark_target_layer_ids", c.dspark_target_layer_ids, c.num_hidden_layers)
    if c.num_nextn_predict_layers:
        _require(bool(c.dspark_target_layer_ids), "dspark_target_layer_ids", [], "not empty")
    noise = c.dspark_noise_token_id
    _require(noise < c.vocab_size, "dspark_noise_token_id", noise, _below_vocab(c))


# --- the two written forms (1.1, 1.2) ------------------------------------------------------------

_VENDOR_NAMES = {
    "hidden_size": "dim",
    "moe_intermediate_size": "moe_inter_dim",
    "num_hidden_layers": "n_layers",
    "num_nextn_predict_layers": "n_mtp_layers",
    "num_attention_heads": "n_heads",
    "num_experts_per_tok": "n_activated_experts",
    "scoring_func": "score_func",
    "routed_scaling_factor": "route_scale",
    "qk_rope_head_dim": "rope_head_dim",
    "rms_norm_eps": "norm_eps",
    "sliding_window": "window_size",
    "kv_source_layer_ids": "kv_source_layers",
    "index_source_layer_ids": "index_source_layers",
    "original_max_position_embeddings": "original_seq_len",
    "factor": "rope_factor",
    "candidate_source_layer_id": "candidate_source_layer",
    "engram_pad_token_id": "engram_pad_id",
    "dspark_num_experts_per_tok": "dspark_n_activated_experts",
}
_VENDOR_VISION_NAMES = {
    "num_hidden_layers": "vision_n_layers",
    "hidden_size": "vision_dim",
    "num_attention_heads": "vision_n_heads",
    "intermediate_size": "vision_inter_dim",
    "patch_size": "vision_patch_size",
    "rope_theta": "vision_rope_theta",
    "downsample_ratio": "vision_downsample_ratio",
    "max_image_tokens": "vision_max_n_token",
    "min_pixels": "vision_min_pixels",
    "max_wh_ratio": "vision_max_wh_ratio",
}
# The flat form has no tokenizer in it; these are the released values (1.1).
_FLAT_DEFAULTS: dict[str, object] = {
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "image_token_id": 129264,
}
_TOP_LEVEL = tuple(_FLAT_DEFAULTS)
# Keys with one value that this engine computes. Absent is fine, another value is refused.
_FIXED_TEXT: dict[str, object] = {
    "num_key_value_heads": 1,
    "hidden_act": "silu",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "expert_dtype": "fp4",
    "hc_shifted": True,
    "use_fp4_sparse_kv": True,
    "dspark_target_attn_input": True,
    "yoco_swa_share_hidden": False,
}
_FIXED_QUANTIZATION: dict[str, object] = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [TILE, TILE],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}


def _parse(data: Mapping[str, object]) -> ModelConfig:
    _require(isinstance(data, Mapping), "the configuration", data, "a JSON object")
    nested = "text_config" in data
    text = _section(data, "text_config") if nested else data
    _check_fixed(data, {"model_type": "deepseek_v41", "expert_dtype": "fp4"}, "")
    _check_fixed(text, _FIXED_TEXT, "")
    if "quantization_config" in data:
        quantization = _section(data, "quantization_config")
        _check_fixed(quantization, _FIXED_QUANTIZATION, "quantization_config.")
    values: dict[str, object] = {}
    for field in fields(ModelConfig):
        if field.name in _TOP_LEVEL:
            values[field.name] = _token_id(data, text, field.name, nested)
        elif field.name == "rope_scaling":
            rope = _section(text, "rope_scaling") if "rope_scaling" in text else text
            values[field.name] = _parse_rope(rope)
        elif field.name == "vision":
            values[field.name] = _parse_vision(data)
        elif field.name == "max_position_embeddings" and not nested and field.name not in text:
            values[field.name] = _flat_positions(text)
        else:
            values[field.name] = _typed(field.name, str(field.type), _find(text, field.name))
    if "index_k_source_layer_ids" in text:
        same = {"index_k_source_layer_ids": list(_as_ids(values["kv_source_layer_ids"]))}
        _check_fixed(text, same, "")
    return ModelConfig(**values)  # type: ignore[arg-type]


def _section(data: Mapping[str, object], name: str) -> Mapping[str, object]:
    section = data[name]
    if not isinstance(section, Mapping):
        raise ConfigError(f"{name} is {type(section).__name__}, must be a JSON object")
    return section


def _check_fixed(data: Mapping[str, object], fixed: Mapping[str, object], prefix: str) -> None:
    for name, wanted in fixed.items():
        for key in {name, _VENDOR_NAMES.get(name, name)}:
            if key in data:
                value = data[key]
                same = value == wanted and isinstance(value, bool) == isinstance(wanted, bool)
                _require(same, prefix + key, value, repr(wanted))


def _find(data: Mapping[str, object], name: str, prefix: str = "") -> object:
    alias = _VENDOR_NAMES.get(name, name)
    if name in data and alias in data:
        limit = f"equal to {alias} ({data[alias]!r})"
        _require(data[name] == data[alias], prefix + name, data[name], limit)
    for key in (name, alias):
        if key in data:
            return data[key]
    raise ConfigError(f"{prefix}{name} is missing from the configuration")


def _typed(name: str, kind: str, value: object) -> object:
    """JSON value to field value; ranges are checked later, in one place."""
    if kind == "float":
        _check_positive(name, value)
        assert isinstance(value, (int, float))
        return float(value)
    if kind == "tuple[int, ...]":
        whole = isinstance(value, (list, tuple)) and all(type(v) is int for v in value)
        _require(whole, name, value, "a list of integers")
        return _as_ids(value)
    _require(type(value) is int, name, value, "an integer")
    return value


def _as_ids(value: object) -> tuple[int, ...]:
    assert isinstance(value, (list, tuple))
    return tuple(value)


def _token_id(
    data: Mapping[str, object], text: Mapping[str, object], name: str, nested: bool
) -> object:
    for place in (data, text):
        if name in place:
            return _typed(name, "int", place[name])
    if not nested:
        return _FLAT_DEFAULTS[name]
    if name == "image_token_id" and data.get("vision_config") is None:
        return None
    raise ConfigError(f"{name} is missing from the configuration")


def _parse_rope(rope: Mapping[str, object]) -> RopeScaling:
    for key in ("rope_type", "type"):
        _check_fixed(rope, {key: "yarn"}, "rope_scaling.")
    values: dict[str, object] = {}
    for field in fields(RopeScaling):
        value = _find(rope, field.name, "rope_scaling.")
        values[field.name] = _typed(f"rope_scaling.{field.name}", str(field.type), value)
    return RopeScaling(**values)  # type: ignore[arg-type]


def _flat_positions(text: Mapping[str, object]) -> int:
    rope = _parse_rope(text)
    return int(rope.factor * rope.original_max_position_embeddings)


def _parse_vision(data: Mapping[str, object]) -> VisionConfig | None:
    """Long names inside vision_config, or the `vision_*` short names there or at top level."""
    inner = data.get("vision_config")
    if inner is None and not any(name in data for name in _VENDOR_VISION_NAMES.values()):
        return None
    source = data if inner is None else _section(data, "vision_config")
    values: dict[str, object] = {}
    for field in fields(VisionConfig):
        short = _VENDOR_VISION_NAMES[field.name]
        key = short if short in source else field.name
        if key not in source or (inner is None and key != short):
            continue
        value = source[key]
        if field.name == "max_wh_ratio" and value is None:
            continue
        kind = "int" if field.type == "int" else "float"
        values[field.name] = _typed(f"vision_config.{key}", kind, value)
    return VisionConfig(**values)  # type: ignore[arg-type]


def _nested(c: ModelConfig) -> dict[str, object]:
    text: dict[str, object] = {"model_type": "deepseek_v41_text"}
    for field in fields(c):
        value = getattr(c, field.name)
        if field.name in _TOP_LEVEL or field.name == "vision":
            continue
        if isinstance(value, RopeScaling):
            rope = {f.name: getattr(value, f.name) for f in fields(value)}
            text[field.name] = {"rope_type": "yarn", **rope}
        else:
            text[field.name] = list(value) if isinstance(value, tuple) else value
    shown = ("num_key_value_heads", "hidden_act", "attention_bias", "tie_word_embeddings")
    for name in (*shown, "scoring_func", "topk_method", "norm_topk_prob"):
        text[name] = _FIXED_TEXT[name]
    result: dict[str, object] = {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        **{name: getattr(c, name) for name in _TOP_LEVEL if getattr(c, name) is not None},
        "text_config": text,
        "quantization_config": dict(_FIXED_QUANTIZATION),
    }
    if c.vision is not None:
        vision = {f.name: getattr(c.vision, f.name) for f in fields(c.vision)}
        result["vision_config"] = {"model_type": "deepseek_v41_vision", **vision}
    return result


V4_1_FLASH = ModelConfig(
    vocab_size=129280, hidden_size=5120, num_hidden_layers=40, max_position_embeddings=1048576,
    num_attention_heads=64, head_dim=512, qk_rope_head_dim=64, q_lora_rank=1280,
    o_lora_rank=1024, o_groups=8, sliding_window=128, rms_norm_eps=1e-20,
    rope_theta=10000.0, compress_rope_theta=160000.0,
    rope_scaling=RopeScaling(
        factor=16.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=65536
    ),
    moe_intermediate_size=2304, n_routed_experts=384, n_shared_experts=1, num_experts_per_tok=6,
    routed_scaling_factor=1.5, swiglu_limit=10.0,
    compress_ratios=(0, 0, *(2,) * 18, *(1,) * 20, 0, 0, 0),
    kv_source_layer_ids=(2, 8, 14, 20),
    index_source_layer_ids=(2, 8, 14, 20, 24, 28, 32, 36),
    index_n_heads=32, index_head_dim=128, index_topk=512,
    candidate_source_layer_id=20, candidate_topk_blocks=2048, candidate_block_size=8,
    hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6,
    engram_layer_ids=(1, 14), engram_num_embeddings=(384006168, 384016682),
    engram_max_ngram_size=4, engram_vocab_size=16000000, engram_n_heads=8, engram_head_dim=256,
    engram_pad_token_id=2, engram_compressed_vocab_size=99092,
    num_nextn_predict_layers=3, dspark_block_size=5, dspark_noise_token_id=128799,
    dspark_target_layer_ids=(37, 38, 39), dspark_markov_rank=256, dspark_n_routed_experts=128,
    dspark_num_experts_per_tok=3,
    bos_token_id=0, eos_token_id=1, pad_token_id=2, image_token_id=129264, vision=VisionConfig(),
)  # fmt: skip
"""The released configuration (1.1)."""
BUILTIN_CONFIGS = {"v4.1-flash": V4_1_FLASH}
