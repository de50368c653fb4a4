"""Lays a checkpoint out for the compiled CPU kernels: two flat arrays and the book of offsets.

Called by `deodar.model.cpu`. Every matrix is turned to [in, out], joined with those that read the
same input, padded to 16 columns and packed in panels. bfloat16 holds every stored format of the
release exactly (fp8 and fp4 have few bits and power-of-two scales); a value that it does not hold
is an error, never a silent rounding.
"""

from __future__ import annotations

import numpy as np

from deodar.cache.geometry import Geometry
from deodar.checkpoint.loader import Checkpoint
from deodar.config import ModelConfig
from deodar.errors import CheckpointError
from deodar.kernels.cpu import layout as at
from deodar.kernels.cpu.layout import Bits, Floats, Longs, Weights
from deodar.kernels.cpu.matmul import pack, padded
from deodar.model.frequencies import frequency_tables


def build_weights(checkpoint: Checkpoint, context: int) -> Weights:
    """All backbone tensors of `checkpoint`, with rotations for positions 0 .. context - 1.

    Raises CheckpointError where a matrix does not fit bfloat16 exactly.
    """
    config = checkpoint.config
    writer = _Writer(checkpoint)
    book = np.zeros((config.num_hidden_layers, at.BOOK_COLUMNS), np.int64)
    page_tokens = Geometry.from_config(config).page_tokens
    places = entry_places(config, page_tokens)
    for layer in range(config.num_hidden_layers):
        _describe(book[layer], config, layer, places)
        if config.ratio(layer):
            book[layer, at.PAGE_ENTRIES] = page_tokens // config.ratio(layer)
        _attention(book[layer], writer, layer)
        _experts(book[layer], writer, layer)
        if layer in config.engram_layer_ids:
            _engram(book[layer], writer, layer)
    cos, sin = rotations(config, np.arange(context))
    return Weights(
        book=book,
        narrow=np.concatenate(writer.narrow),
        wide=np.concatenate(writer.wide),
        embed=writer.exact("embed.weight", checkpoint.dense("embed.weight")),
        head_matrix=pack(writer.exact("head.weight", checkpoint.dense("head.weight").T)),
        final_norm=checkpoint.dense("norm.weight"),
        cos=cos,
        sin=sin,
    )


def entry_places(config: ModelConfig, page_tokens: int) -> dict[int, int]:
    """First entry of each KV source, by layer, among those of a page."""
    places, total = {}, 0
    for layer in config.kv_source_layer_ids:
        places[layer] = total
        total += page_tokens // config.ratio(layer)
    return places


def rotations(config: ModelConfig, positions: Longs) -> tuple[Floats, Floats]:
    """cos and sin of int64 positions [n], float32 [2, n, rope / 2]: plain table, then YaRN (3.4).

    The angle is one float32 product without range reduction, as in training.
    """
    column = positions.astype(np.float32)[:, None]
    angles = np.stack([column * table for table in frequency_tables(config)])
    exact = angles.astype(np.float64)
    return np.cos(exact).astype(np.float32), np.sin(exact).astype(np.float32)


