"""Pages, slots and snapshots of the CPU model as bytes, and the orders that move them.

Made and called by `deodar.model.cpu`; the kernels read and write the same arrays. What must hold:
the arrays have exactly the bytes that `Geometry` says (design D5), and an order touches what it
names and nothing else. In poison mode whatever may not be read is made void first - bytes 255 and
NaN, which no later rounding turns back into a number - so that a wrong read shows in the answer.

    page      entries [E, 288] and index keys [E * 68] of all sources; a source's keys lie turned
    slot      rings [layers + draft blocks, ring, 528], unpaired [tokens, sources, 2, d], history
    snapshot  rings [layers of its kind, window, 528], unpaired [2, ...], history [4]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deodar.cache.geometry import Geometry
from deodar.cache.pages import AccountingError
from deodar.checkpoint.engram import DEAD
from deodar.config import ModelConfig
from deodar.kernels.cpu.layout import Bytes, Floats, Longs, State
from deodar.types import Chunk, PageCopy, SlotRestore, SlotSave, SnapshotKind

VOID = 255
Shapes = dict[str, tuple[tuple[int, ...], type]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Window rows of positions position - window .. position - 1, oldest first, and small state."""

    kind: SnapshotKind
    position: int
    rings: Bytes
    unpaired: Floats
    history: Longs

    @property
    def nbytes(self) -> int:
        return self.rings.nbytes + self.unpaired.nbytes + self.history.nbytes

    def copied(self) -> Snapshot:
        parts = (self.rings.copy(), self.unpaired.copy(), self.history.copy())
        return Snapshot(self.kind, self.position, *parts)


