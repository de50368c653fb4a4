"""The compiled CPU twin of the reference, in `kv` numerics (design D2): what generation runs on.

Called by the engine, by `deodar eval` and by benchmarks. One object holds the weights, and pages,
slots and snapshots of all running sequences (`cpu_memory`). What must hold: a row's bits depend on
its own sequence only (design D3), whatever else the step contains, however a prompt is cut,
wherever its pages lie and from whatever snapshot it goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from deodar.cache.geometry import Geometry
from deodar.checkpoint import formats
from deodar.checkpoint.engram import EngramHash, engram_hash
from deodar.checkpoint.loader import Checkpoint
from deodar.config import TILE, ModelConfig
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
    Work,
    assemble,
)
from deodar.kernels.cpu.matmul import padded
from deodar.model.cpu_memory import Memory
from deodar.model.cpu_weights import build_weights
from deodar.types import Chunk, StepPlan

SPLIT_ROWS = 32  # steps with at least so many rows use all threads
APART_ROWS = 4  # so do steps with at least so many rows whose chunks can be dealt out evenly


@dataclass(frozen=True, slots=True, kw_only=True)
class _EngramTable:
    hash: EngramHash
    weight: Bytes
    scale: Bytes


@dataclass(frozen=True, slots=True)
class _Piece:
    """The rows of chunk `number`, from row `row` of the step on."""

    number: int
    row: int
    chunk: Chunk

    def rows(self, position: int) -> int:
        return self.row + position - self.chunk.start


Range = tuple[int, int, int]  # rows first .. hi; those below lo are wanted for their keys only


class CpuModel:
    """Weights, memory and working memory of one model on the CPU.

    slots: sequences that can be held at once. context: positions per sequence. max_rows: tokens
    of one step over all its chunks. threads: used for steps of many rows; the result does not
    depend on it. pages: of the shared memory; None gives every slot pages of its own for the whole
    context, for callers that have no page tables. keep_taps: keep the inputs of the draft head's
    target layers for a window of positions. poison, cut_windows: see `Memory`. Raises ConfigError
    for sizes that the kernels do not cover.

    layer_rows: rows that were run, over all layers, since the start or since it was set to 0.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        slots: int = 8,
        context: int | None = None,
        max_rows: int = 512,
        threads: int = 1,
        pages: int | None = None,
        keep_taps: bool = False,
        poison: bool = False,
        cut_windows: bool = False,
    ) -> None:
        config = checkpoint.config
        if config.hc_mult != COPIES:
            raise ConfigError(f"hc_mult is {config.hc_mult}, the CPU kernels need {COPIES}")
        self.config = config
        self.context = config.max_position_embeddings if context is None else context
        self.slots = slots
        self.max_rows = max_rows
        self.layer_rows = 0
        self.token_map = checkpoint.token_map()
        per_slot = Geometry.from_config(config).pages_for(self.context)
        home = per_slot if pages is None else 0
        self._homes = [tuple(range(s * home, (s + 1) * home)) for s in range(slots)]
        self.memory = Memory(
            config,
            pages=slots * per_slot if pages is None else pages,
            slots=slots,
            context=self.context,
            tap_tokens=config.sliding_window + max_rows if keep_taps else 0,
            poison=poison,
            cut_windows=cut_windows,
        )
        self._poison = poison
        sizes = _sizes(config, self.memory.geometry)
        weights = build_weights(checkpoint, self.context)
        self._book = weights.book
        self._batch = _batch(config, slots, max_rows)
        self._work = _work(config, sizes, weights.book, max_rows, self.context)
        self._machines = [
            assemble(
                sizes, weights, self.memory.state, self._batch, self._work,
                _scratch(config, sizes, self.memory.geometry, max_rows, self.context),
            )
            for _ in range(threads)
        ]  # fmt: skip
        self._pool = ThreadPoolExecutor(threads - 1) if threads > 1 else None
        self._engram = [_engram_table(checkpoint, layer) for layer in config.engram_layer_ids]

    def run(self, plan: StepPlan) -> Floats:
        """Carry out a plan: its orders, its chunks, their saves.

        Returns float32 [n, vocab]: logits of the last rows of the n chunks that sample. Raises
        ValueError for a chunk that does not fit the model, before a row is run but after the
        orders.
        """
        memory = self.memory
        for snapshot_id in plan.unloads:
            memory.unload(snapshot_id)
        for save in plan.saves:
            memory.save(save)
        for snapshot_id in plan.spills:
            memory.spill(snapshot_id)
        for snapshot_id in plan.loads:
            memory.load(snapshot_id)
        for snapshot_id in plan.dropped:
            memory.drop(snapshot_id)
        for copy in plan.page_copies:
            memory.copy_page(copy)
        for restore in plan.restores:
            memory.restore(restore)
        for slot in plan.reset_slots:
            memory.reset(slot)
        ends = np.cumsum([len(chunk.token_ids) for chunk in plan.chunks], dtype=np.int64)
        wanted = [ends[i] - 1 for i, chunk in enumerate(plan.chunks) if chunk.sampling is not None]
        logits = self._run_chunks(plan.chunks, wanted, use_memory=True)
        for chunk in plan.chunks:
            if chunk.save is not None:
                memory.save(chunk.save)
        return logits

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
        window only, to measure what the compressed memory is worth. For models whose slots have
        pages of their own.
        """
        starts = [r for r in range(len(slots)) if r == 0 or slots[r] != slots[r - 1]]
        chunks = [
            Chunk(
                request_id="",
                slot=slots[lo],
                kind="prefill",
                start=positions[lo],
                token_ids=tuple(tokens[lo:hi]),
            )
            for lo, hi in zip(starts, [*starts[1:], len(slots)], strict=True)
        ]
        return self._run_chunks(chunks, wanted, use_memory=not hide_memory)

    def taps(self, slot: int, position: int) -> Floats:
        """Taps of the window that ends at `position`, oldest first: [n, taps * hidden] (3.2).

        Kept for the last `max_rows` positions of the slot.
        """
        taps = self.memory.state.taps
        assert taps.shape[1], "the model was made without keep_taps"
        first = max(0, position + 1 - self.config.sliding_window)
        return taps[slot, np.arange(first, position + 1) % taps.shape[1]]

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
        g = self.memory.geometry
        keys = config.num_hidden_layers * min(length, g.window_tokens) * g.window_row_bytes
        for layer in range(config.num_hidden_layers):
            if config.ratio(layer):
                entries = length // config.ratio(layer)
                keys += min(entries, config.index_topk) * g.entry_bytes
                if layer in config.index_source_layer_ids and entries > config.index_topk:
                    keys += entries * g.index_key_bytes
        return int(2 * narrow + 4 * mixes + keys)

    def _run_chunks(
        self, chunks: Sequence[Chunk], wanted: Sequence[int], *, use_memory: bool
    ) -> Floats:
        """Logits [len(wanted), vocab] of those rows of the step."""
        pieces = self._lay_out(chunks)
        rows = sum(len(chunk.token_ids) for chunk in chunks)
        logits = np.empty((len(wanted), padded(self.config.vocab_size)), np.float32)
        if rows:
            self._fetch_engram(rows)
            rows_wanted = np.array(wanted, np.int64)
            parts = self._parts(pieces, rows)
            if parts is not None:
                self._run_apart(parts, rows_wanted, logits, use_memory)
            else:
                ranges = self._ranges(pieces)
                if self._pool is not None and rows >= SPLIT_ROWS:
                    self._run_split(ranges, rows, use_memory)
                else:
                    self._run_thread(0, ranges, ranges, (0, rows), use_memory, None)
                stack.finish(self._machines[0], rows_wanted, 0, logits)
        return logits[:, : self.config.vocab_size]

    def _lay_out(self, chunks: Sequence[Chunk]) -> list[_Piece]:
        """Write the rows of all chunks into the batch, and tell the memory what they will hold."""
        pieces, count, batch = [], len(chunks), self._batch
        tokens: list[int] = []
        slots: list[int] = []
        positions: list[int] = []
        numbers: list[int] = []
        batch.in_starts[:, :count] = [chunk.start for chunk in chunks]
        batch.stops[:count] = [chunk.stop for chunk in chunks]
        batch.hits[:count] = [chunk.hit_tokens for chunk in chunks]
        for number, chunk in enumerate(chunks):
            pages = chunk.pages or self._homes[chunk.slot]
            self._check(chunk, pages, len(tokens))
            pieces.append(_Piece(number, len(tokens), chunk))
            tokens += chunk.token_ids
            slots += [chunk.slot] * (len(tokens) - len(slots))
            numbers += [number] * (len(tokens) - len(numbers))
            positions += range(chunk.start, chunk.stop)
            ins = batch.in_starts[:, number]
            if chunk.layer_starts is not None:
                ins[1:] = chunk.layer_starts[:-1]
            self.memory.begin_chunk(chunk, pages, ins)
        rows = len(tokens)
        batch.tokens[:rows], batch.slots[:rows] = tokens, slots
        batch.positions[:rows], batch.row_chunks[:rows] = positions, numbers
        batch.row_ids[:rows] = self.token_map[batch.tokens[:rows]]
        return pieces

    def _check(self, chunk: Chunk, pages: Sequence[int], row: int) -> None:
        """Raises ValueError for a chunk that the arrays cannot hold."""
        name = f"chunk {chunk.start}..{chunk.stop} of slot {chunk.slot}"
        if row + len(chunk.token_ids) > self.max_rows:
            raise ValueError(f"{name} exceeds the {self.max_rows} rows of a step")
        if chunk.stop > self.context:
            raise ValueError(f"{name} exceeds the context of {self.context}")
        if len(pages) < self.memory.geometry.pages_for(chunk.stop):
            raise ValueError(f"{name} has only {len(pages)} pages")
        if chunk.layer_starts is not None:
            steps = (chunk.start, *chunk.layer_starts, chunk.stop)
            if len(steps) != self.config.num_hidden_layers + 2 or list(steps) != sorted(steps):
                raise ValueError(f"{name} has the layer starts {chunk.layer_starts}")

    def _ranges(self, pieces: Sequence[_Piece]) -> list[list[Range]]:
        """The row ranges of every layer, neighbours joined; counts the layer-rows."""
        count = self.config.num_hidden_layers
        if all(piece.chunk.layer_starts is None for piece in pieces):
            lo, hi = pieces[0].row, pieces[-1].rows(pieces[-1].chunk.stop)
            self.layer_rows += count * (hi - lo)
            return [[(lo, lo, hi)]] * count
        layers: list[list[Range]] = []
        for layer in range(count):
            ranges: list[Range] = []
            for piece in pieces:
                starts, hi = piece.chunk.layer_starts, piece.rows(piece.chunk.stop)
                first = piece.rows(int(self._batch.in_starts[layer, piece.number]))
                lo = first if starts is None else piece.rows(starts[layer])
                self.layer_rows += hi - lo
                if ranges and first == lo == ranges[-1][2]:
                    ranges[-1] = (*ranges[-1][:2], hi)
                elif first < hi:
                    ranges.append((first, lo, hi))
            layers.append(ranges)
        return layers

    def _fetch_engram(self, rows: int) -> None:
        for number, table in enumerate(self._engram):
            numbers = table.hash
            fetch(
                self._machines[0], rows, number, numbers.multipliers, numbers.primes,
                numbers.offsets, numbers.heads, numbers.pad_id, table.weight, table.scale,
                formats.E4M3,
            )  # fmt: skip

    def _parts(self, pieces: Sequence[_Piece], rows: int) -> list[list[_Piece]] | None:
        """Chunks of a step for each thread, where they can be dealt out evenly and that helps."""
        count = len(self._machines)
        if count == 1 or rows < APART_ROWS:
            return None
        parts: list[list[_Piece]] = [[] for _ in range(count)]
        for piece in pieces:
            middle = 2 * piece.row + len(piece.chunk.token_ids)
            parts[middle * count // (2 * rows)].append(piece)
        most = max(sum(len(p.chunk.token_ids) for p in part) for part in parts)
        return parts if all(parts) and 4 * most * count <= 5 * rows else None

    def _run_apart(
        self, parts: list[list[_Piece]], wanted: Longs, logits: Floats, use_memory: bool
    ) -> None:
        """Threads with chunks of their own need not meet: rows of two chunks share nothing."""
        assert self._pool is not None

        def run(thread: int) -> None:
            part = parts[thread]
            lo, hi = part[0].row, part[-1].rows(part[-1].chunk.stop)
            self._run_thread(thread, ranges[thread], ranges[thread], (lo, hi), use_memory, None)
            begin, end = np.searchsorted(wanted, (lo, hi))
            stack.finish(self._machines[thread], wanted[begin:end], lo, logits[begin:end])

        ranges = [self._ranges(part) for part in parts]
        jobs = [self._pool.submit(run, i) for i in range(1, len(parts))]
        try:
            run(0)
        finally:  # interrupted: no thread may still write when the next step begins
            wait(jobs)
        for job in jobs:
            job.result()

    def _run_split(self, ranges: list[list[Range]], rows: int, use_memory: bool) -> None:
        """Shares of every layer's rows, one thread each; they meet between the parts of a layer."""
        assert self._pool is not None
        count = len(self._machines)
        barrier = threading.Barrier(count)
        shares = [[list(_share(r, i, count)) for r in ranges] for i in range(count)]
        jobs = [
            self._pool.submit(
                self._run_thread, i, shares[i], ranges, (0, rows), use_memory, barrier
            )
            for i in range(1, count)
        ]
        try:
            self._run_thread(0, shares[0], ranges, (0, rows), use_memory, barrier)
        finally:  # interrupted: no thread may still write when the next step begins
            wait(jobs)
        for job in jobs:
            job.result()

    def _run_thread(
        self,
        thread: int,
        share: list[list[Range]],
        ranges: list[list[Range]],
        rows: tuple[int, int],
        use_memory: bool,
        barrier: threading.Barrier | None,
    ) -> None:
        """Run the rows `share` of all layers; among threads that meet, the first one also embeds
        the rows first .. last + 1 of all of them, `rows`, and makes the entries of `ranges`."""
        machine = self._machines[thread]
        meet = barrier.wait if barrier is not None else _go_on
        try:
            leads = thread == 0 or barrier is None
            if leads:
                stack.embed_rows(machine, *rows)
            meet()
            for layer, mine in enumerate(share):
                for first, lo, hi in mine:
                    stack.prepare(machine, layer, first, lo, hi)
                meet()
                if self._book[layer, at.OWNS_MEMORY]:
                    if leads:
                        for first, _, hi in ranges[layer]:
                            stack.remember(machine, layer, first, hi)
                    meet()
                for _, lo, hi in mine:
                    stack.attend_rows(machine, layer, use_memory, lo, hi)
                meet()  # now the rings may be overwritten
                for first, lo, hi in mine:
                    stack.project(machine, layer, first, lo, hi)
                    stack.experts(machine, layer, lo, hi)
                    if self._poison:
                        self._work.stream[first:lo] = np.nan
                meet()  # the next layer makes other window keys
        except BaseException:
            if barrier is not None:
                barrier.abort()
            raise


