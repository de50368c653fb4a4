"""Tensors of a checkpoint, dequantised, in the structures that the model computes with (2).

Called by `reference` once. Names are those of the released files.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deodar.checkpoint.loader import Checkpoint
from deodar.config import ModelConfig
from deodar.model.attention import AttentionWeights
from deodar.model.block import BlockWeights
from deodar.model.compressor import CompressorWeights
from deodar.model.draft import DraftWeights
from deodar.model.engram import EngramWeights
from deodar.model.hyper import HyperWeights
from deodar.model.indexer import IndexerWeights
from deodar.model.moe import ExpertWeights, MoeWeights


def tensor(checkpoint: Checkpoint, name: str) -> Tensor:
    """The logical fp32 tensor `name`, scales applied."""
    return torch.from_numpy(checkpoint.dense(name))


def backbone_block(checkpoint: Checkpoint, layer: int) -> BlockWeights:
    """All tensors of backbone layer `layer` except Engram."""
    config = checkpoint.config
    return _block(
        checkpoint,
        f"layers.{layer}",
        ratio=config.ratio(layer),
        kv_source=layer in config.kv_source_layer_ids,
        index_source=layer in config.index_source_layer_ids,
        moe=_moe(
            checkpoint,
            f"layers.{layer}.ffn",
            config.n_routed_experts,
            config.num_experts_per_tok,
        ),
    )


def engram_weights(checkpoint: Checkpoint, layer: int) -> EngramWeights:
    """Projection and gate weights of an Engram layer; its table is read by row."""
    prefix = f"layers.{layer}.engram"
    return EngramWeights(
        tensor(checkpoint, f"{prefix}.wkv.weight"),
        tensor(checkpoint, f"{prefix}.q_weight"),
        tensor(checkpoint, f"{prefix}.k_weight"),
    )


def draft_weights(checkpoint: Checkpoint, embed: Tensor, head: Tensor) -> DraftWeights:
    """The draft head; embed and head come from the backbone (2.5)."""
    config = checkpoint.config
    blocks = tuple(_draft_block(checkpoint, s) for s in range(config.num_nextn_predict_layers))
    last = f"mtp.{config.num_nextn_predict_layers - 1}"
    return DraftWeights(
        main_proj=tensor(checkpoint, "mtp.0.main_proj.weight"),
        main_norm=tensor(checkpoint, "mtp.0.main_norm.weight"),
        blocks=blocks,
        norm=tensor(checkpoint, f"{last}.norm.weight"),
        markov_embed=tensor(checkpoint, f"{last}.markov_head.embed.weight"),
        markov_head=tensor(checkpoint, f"{last}.markov_head.head.weight"),
        confidence=tensor(checkpoint, f"{last}.confidence_head.proj.weight")[0],
        embed=embed,
        head=head,
    )


def _draft_block(checkpoint: Checkpoint, s: int) -> BlockWeights:
    config = checkpoint.config
    experts = _moe(
        checkpoint,
        f"mtp.{s}.ffn",
        config.dspark_n_routed_experts,
        config.dspark_num_experts_per_tok,
    )
    return _block(checkpoint, f"mtp.{s}", ratio=0, kv_source=False, index_source=False, moe=experts)


def _block(
    checkpoint: Checkpoint,
    prefix: str,
    *,
    ratio: int,
    kv_source: bool,
    index_source: bool,
    moe: MoeWeights,
) -> BlockWeights:
    return BlockWeights(
        hc_attn=_hyper(checkpoint, f"{prefix}.hc_attn"),
        attn_norm=tensor(checkpoint, f"{prefix}.attn_norm.weight"),
        attention=_attention(checkpoint, f"{prefix}.attn"),
        hc_ffn=_hyper(checkpoint, f"{prefix}.hc_ffn"),
        ffn_norm=tensor(checkpoint, f"{prefix}.ffn_norm.weight"),
        moe=moe,
        compressor=_compressor(checkpoint, f"{prefix}.attn", ratio) if kv_source else None,
        indexer=_indexer(checkpoint, f"{prefix}.attn.indexer") if index_source else None,
    )


def _hyper(checkpoint: Checkpoint, prefix: str) -> HyperWeights:
    return HyperWeights(
        tensor(checkpoint, f"{prefix}_fn"),
        tensor(checkpoint, f"{prefix}_base"),
        tensor(checkpoint, f"{prefix}_scale"),
    )


def _attention(checkpoint: Checkpoint, prefix: str) -> AttentionWeights:
    return AttentionWeights(
        wq_a=tensor(checkpoint, f"{prefix}.wq_a.weight"),
        q_norm=tensor(checkpoint, f"{prefix}.q_norm.weight"),
        wq_b=tensor(checkpoint, f"{prefix}.wq_b.weight"),
        wkv=tensor(checkpoint, f"{prefix}.wkv.weight"),
        kv_norm=tensor(checkpoint, f"{prefix}.kv_norm.weight"),
        wo_a=tensor(checkpoint, f"{prefix}.wo_a.weight"),
        wo_b=tensor(checkpoint, f"{prefix}.wo_b.weight"),
        sink=tensor(checkpoint, f"{prefix}.attn_sink"),
    )


def _compressor(checkpoint: Checkpoint, prefix: str, ratio: int) -> CompressorWeights:
    gate = f"{prefix}.compressor.wgate.weight"
    return CompressorWeights(
        wkv=tensor(checkpoint, f"{prefix}.compressor.wkv.weight"),
        wgate=tensor(checkpoint, gate) if ratio == 2 else None,
        norm=tensor(checkpoint, f"{prefix}.compressor.norm.weight"),
        index_wk=tensor(checkpoint, f"{prefix}.indexer.wk.weight"),
        index_k_norm=tensor(checkpoint, f"{prefix}.indexer.k_norm.weight"),
    )


def _indexer(checkpoint: Checkpoint, prefix: str) -> IndexerWeights:
    return IndexerWeights(
        tensor(checkpoint, f"{prefix}.wq_b.weight"),
        tensor(checkpoint, f"{prefix}.weights_proj.weight"),
    )


def _moe(checkpoint: Checkpoint, prefix: str, experts: int, top_k: int) -> MoeWeights:
    config: ModelConfig = checkpoint.config
    return MoeWeights(
        gate=tensor(checkpoint, f"{prefix}.gate.weight"),
        bias=tensor(checkpoint, f"{prefix}.gate.bias"),
        bias_vl=tensor(checkpoint, f"{prefix}.gate.bias_vl"),
        experts=tuple(_expert(checkpoint, f"{prefix}.experts.{e}") for e in range(experts)),
        shared=_expert(checkpoint, f"{prefix}.shared_experts"),
        top_k=top_k,
        scale=config.routed_scaling_factor,
        limit=config.swiglu_limit,
    )


def _expert(checkpoint: Checkpoint, prefix: str) -> ExpertWeights:
    return ExpertWeights(
        tensor(checkpoint, f"{prefix}.w1.weight"),
        tensor(checkpoint, f"{prefix}.w2.weight"),
        tensor(checkpoint, f"{prefix}.w3.weight"),
    )