def page_shapes(config: ModelConfig, pages: int) -> Shapes:
    """Shape and dtype of the arrays that hold `pages` pages."""
    g = Geometry.from_config(config)
    entries = sum(g.page_tokens // ratio for ratio in g.source_ratios)
    return {
        "entries": ((pages, entries, g.entry_bytes), np.uint8),
        "index_keys": ((pages, entries * g.index_key_bytes), np.uint8),
    }


def slot_shapes(config: ModelConfig, slots: int) -> Shapes:
    """Shape and dtype of the arrays that hold `slots` slots."""
    g = Geometry.from_config(config)
    pairing = sum(ratio > 1 for ratio in g.source_ratios)
    return {
        "rings": ((slots, g.ring_layers, g.ring_tokens, g.window_row_bytes), np.uint8),
        "unpaired": ((slots, g.unpaired_tokens, pairing, 2, config.head_dim), np.float32),
        "history": ((slots, g.history_tokens), np.int64),
    }


def shape_bytes(shapes: Shapes) -> int:
    """Bytes of arrays of these shapes, without making them."""
    return sum(int(np.prod(shape)) * np.dtype(kind).itemsize for shape, kind in shapes.values())


class Memory:
    """The arrays of all pages and slots, and the snapshots on the device and on the host.

    cut_windows: rows see no window key below a gap in what was run, as the bounded rules want it;
    with exact starts no such key is ever needed. Raises AccountingError for an order that cannot be
    carried out.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        pages: int,
        slots: int,
        context: int,
        tap_tokens: int,
        poison: bool,
        cut_windows: bool,
    ) -> None:
        self.geometry = g = Geometry.from_config(config)
        self._layers = config.num_hidden_layers
        self._poison, self._cut_windows = poison, cut_windows
        shapes = {**page_shapes(config, pages), **slot_shapes(config, slots)}
        arrays: dict[str, np.ndarray[Any, Any]] = {
            name: np.zeros(shape, kind) for name, (shape, kind) in shapes.items()
        }
        taps = len(config.dspark_target_layer_ids) * config.hidden_size
        self.state = State(
            **arrays,
            taps=np.zeros((slots, tap_tokens, taps), np.float32),
            keys_from=np.zeros((slots, self._layers), np.int64),
            tables=np.zeros((slots, g.pages_for(context)), np.int64),
        )
        self._ring_ends = np.zeros((slots, self._layers), np.int64)
        self._tables: list[tuple[int, ...]] = [()] * slots
        self.device: dict[int, Snapshot] = {}
        self.host: dict[int, Snapshot] = {}
        if poison:
            self.state.entries[:] = VOID
            self.state.index_keys[:] = VOID
        for slot in range(slots):
            self.reset(slot)

    # --- slots and snapshots ---------------------------------------------------------------------

    def reset(self, slot: int) -> None:
        """A slot gets a new owner, who has seen nothing."""
        self.state.history[slot] = DEAD
        self.state.keys_from[slot] = 0
        self._ring_ends[slot] = 0
        if self._poison:
            self.state.rings[slot] = VOID
            self.state.unpaired[slot] = np.nan

    def save(self, order: SlotSave) -> None:
        """Keep a slot as it is after token `position` - 1."""
        g, state, slot, position = self.geometry, self.state, order.slot, order.position
        layers = g.ring_layers if order.kind == "full" else g.encoder_layers
        rows = np.arange(position - g.window_tokens, position)
        rings = state.rings[slot, :layers][:, rows % g.ring_tokens]
        rings[:, rows < 0] = VOID
        pair = np.arange(position - 2, position) % g.unpaired_tokens
        ids = np.arange(position - self._kept_ids, position) % g.history_tokens
        self.device[order.snapshot_id] = Snapshot(
            order.kind, position, rings, state.unpaired[slot, pair], state.history[slot, ids]
        )

    def restore(self, order: SlotRestore) -> None:
        """Fill a slot; a full snapshot also serves the position before its own."""
        g, state, slot = self.geometry, self.state, order.slot
        kept = self.device.get(order.snapshot_id)
        if kept is None:
            raise AccountingError(f"snapshot {order.snapshot_id} is not on the device")
        if not 0 <= kept.position - order.position <= 1:
            raise AccountingError(
                f"snapshot {order.snapshot_id} is of position {kept.position},"
                f" it cannot serve position {order.position}"
            )
        self.reset(slot)
        first = max(0, kept.position - g.window_tokens)
        rows = np.arange(first, order.position)
        source = kept.rings[:, rows - kept.position + g.window_tokens]
        state.rings[slot, : len(kept.rings), rows % g.ring_tokens] = source.swapaxes(0, 1)
        state.keys_from[slot] = first if self._cut_windows else 0
        self._ring_ends[slot] = order.position
        for values, held in ((state.unpaired, kept.unpaired), (state.history, kept.history)):
            known = np.arange(max(0, kept.position - len(held)), order.position)
            values[slot, known % values.shape[1]] = held[known - kept.position + len(held)]

    def spill(self, snapshot_id: int) -> None:
        """Copy a snapshot to the host; the device keeps its own."""
        self.host[snapshot_id] = self.device[snapshot_id].copied()

    def load(self, snapshot_id: int) -> None:
        """Copy a snapshot back from the host."""
        self.device[snapshot_id] = self.host[snapshot_id].copied()

    def unload(self, snapshot_id: int) -> None:
        """Give up the copy on the device; the host has one."""
        del self.device[snapshot_id]

    def drop(self, snapshot_id: int) -> None:
        """Forget a snapshot in both places."""
        self.device.pop(snapshot_id, None)
        self.host.pop(snapshot_id, None)

    @property
    def _kept_ids(self) -> int:
        return self.geometry.history_tokens - (
            self.geometry.ring_tokens - self.geometry.window_tokens
        )

    # --- pages -----------------------------------------------------------------------------------

    def copy_page(self, order: PageCopy) -> None:
        """The entries that the first `tokens` tokens of a page complete, to another page."""
        if self._poison:
            self._void_page(order.target, 0)
        for entries, keys, ratio in self._sources():
            count = order.tokens // ratio
            entries[order.target, :count] = entries[order.source, :count]
            keys[order.target, :, :count] = keys[order.source, :, :count]

    def _sources(self) -> list[tuple[Bytes, Bytes, int]]:
        """Of each source: entries [pages, n, 288], index keys [pages, 68, n], ratio; views."""
        g, found, start = self.geometry, [], 0
        for ratio in g.source_ratios:
            count = g.page_tokens // ratio
            stop = start + count
            keys = self.state.index_keys[:, start * g.index_key_bytes : stop * g.index_key_bytes]
            turned = keys.reshape(-1, g.index_key_bytes, count)
            assert np.shares_memory(turned, self.state.index_keys)
            found.append((self.state.entries[:, start:stop], turned, ratio))
            start = stop
        return found

    def _void_page(self, page: int, tokens: int) -> None:
        for entries, keys, ratio in self._sources():
            entries[page, tokens // ratio :] = VOID
            keys[page, :, tokens // ratio :] = VOID

    # --- before a chunk --------------------------------------------------------------------------

    def begin_chunk(self, chunk: Chunk, pages: tuple[int, ...], ins: Longs) -> None:
        """Set the page table and follow the windows; ins: first input position of every layer."""
        slot = chunk.slot
        if self._tables[slot] != pages:
            self._tables[slot] = pages
            self.state.tables[slot, : len(pages)] = pages
        if self._cut_windows:
            gap = ins > self._ring_ends[slot]
            self.state.keys_from[slot, gap] = ins[gap]
            self._ring_ends[slot, ins < chunk.stop] = chunk.stop
        if self._poison:
            self._void_ahead(slot, chunk.start, pages, max(chunk.start, chunk.hit_tokens), ins)

    def _void_ahead(
        self, slot: int, start: int, pages: Sequence[int], known: int, ins: Longs
    ) -> None:
        """Void what the sequence holds beyond `start`, and beyond `known` tokens in its pages."""
        g, state = self.geometry, self.state
        for number in range(known // g.page_tokens, len(pages)):
            self._void_page(pages[number], max(0, known - number * g.page_tokens))
        room = np.arange(start, start + g.ring_tokens - g.window_tokens) % g.ring_tokens
        state.rings[slot][:, room] = VOID
        for layer in np.flatnonzero(ins > start):
            skipped = np.arange(max(start, ins[layer] - g.ring_tokens), ins[layer])
            state.rings[slot, layer, skipped % g.ring_tokens] = VOID
        later = np.arange(start, start + g.unpaired_tokens - 2) % g.unpaired_tokens
        state.unpaired[slot, later] = np.nan
        later = np.arange(start, start + g.history_tokens - self._kept_ids) % g.history_tokens
        state.history[slot, later] = DEAD