class _Writer:
    """Appends tensors to the two flat arrays and answers with their offsets."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.narrow: list[Bits] = []
        self.wide: list[Floats] = []
        self._narrow_size = 0
        self._wide_size = 0

    def exact(self, name: str, values: Floats) -> Bits:
        """The bfloat16 bits of `values`, which must lose nothing."""
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        if (bits & 0xFFFF).any():
            raise CheckpointError(f"{name} holds a value that bfloat16 cannot hold")
        return (bits >> 16).astype(np.uint16)

    def matrix(self, *names: str) -> tuple[int, list[int], int]:
        """Join matrices [out, in] that read one input; offset, column of each, padded width."""
        dense = [self.checkpoint.dense(name) for name in names]
        columns = np.cumsum([0, *(m.shape[0] for m in dense)]).tolist()
        joined = self.exact(names[0], np.concatenate(dense).T)
        return self.add_packed(pack(joined)), columns[:-1], padded(columns[-1])

    def add_packed(self, packed: Bits) -> int:
        self.narrow.append(packed)
        self._narrow_size += packed.size
        return self._narrow_size - packed.size

    def vector(self, *tensors: Floats) -> int:
        """Append float32 tensors one after another; the offset of the first."""
        start = self._wide_size
        for tensor in tensors:
            self.wide.append(np.ascontiguousarray(tensor, dtype=np.float32).ravel())
            self._wide_size += self.wide[-1].size
        return start

    def named(self, name: str) -> int:
        return self.vector(self.checkpoint.dense(name))


def _describe(row: Longs, config: ModelConfig, layer: int, places: dict[int, int]) -> None:
    source = config.kv_source(layer)
    row[at.RATIO] = config.ratio(layer)
    row[at.ROPE] = 1 if config.ratio(layer) else 0
    row[at.OWNS_MEMORY] = layer in config.kv_source_layer_ids
    row[at.ENTRIES_AT] = 0 if source is None else places[source]
    pairing = [s for s in config.kv_source_layer_ids if config.ratio(s) > 1]
    row[at.UNPAIRED] = pairing.index(layer) if layer in pairing else -1
    row[at.OWNS_INDEX] = layer in config.index_source_layer_ids
    chooser = config.candidate_source_layer_id
    row[at.ROLE] = (
        at.ROLE_PUBLISH
        if layer == chooser
        else (at.ROLE_RESTRICTED if layer > chooser else at.ROLE_FREE)
    )
    taps, engrams = config.dspark_target_layer_ids, config.engram_layer_ids
    row[at.TAP] = taps.index(layer) if layer in taps else -1
    row[at.ENGRAM] = engrams.index(layer) if layer in engrams else -1


def _attention(row: Longs, writer: _Writer, layer: int) -> None:
    config, base = writer.checkpoint.config, f"layers.{layer}."
    attn = base + "attn."
    inputs = [attn + "wq_a.weight", attn + "wkv.weight"]
    columns = [at.AT_KEY]
    if row[at.OWNS_MEMORY]:
        inputs.append(attn + "compressor.wkv.weight")
        columns.append(at.AT_LATENT)
        if row[at.RATIO] == 2:
            inputs.append(attn + "compressor.wgate.weight")
            columns.append(at.AT_GATE)
        key = writer.checkpoint.dense(attn + "indexer.wk.weight").T
        row[at.W_INDEX_KEY] = writer.add_packed(pack(writer.exact(attn + "indexer.wk.weight", key)))
        row[at.F_LATENT_NORM] = writer.named(attn + "compressor.norm.weight")
        row[at.F_INDEX_NORM] = writer.named(attn + "indexer.k_norm.weight")
    queries = [attn + "wq_b.weight"]
    if row[at.OWNS_INDEX]:
        inputs.append(attn + "indexer.weights_proj.weight")
        columns.append(at.AT_INDEX_WEIGHT)
        queries.append(attn + "indexer.wq_b.weight")
    row[at.W_IN], places, row[at.IN_WIDTH] = writer.matrix(*inputs)
    row[columns] = places[1:]
    row[at.W_QUERY], _, row[at.QUERY_WIDTH] = writer.matrix(*queries)
    name = attn + "wo_a.weight"
    groups = writer.checkpoint.dense(name).reshape(config.o_groups, config.o_lora_rank, -1)
    packed = [pack(writer.exact(name, group.T)) for group in groups]
    row[at.W_OUT_A] = writer.add_packed(np.concatenate(packed))
    row[at.W_OUT_B], _, _ = writer.matrix(attn + "wo_b.weight")
    row[at.F_Q_NORM] = writer.named(attn + "q_norm.weight")
    row[at.F_KEY_NORM] = writer.named(attn + "kv_norm.weight")
    row[at.F_SINK] = writer.named(attn + "attn_sink")
    row[at.F_ATTN_NORM] = writer.named(base + "attn_norm.weight")
    row[at.F_HC_ATTN] = _hyper(writer, base + "hc_attn_")


def _hyper(writer: _Writer, prefix: str) -> int:
    dense = writer.checkpoint.dense
    matrix = np.zeros((dense(prefix + "fn").shape[1], at.MIX_WIDTH), np.float32)
    matrix[:, : dense(prefix + "fn").shape[0]] = dense(prefix + "fn").T
    return writer.vector(pack(matrix), dense(prefix + "base"), dense(prefix + "scale"))


def _experts(row: Longs, writer: _Writer, layer: int) -> None:
    config, ffn = writer.checkpoint.config, f"layers.{layer}.ffn."
    shared = ffn + "shared_experts."
    names = (ffn + "gate.weight", shared + "w1.weight", shared + "w3.weight")
    row[at.W_FFN], places, row[at.FFN_WIDTH] = writer.matrix(*names)
    row[at.AT_SHARED] = places[1]
    row[at.W_SHARED_OUT], _, _ = writer.matrix(shared + "w2.weight")
    for expert in range(config.n_routed_experts):
        one = f"{ffn}experts.{expert}."
        start, _, _ = writer.matrix(one + "w1.weight", one + "w3.weight")
        writer.matrix(one + "w2.weight")
        if expert == 0:
            row[at.W_EXPERTS] = start
    row[at.F_BIAS] = writer.named(ffn + "gate.bias")
    row[at.F_FFN_NORM] = writer.named(f"layers.{layer}.ffn_norm.weight")
    row[at.F_HC_FFN] = _hyper(writer, f"layers.{layer}.hc_ffn_")


def _engram(row: Longs, writer: _Writer, layer: int) -> None:
    base = f"layers.{layer}.engram."
    dense = writer.checkpoint.dense
    row[at.W_ENGRAM], _, _ = writer.matrix(base + "wkv.weight")
    row[at.F_ENGRAM_QK] = writer.vector(dense(base + "q_weight") * dense(base + "k_weight"))
