"""One block (3.3) and the attention of a backbone layer: window, memory, choice (3.5 to 3.8).

Called by `reference` layer after layer. `block` is shared with the draft head, which brings its
own attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from deodar.config import ModelConfig
from deodar.model import attention, compressor, hyper, indexer
from deodar.model.attention import AttentionWeights
from deodar.model.compressor import CompressorWeights
from deodar.model.hyper import HyperWeights
from deodar.model.indexer import IndexerWeights
from deodar.model.layers import rms_norm
from deodar.model.moe import MoeWeights, moe
from deodar.model.numerics import Numerics
from deodar.model.rope import RopeTables
from deodar.model.state import Memory, State


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWeights:
    """Tensors of one block (2.2, 2.3); compressor and indexer only where the layer has them."""

    hc_attn: HyperWeights
    attn_norm: Tensor
    attention: AttentionWeights
    hc_ffn: HyperWeights
    ffn_norm: Tensor
    moe: MoeWeights
    compressor: CompressorWeights | None = None
    indexer: IndexerWeights | None = None


@dataclass(slots=True, kw_only=True)
class Pass:
    """What the layers of one forward call share.

    positions: int64 [n]. compressed: int64 [history + n], ids that n-grams see (3.10 d). image:
    bool [n] or None. plain, yarn: rotations of the positions (3.4). in_window: bool [n, window],
    false before the start of the sequence.

    Filled on the way: chosen, per index source int64 [n, index_topk], entry ids padded with -1;
    candidates, block ids of the candidate source, padded with -1; taps, one [n, hidden] per target
    layer; engram_rows, per Engram layer int64 [n, columns].
    """

    config: ModelConfig
    numerics: Numerics
    rope: RopeTables
    positions: Tensor
    compressed: np.ndarray
    image: Tensor | None
    hide_memory: bool
    plain: Tensor
    yarn: Tensor
    in_window: Tensor
    chosen: dict[int, Tensor] = field(default_factory=dict)
    candidates: Tensor | None = None
    taps: list[Tensor] = field(default_factory=list)
    engram_rows: dict[int, np.ndarray] = field(default_factory=dict)


def block(
    stream: Tensor,
    pre: Tensor,
    w: BlockWeights,
    attend: Callable[[Tensor], Tensor],
    image: Tensor | None,
    config: ModelConfig,
    numerics: Numerics,
) -> tuple[Tensor, Tensor]:
    """stream [n, c, hidden], pre [n, c] -> the same of the next block (3.3).

    The FFN half reads with the `pre` made by the attention half, before attention wrote.
    """
    eps = config.rms_norm_eps
    a = hyper.mixes(stream, w.hc_attn, config)
    y = attend(rms_norm(hyper.read(stream, pre, numerics), w.attn_norm, eps, numerics))
    stream = hyper.write(stream, y, a, numerics)
    f = hyper.mixes(stream, w.hc_ffn, config)
    x = rms_norm(hyper.read(stream, a.pre, numerics), w.ffn_norm, eps, numerics)
    stream = hyper.write(stream, moe(x, image, w.moe, numerics), f, numerics)
    return stream, f.pre


def layer_attention(x: Tensor, layer: int, w: BlockWeights, call: Pass, state: State) -> Tensor:
    """Attention of backbone layer `layer` on x [n, hidden]; moves the layer's state on."""
    config, numerics = call.config, call.numerics
    rotation = call.yarn if config.ratio(layer) else call.plain
    qr = attention.low_rank_query(x, w.attention, config, numerics)
    q = attention.queries(qr, w.attention, rotation, config, numerics)
    new_keys = attention.window_keys(x, w.attention, rotation, config, numerics)
    keys, seen = _window(new_keys, layer, call, state), call.in_window
    if config.ratio(layer):
        if w.compressor is not None:
            write_memory(x, layer, w.compressor, call, state)
        if w.indexer is not None:
            _choose(x, qr, layer, w.indexer, rotation, call, state)
        if not call.hide_memory:
            source, chooser = config.kv_source(layer), config.index_source(layer)
            assert source is not None
            assert chooser is not None
            chosen = call.chosen[chooser]
            found = _entries(state.memories[source].entries, chosen)
            keys, seen = torch.cat([keys, found], dim=1), torch.cat([seen, chosen >= 0], dim=1)
    o = attention.attend(q, keys, seen, w.attention.sink, numerics)
    return attention.output(o, w.attention, rotation, config, numerics)


def _window(new_keys: Tensor, layer: int, call: Pass, state: State) -> Tensor:
    """Keys [n, window, head_dim] of each row's window, itself last; moves the window on."""
    keys = torch.cat([state.windows[layer], new_keys])
    state.windows[layer] = keys[new_keys.shape[0] :]
    return keys.unfold(0, call.config.sliding_window, 1).transpose(1, 2)


def _entries(entries: Tensor, chosen: Tensor) -> Tensor:
    """entries [m, d] by ids [n, k] -> [n, k, d]; padding gives any row, masked by the caller."""
    if entries.shape[0] == 0:
        return entries.new_zeros(*chosen.shape, entries.shape[1])
    return entries[chosen.clamp(min=0)]


def write_memory(x: Tensor, layer: int, w: CompressorWeights, call: Pass, state: State) -> None:
    """Append the entries and index keys that x [n, hidden] completes (3.8)."""
    config, numerics = call.config, call.numerics
    old = state.memories[layer]
    latent, unpaired = compressor.latents(x, old.unpaired, w, config, numerics)
    first = old.entries.shape[0]
    ratio, last = config.ratio(layer), first + latent.shape[0]
    starts = torch.arange(first * ratio, last * ratio, ratio, device=x.device)
    rotation = call.rope.at(starts, compressed=True)
    state.memories[layer] = Memory(
        torch.cat([old.entries, compressor.main_entries(latent, rotation, numerics)]),
        torch.cat([old.index_keys, compressor.index_keys(latent, w, rotation, config, numerics)]),
        unpaired,
    )


def index_memory(layer: int, config: ModelConfig, state: State) -> Tensor:
    """Index keys that `layer` scores: always those of its own KV source (7a)."""
    source = config.kv_source(layer)
    assert source is not None
    return state.memories[source].index_keys


def _choose(
    x: Tensor,
    qr: Tensor,
    layer: int,
    w: IndexerWeights,
    rotation: Tensor,
    call: Pass,
    state: State,
) -> None:
    """Set call.chosen[layer], and call.candidates at the candidate source (3.8)."""
    config = call.config
    keys = index_memory(layer, config, state)
    score = indexer.scores(x, qr, keys, w, rotation, config, call.numerics)
    allowed = indexer.visible(call.positions, keys.shape[0], config.ratio(layer))
    if layer == config.candidate_source_layer_id:
        call.candidates = indexer.candidate_blocks(score, allowed, config)
    elif call.candidates is not None:
        allowed = allowed & indexer.inside(call.candidates, keys.shape[0], config)
    call.chosen[layer] = indexer.choose(score, allowed, config)
