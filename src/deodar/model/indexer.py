"""Indexer (3.8): which compressed entries a query may attend to.

Called by `block` for the layers in index_source_layer_ids. Scores are fp32 (7h), ties go to the
lowest id (7i). The candidate source also publishes blocks of entries; later index sources choose
inside them only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from deodar.config import ModelConfig
from deodar.model.layers import lowest_id_top_k
from deodar.model.numerics import Numerics
from deodar.model.rope import rotate


@dataclass(frozen=True, slots=True)
class IndexerWeights:
    """wq_b [index heads * index dim, q_lora], weights_proj [index heads, hidden]."""

    wq_b: Tensor
    weights_proj: Tensor


def visible(positions: Tensor, entries: int, ratio: int) -> Tensor:
    """bool [n, entries]: entry j is visible to position p if j < floor((p + 1) / ratio)."""
    return torch.arange(entries, device=positions.device) < ((positions + 1) // ratio)[:, None]


def scores(
    x: Tensor,
    qr: Tensor,
    keys: Tensor,
    w: IndexerWeights,
    rotation: Tensor,
    config: ModelConfig,
    numerics: Numerics,
) -> Tensor:
    """score_j = sum over heads of relu(iq_h . ik_j) w_h: x [n, hidden], keys [m, d] -> [n, m]."""
    heads, dim = config.index_n_heads, config.index_head_dim
    iq = rotate(numerics.linear8(qr, w.wq_b).unflatten(-1, (heads, dim)), rotation, numerics)
    iq = numerics.index_query(iq)
    weight = numerics.linear16(x, w.weights_proj) * (dim**-0.5 * heads**-0.5)
    return (weight[:, None, :] @ (iq @ keys.T).relu()).squeeze(1)


def candidate_blocks(score: Tensor, seen: Tensor, config: ModelConfig) -> Tensor:
    """Blocks kept for later choices: score and seen [n, m] -> ids [n, blocks], padded with -1.

    A block counts by its best visible entry; the newest visible block is always kept.
    """
    size, (n, m) = config.candidate_block_size, score.shape
    blocks = -(-m // size)
    padded = score.new_full((n, blocks * size), -torch.inf)
    padded[:, :m] = score.masked_fill(~seen, -torch.inf)
    best = padded.unflatten(-1, (blocks, size)).amax(dim=-1)
    count = seen.sum(dim=-1, keepdim=True)
    newest = torch.arange(blocks, device=score.device) == (count - 1).div(
        size, rounding_mode="floor"
    )
    return lowest_id_top_k(best.masked_fill(newest, torch.inf), config.candidate_topk_blocks)


def inside(blocks: Tensor, entries: int, config: ModelConfig) -> Tensor:
    """bool [n, entries]: does the entry lie in one of the blocks [n, k] of its row?"""
    total = -(-entries // config.candidate_block_size)
    kept = torch.zeros(blocks.shape[0], total + 1, dtype=torch.bool, device=blocks.device)
    kept.scatter_(1, blocks.where(blocks >= 0, total), True)
    return kept[:, :total].repeat_interleave(config.candidate_block_size, dim=1)[:, :entries]


def choose(score: Tensor, allowed: Tensor, config: ModelConfig) -> Tensor:
    """The index_topk best allowed entries of each row, ascending ids, padded with -1."""
    return lowest_id_top_k(score.masked_fill(~allowed, -torch.inf), config.index_topk)