def _go_on() -> None:
    """Where a thread alone has nobody to meet."""


def _share(ranges: Sequence[Range], thread: int, count: int) -> Iterator[Range]:
    """A thread's part of a layer's rows: equal numbers of rows to run, and of rows for keys."""
    for keys_only in (False, True):
        parts = [(first, lo) if keys_only else (lo, hi) for first, lo, hi in ranges]
        total = sum(hi - lo for lo, hi in parts)
        begin, end, seen = total * thread // count, total * (thread + 1) // count, 0
        for lo, hi in parts:
            a, b = max(lo, lo + begin - seen), min(hi, lo + end - seen)
            seen += hi - lo
            if a < b:
                yield (a, b, b) if keys_only else (a, a, b)


def _sizes(config: ModelConfig, geometry: Geometry) -> Sizes:
    return Sizes(
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        head_dim=config.head_dim,
        q_lora=config.q_lora_rank,
        groups=config.o_groups,
        o_lora=config.o_lora_rank,
        window=config.sliding_window,
        ring=geometry.ring_tokens,
        index_key_bytes=geometry.index_key_bytes,
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


def _batch(config: ModelConfig, slots: int, rows: int) -> Batch:
    def longs(*shape: int) -> Longs:
        return np.zeros(shape, np.int64)

    return Batch(
        row_chunks=longs(rows),
        tokens=longs(rows),
        row_ids=longs(rows),
        slots=longs(rows),
        positions=longs(rows),
        stops=longs(slots),
        hits=longs(slots),
        in_starts=longs(config.num_hidden_layers, slots),
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
        post=floats(rows, COPIES),
        comb=floats(rows, COPIES * COPIES),
        x=floats(rows, hidden),
        y=floats(rows, hidden),
        mixes=floats(rows, at.MIX_WIDTH),
        fused=floats(rows, int(book[:, at.IN_WIDTH].max())),
        ffn=floats(rows, int(book[:, at.FFN_WIDTH].max())),
        low=floats(rows, config.q_lora_rank),
        query=floats(rows, int(book[:, at.QUERY_WIDTH].max())),
        new_keys=np.zeros((rows, config.head_dim + config.head_dim // TILE), np.uint8),
        new_values=floats(rows * config.head_dim),
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


def _scratch(
    config: ModelConfig, sizes: Sizes, geometry: Geometry, rows: int, context: int
) -> Scratch:
    keys = max(context, config.n_routed_experts)
    page_keys = padded(geometry.page_tokens)
    heads, dim = config.num_attention_heads, config.head_dim
    inner = config.moe_intermediate_size

    def floats(*shape: int) -> Floats:
        return np.zeros(shape, np.float32)

    return Scratch(
        scores=floats(at.GROUP, context),
        order=np.zeros(keys, np.uint32),
        ids=np.zeros(keys, np.int32),
        tile=floats(config.index_head_dim * page_keys),
        dots=floats(config.index_n_heads * page_keys),
        latent=floats(2 * dim),
        values=floats(max(sizes.most_keys * dim, context)),
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
