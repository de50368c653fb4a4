"""DSpark draft head (6): three blocks that propose `dspark_block_size` tokens at once.

Called by `Reference.draft`. What must hold: it reads the backbone's taps and nothing else, so it
can never change what the backbone computes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deodar.config import ModelConfig
from deodar.model import attention, hyper
from deodar.model.block import BlockWeights, block
from deodar.model.layers import rms_norm
from deodar.model.numerics import Numerics
from deodar.model.rope import RopeTables


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftWeights:
    """Tensors of 2.5; embed and head [vocab, hidden] are the backbone's."""

    main_proj: Tensor
    main_norm: Tensor
    blocks: tuple[BlockWeights, ...]
    norm: Tensor
    markov_embed: Tensor
    markov_head: Tensor
    confidence: Tensor
    embed: Tensor
    head: Tensor


@dataclass(frozen=True, slots=True)
class Draft:
    """Greedy proposals for positions p + 2, p + 3, ...

    tokens: int64 [b]. logits: fp32 [b, vocab] after the Markov correction. confidence: raw
    logits fp32 [b].
    """

    tokens: Tensor
    logits: Tensor
    confidence: Tensor


def draft(
    taps: Tensor,
    position: int,
    next_id: int,
    w: DraftWeights,
    rope: RopeTables,
    config: ModelConfig,
    numerics: Numerics,
) -> Draft:
    """Propose what follows `next_id`, which sits at position + 1 (6.2).

    taps: [m, taps * hidden] of positions position - m + 1 .. position, m at most the window.
    """
    ids = torch.full((config.dspark_block_size,), config.dspark_noise_token_id)
    ids[0] = next_id
    stream = w.embed[ids][:, None, :].repeat(1, config.hc_mult, 1)
    pre = torch.zeros(ids.shape[0], config.hc_mult)
    pre[:, 0] = 1.0
    main_x = rms_norm(
        numerics.linear8(taps, w.main_proj), w.main_norm, config.rms_norm_eps, numerics
    )
    for weights in w.blocks:

        def attend(x: Tensor, weights: BlockWeights = weights) -> Tensor:
            return _attention(x, main_x, position, weights, rope, config, numerics)

        stream, pre = block(stream, pre, weights, attend, None, config, numerics)
    return _propose(hyper.read(stream, pre, numerics), next_id, w, config, numerics)


def _attention(
    x: Tensor,
    main_x: Tensor,
    position: int,
    weights: BlockWeights,
    rope: RopeTables,
    config: ModelConfig,
    numerics: Numerics,
) -> Tensor:
    """Block rows x [b, hidden] see the ring made of main_x [m, hidden] and each other (6.2, 3)."""
    w = weights.attention
    past = rope.at(torch.arange(position - main_x.shape[0] + 1, position + 1), compressed=False)
    here = rope.at(torch.arange(position + 1, position + 1 + x.shape[0]), compressed=False)
    qr = attention.low_rank_query(x, w, config, numerics)
    q = attention.queries(qr, w, here, config, numerics)
    ring = attention.window_keys(main_x, w, past, config, numerics)
    own = attention.window_keys(x, w, here, config, numerics)
    keys = torch.cat([ring, own]).expand(x.shape[0], -1, -1)
    seen = torch.ones(keys.shape[:2], dtype=torch.bool)
    o = attention.attend(q, keys, seen, w.sink, numerics)
    return attention.output(o, w, here, config, numerics)


def _propose(
    x: Tensor, next_id: int, w: DraftWeights, config: ModelConfig, numerics: Numerics
) -> Draft:
    """Head, Markov correction in order, confidence (6.2, 4 to 6): x [b, hidden]."""
    logits = rms_norm(x, w.norm, config.rms_norm_eps, numerics) @ w.head.T
    tokens, confidence, previous = [], [], next_id
    for i in range(x.shape[0]):
        markov = w.markov_embed[previous]
        logits[i] += w.markov_head @ markov
        confidence.append(w.confidence @ torch.cat([x[i], markov]))
        previous = int(logits[i].argmax())
        tokens.append(previous)
    return Draft(torch.tensor(tokens), logits, torch.stack(confidence))
