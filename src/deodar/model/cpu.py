"""The compiled CPU twin of the reference, in `kv` numerics (design D2): what generation runs on.

Called by the engine, by `deodar eval` and by benchmarks. One object holds the weights and the
state slots of all running sequences. What must hold: a row's bits depend on its own sequence only
(design D3), whatever else the step contains and however a prompt is cut.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from deodar.checkpoint import formats
from deodar.checkpoint.engram import EngramHash, engram_hash
from deodar.checkpoint.loader import Checkpoint
from deodar.config import ModelConfig
from deodar.errors import ConfigError
from deodar.kernels.cpu import layout as at
from deodar.kernels.cpu import stack
from deodar.kernels.cpu.engram import fetch
from deodar.kernels.cpu.hyper import COPIES
from deodar.kernels.cpu.layout import (
    Batch,
    Bytes,
    Floats,
    Longs,
    Scratch,
    Sizes,
    State,
    Work,
    assemble,
)
from deodar.kernels.cpu.matmul import padded
from deodar.model.cpu_weights import build_weights, entry_places
from deodar.types import StepPlan

SPLIT_ROWS = 32  # steps with at least so many rows use all threads


@dataclass(frozen=True, slots=True, kw_only=True)
class _EngramTable:
    hash: EngramHash
    weight: Bytes
    scale: Bytes


class CpuModel:
    """Weights, state slots and working memory of one model on the CPU.

    slots: sequences that can be held at once. context: positions per sequence. max_rows: tokens
    of one step over all its chunks. threads: used for steps of many rows; the result does not
    depend on it. Raises ConfigError for sizes that the kernels do not cover.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        slots: int = 8,
        context: int | None = None,
        max_rows: int = 512,
        threads: int = 1,
    ) -> None:
        config = checkpoint.config
        if config.hc_mult != COPIES:
            raise ConfigError(f"hc_mult is {config.hc_mult}, the CPU kernels need {COPIES}")
        self.config = config
        self.context = config.max_position_embeddings if context is None else context
        self.slots = slots
        self.max_rows = max_rows
        self.token_map = checkpoint.token_map()
        sizes = _sizes(config, max_rows)
        weights = build_weights(checkpoint, self.context)
        self._book = weights.book
        self._state = _state(config, sizes, slots, self.context)
        self._batch = Batch(*(np.zeros(max_rows, np.int64) for _ in Batch._fields))
        self._work = _work(config, sizes, weights.book, max_rows, self.context)
        self._machines = [
            assemble(
                sizes, weights, self._state, self._batch, self._work,
                _scratch(config, sizes, max_rows, self.context),
            )
            for _ in range(threads)
        ]  # fmt: skip
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None
        self._engram = [_engram_table(checkpoint, layer) for layer in config.engram_layer_ids]

    def run(self, plan: StepPlan) -> Floats:
        """Run a step; float32 [n, vocab]: logits of the last rows of the n chunks that sample."""
        tokens: list[int] = []
        slots: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        for chunk in plan.chunks:
            tokens += chunk.token_ids
            slots += [chunk.slot] * len(chunk.token_ids)
            positions += range(chunk.start, chunk.start + len(chunk.token_ids))
            if chunk.sampling is not None:
                wanted.append(len(tokens) - 1)
        return self.run_rows(tokens, slots, positions, wanted)

    def run_rows(
        self,
        tokens: Sequence[int],
        slots: Sequence[int],
        positions: Sequence[int],
        wanted: Sequence[int],
        *,
        hide_memory: bool = False,
    ) -> Floats:
        """Run rows (consecutive positions of a sequence in order); logits of rows `wanted`.

        Positions of one slot must follow what the slot has seen. hide_memory: attend to the
        window only, to measure what the compressed memory is worth.
        """
        assert len(tokens) <= self.max_rows
        assert max(positions) < self.context
        rows, batch = len(tokens), self._batch
        batch.tokens[:rows], batch.slots[:rows], batch.positions[:rows] = tokens, slots, positions
        self._state.compressed[slots, positions] = self.token_map[batch.tokens[:rows]]
        self._fetch_engram(rows)
        if self._pool is not None and rows >= SPLIT_ROWS:
            self._run_split(rows, not hide_memory)
        else:
            self._run_range(0, 0, rows, rows, not hide_memory, threading.Barrier(1))
        logits = np.empty((len(wanted), padded(self.config.vocab_size)), np.float32)
        stack.finish(self._machines[0], np.array(wanted, np.int64), logits)
        return logits[:, : self.config.vocab_size]

    def taps(self, slot: int, position: int) -> Floats:
        """Taps of the window that ends at `position`, oldest first: [n, taps * hidden] (3.2).

        Kept for the last `max_rows` positions of the slot.
        """
        ring = self._state.taps.shape[1]
        first = max(0, position + 1 - self.config.sliding_window)
        return self._state.taps[slot, np.arange(first, position + 1) % ring]

    def active_bytes(self, length: int) -> int:
        """Bytes that a decode row reads at a context of `length` tokens: weights, keys, entries."""
        config, book = self.config, self._book
        narrow = (
            config.hidden_size * (book[:, at.IN_WIDTH] + book[:, at.FFN_WIDTH]).sum()
            + config.q_lora_rank * book[:, at.QUERY_WIDTH].sum()
            + config.engram_columns * config.engram_head_dim * 5 * config.hidden_size
            * len(config.engram_layer_ids)
            + config.hidden_size * (padded(config.vocab_size) + 1)
        )  # fmt: skip
        group_out = config.num_attention_heads * config.head_dim * config.o_lora_rank
        out = group_out + config.o_groups * config.o_lora_rank * config.hidden_size
        experts = (3 * config.num_experts_per_tok + 1) * config.moe_intermediate_size
        narrow += config.num_hidden_layers * (out + experts * config.hidden_size)
        mixes = 2 * config.num_hidden_layers * COPIES * config.hidden_size * at.MIX_WIDTH
        keys = config.num_hidden_layers * min(length, config.sliding_window) * config.head_dim
        for layer in range(config.num_hidden_layers):
            if config.ratio(layer):
                entries = length // config.ratio(layer)
                keys += min(entries, config.index_topk) * config.head_dim
                if layer in config.index_source_layer_ids and entries > config.index_topk:
                    keys += entries * config.index_head_dim
        return int(2 * narrow + 4 * (mixes + keys))

    def _fetch_engram(self, rows: int) -> None:
        for number, table in enumerate(self._engram):
            numbers = table.hash
            fetch(
                self._machines[0], rows, number, numbers.multipliers, numbers.primes,
                numbers.offsets, numbers.heads, numbers.pad_id, table.weight, table.scale,
                formats.E4M3,
            )  # fmt: skip

    def _run_split(self, rows: int, use_memory: bool) -> None:
        """Ranges of rows, one thread each; they meet between the parts of a layer."""
        assert self._pool is not None
        count = len(self._machines)
        bounds = [rows * i // count for i in range(count + 1)]
        barrier = threading.Barrier(count)
        jobs = [
            self._pool.submit(
                self._run_range, i, bounds[i], bounds[i + 1], rows, use_memory, barrier
            )
            for i in range(1, count)
        ]
        try:
            self._run_range(0, bounds[0], bounds[1], rows, use_memory, barrier)
        finally:  # interrupted: no thread may still write when the next step begins
            wait(jobs)
        for job in jobs:
            job.result()

    def _run_range(
        self, thread: int, lo: int, hi: int, rows: int, use_memory: bool, barrier: threading.Barrier
    ) -> None:
        machine = self._machines[thread]
        try:
            stack.embed_rows(machine, lo, hi)
            for layer in range(self.config.num_hidden_layers):
                stack.prepare(machine, layer, lo, hi)
                barrier.wait()
                if self._book[layer, at.OWNS_MEMORY]:
                    if thread == 0:
                        stack.remember(machine, layer, 0, rows)
                    barrier.wait()
                stack.attend_rows(machine, layer, use_memory, lo, hi)
                stack.project(machine, layer, lo, hi)
                stack.experts(machine, layer, lo, hi)
                barrier.wait()  # the next layer lays its rows out with other widths
        except BaseException:
            barrier.abort()
            raise


def _sizes(config: ModelConfig, max_rows: int) -> Sizes:
    return Sizes(
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        head_dim=config.head_dim,
        q_lora=config.q_lora_rank,
        groups=config.o_groups,
        o_lora=config.o_lora_rank,
        window=config.sliding_window,
        ring=config.sliding_window + max_rows,
        index_heads=config.index_n_heads,
        index_dim=config.index_head_dim,
        index_topk=config.index_topk,
        candidate_blocks=config.candidate_topk_blocks,
        candidate_block=config.candidate_block_size,
        experts=config.n_routed_experts,
        chosen_experts=config.num_experts_per_tok,
        inner=config.moe_intermediate_size,
        sinkhorn=config.hc_sinkhorn_iters,
        engram_width=config.engram_columns * config.engram_head_dim,
        most_keys=padded(config.sliding_window + config.index_topk),
        eps=np.float32(config.rms_norm_eps),
        hc_eps=np.float32(config.hc_eps),
        limit=np.float32(config.swiglu_limit),
        routed_scale=np.float32(config.routed_scaling_factor),
        key_scale=np.float32(config.head_dim**-0.5),
        index_scale=np.float32((config.index_head_dim * config.index_n_heads) ** -0.5),
    )


def _state(config: ModelConfig, sizes: Sizes, slots: int, context: int) -> State:
    entries = entry_places(config, context)[-1]
    layers, dim = config.num_hidden_layers, config.head_dim
    taps = len(config.dspark_target_layer_ids) * config.hidden_size
    return State(
        window_keys=np.zeros((slots, layers, sizes.ring, dim), np.float32),
        entries=np.zeros((slots, entries, dim), np.float32),
        index_keys=np.zeros(
            (slots, entries // at.KEY_TILE, config.index_head_dim, at.KEY_TILE), np.float32
        ),
        unpaired=np.zeros((slots, layers, 2, dim), np.float32),
        compressed=np.zeros((slots, context), np.int64),
        taps=np.zeros((slots, sizes.ring, taps), np.float32),
    )


def _work(config: ModelConfig, sizes: Sizes, book: Longs, rows: int, context: int) -> Work:
    hidden, chosen = config.hidden_size, config.num_experts_per_tok
    blocks = -(-context // config.candidate_block_size)
    per_group = config.num_attention_heads // config.o_groups * config.head_dim

    def floats(*shape: int) -> Floats:
        return np.zeros(shape, np.float32)

    return Work(
        stream=floats(rows, COPIES, hidden),
        pre=floats(rows, COPIES),
        next_pre=floats(rows, COPIES),
        post=floats(rows, COPIES),
        comb=floats(rows, COPIES * COPIES),
        x=floats(rows, hidden),
        y=floats(rows, hidden),
        mixes=floats(rows, at.MIX_WIDTH),
        fused=floats(rows * int(book[:, at.IN_WIDTH].max())),
        ffn=floats(rows * int(book[:, at.FFN_WIDTH].max())),
        low=floats(rows, config.q_lora_rank),
        query=floats(rows * int(book[:, at.QUERY_WIDTH].max())),
        head_rows=floats(config.o_groups, rows, per_group),
        grouped=floats(rows, config.o_groups * config.o_lora_rank),
        chosen=np.zeros((rows, config.index_topk), np.int32),
        chosen_count=np.zeros(rows, np.int64),
        candidates=np.zeros((rows, blocks), np.uint8),
        picked=np.zeros((rows, chosen), np.int32),
        picked_weight=floats(rows, chosen),
        routed=floats(chosen, rows, hidden),
        engram=floats(len(config.engram_layer_ids), rows, sizes.engram_width),
        engram_out=floats(rows, (COPIES + 1) * hidden),
    )


def _scratch(config: ModelConfig, sizes: Sizes, rows: int, context: int) -> Scratch:
    entries = -(-context // at.KEY_TILE) * at.KEY_TILE
    keys = max(entries, config.n_routed_experts)
    heads, dim = config.num_attention_heads, config.head_dim
    inner = config.moe_intermediate_size

    def floats(*shape: int) -> Floats:
        return np.zeros(shape, np.float32)

    return Scratch(
        scores=floats(entries),
        order=np.zeros(keys, np.uint32),
        ids=np.zeros(keys, np.int32),
        dots=floats(config.index_n_heads * at.KEY_TILE),
        values=floats(max(sizes.most_keys * dim, entries)),
        turned=floats(dim * padded(heads)),
        key_scores=floats(sizes.most_keys * padded(heads)),
        shares=floats(heads * sizes.most_keys),
        head_out=floats(heads * dim),
        expert_rows=np.zeros(rows, np.int64),
        expert_places=np.zeros(rows, np.int64),
        expert_share=floats(rows),
        expert_in=floats(rows, config.hidden_size),
        expert_both=floats(rows, 2 * inner),
        expert_hidden=floats(rows, inner),
        expert_out=floats(rows, config.hidden_size),
    )


def _engram_table(checkpoint: Checkpoint, layer: int) -> _EngramTable:
    name = f"layers.{layer}.engram.embed."
    return _EngramTable(
        hash=engram_hash(checkpoint.config, layer),
        weight=checkpoint.raw(name + "weight").view(np.uint8),
        scale=checkpoint.raw(name + "scale").view(np.uint8),
    )
