"""An engine without numbers: every value is the name of the text it was computed from.

It runs what the cache manager orders - page copies, restores, chunks with their layer starts,
saves - on symbols. A row's output is its text's name if everything it reads is right for that text
and None otherwise, so one wrong page, ring row, pair or start shows in the answer. What has not
been written is None, as the gate's NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from deodar.cache.geometry import Geometry
from deodar.cache.lease import Lease
from deodar.cache.prefix import Salt
from deodar.cache.resume import LayerPlan
from deodar.types import SlotSave

Symbol = int | None
Ring = dict[int, tuple[int, Symbol]]


class Names:
    """One number for every text: the symbol of a token is that of the text up to it."""

    def __init__(self) -> None:
        self._names: dict[tuple[Salt, tuple[int, ...]], int] = {}

    def of(self, salt: Salt, keys: Sequence[int], position: int) -> int:
        text = (salt, tuple(keys[: position + 1]))
        return self._names.setdefault(text, len(self._names))


@dataclass
class Slot:
    rings: list[Ring]
    unpaired: dict[int, Ring]


@dataclass
class Stored:
    rings: list[Ring] = field(default_factory=list)
    unpaired: dict[int, Ring] = field(default_factory=dict)


class SymbolicEngine:
    def __init__(self, plan: LayerPlan, geometry: Geometry, pages: int, slots: int) -> None:
        self.plan, self.geometry, self.names = plan, geometry, Names()
        self.ratios = dict(plan.writers)
        self.pages: list[dict[int, dict[int, Symbol]]] = [
            {layer: {} for layer in self.ratios} for _ in range(pages)
        ]
        self.slots = [self._empty() for _ in range(slots)]
        self.snapshots: dict[int, Stored] = {}

    def _empty(self) -> Slot:
        return Slot([{} for _ in range(self.plan.num_layers)], {layer: {} for layer in self.ratios})

    def begin(self, lease: Lease, fresh: set[int]) -> None:
        """Poison new pages, run copies, restore or clear the slot."""
        old = {
            c.source: {s: dict(e) for s, e in self.pages[c.source].items()} for c in lease.copies
        }
        self.poison(fresh)
        for copy in lease.copies:
            for source, ratio in self.ratios.items():
                whole = copy.tokens // ratio
                entries = {j: v for j, v in old[copy.source][source].items() if j < whole}
                self.pages[copy.target][source] = entries
        slot = self._empty()
        if lease.restore is not None:
            stored = self.snapshots[lease.restore]
            slot.rings[: len(stored.rings)] = [dict(r) for r in stored.rings]
            slot.unpaired.update({s: dict(r) for s, r in stored.unpaired.items()})
        self.slots[lease.slot] = slot

    def poison(self, pages: set[int]) -> None:
        for page in pages:
            self.pages[page] = {layer: {} for layer in self.ratios}

    def save(self, save: SlotSave) -> None:
        """The last window of every ring the kind covers, unpaired rows of the last two tokens."""
        slot, p = self.slots[save.slot], save.position
        end = self.plan.num_layers if save.kind == "full" else self.plan.decoder_start
        window, ring = self.plan.window_tokens, self.geometry.ring_tokens
        rows = self.geometry.unpaired_tokens
        stored = Stored([_cut(slot.rings[la], p - window, p, ring) for la in range(end)])
        stored.unpaired = {s: _cut(r, p - 2, p, rows) for s, r in slot.unpaired.items() if s < end}
        self.snapshots[save.snapshot_id] = stored

    def run(
        self, lease: Lease, keys: Sequence[int], start: int, starts: tuple[int, ...]
    ) -> list[Symbol]:
        """Run the rows from `start` to the end of the text `keys`; returns the last layer's.

        Rows of the chunk are read from the chunk, older ones from the rings, which take the
        chunk's rows when the layer is done.
        """
        stop, slot = len(keys), self.slots[lease.slot]
        inputs: dict[int, Symbol] = {
            p: self.names.of(lease.salt, keys, p) for p in range(start, stop)
        }
        source: int | None = None
        for layer in range(self.plan.num_layers):
            if layer in self.ratios:
                source = layer
                self._write(lease, keys, layer, inputs)
            rows = range(starts[layer], stop)
            outputs = {p: self._row(lease, keys, layer, source, p, inputs) for p in rows}
            _store(slot.rings[layer], inputs, self.geometry.ring_tokens)
            inputs = outputs
        return [inputs[p] for p in sorted(inputs)]

    def _write(
        self, lease: Lease, keys: Sequence[int], layer: int, inputs: dict[int, Symbol]
    ) -> None:
        """Make the entries whose last token is in the chunk, except those of the hit."""
        ratio, unpaired = self.ratios[layer], self.slots[lease.slot].unpaired[layer]
        rows = self.geometry.unpaired_tokens
        for p, symbol in inputs.items():
            if p % ratio != ratio - 1 or p < lease.resume.hit_tokens:
                continue
            right = all(
                _seen(inputs, unpaired, rows, q) == self.names.of(lease.salt, keys, q)
                for q in range(p - ratio + 1, p + 1)
            )
            page, entry = self._entry(lease, p // ratio, ratio)
            self.pages[page][layer][entry] = symbol if right else None
        _store(unpaired, inputs, rows)

    def _entry(self, lease: Lease, index: int, ratio: int) -> tuple[int, int]:
        per_page = self.geometry.page_tokens // ratio
        return lease.pages[index // per_page], index % per_page

    def _row(
        self,
        lease: Lease,
        keys: Sequence[int],
        layer: int,
        source: int | None,
        p: int,
        inputs: dict[int, Symbol],
    ) -> Symbol:
        name, ring = self.names.of(lease.salt, keys, p), self.slots[lease.slot].rings[layer]
        ok = inputs.get(p) == name
        for q in range(max(0, p - self.plan.window_tokens + 1), p + 1):
            key = _seen(inputs, ring, self.geometry.ring_tokens, q)
            ok = ok and key == self.names.of(lease.salt, keys, q)
        if source is not None:
            ratio = self.ratios[source]
            for j in range((p + 1) // ratio):
                page, entry = self._entry(lease, j, ratio)
                want = self.names.of(lease.salt, keys, (j + 1) * ratio - 1)
                ok = ok and self.pages[page][source].get(entry) == want
        return name if ok else None


def _seen(inputs: dict[int, Symbol], ring: Ring, rows: int, position: int) -> Symbol:
    """A row of this chunk, or what the ring holds if it still is this position."""
    if position in inputs:
        return inputs[position]
    held, symbol = ring.get(position % rows, (-1, None))
    return symbol if held == position else None


def _store(ring: Ring, inputs: dict[int, Symbol], rows: int) -> None:
    ring.update({p % rows: (p, symbol) for p, symbol in inputs.items()})


def _cut(ring: Ring, start: int, stop: int, rows: int) -> Ring:
    """The rows start .. stop - 1 that are still in the ring."""
    kept = {q % rows: ring.get(q % rows, (-1, None)) for q in range(max(0, start), stop)}
    return {at: row for at, row in kept.items() if start <= row[0] < stop}
