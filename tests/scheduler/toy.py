"""A model without numbers for scheduler and loop: every value is the name of its text.

`ToyRunner` carries out plans with the symbols of tests/cache/symbolic.py. Where everything a row
reads is right, the logits of the row choose a token that is a function of the text; where anything
is wrong or void they choose another one, so that a mistake shows in an answer.
"""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import cast

import numpy as np
from cache.symbolic import SymbolicEngine
from numpy.typing import NDArray
from small_cache import GEOMETRY, PLAN

from deodar.cache.lease import Lease
from deodar.types import Chunk, GenerateRequest, StepPlan

VOCAB, EOS = 8, 1


def next_token(text: tuple[int, ...]) -> int:
    """What the model says after a text; now and then the end token."""
    digest = hashlib.blake2s(repr(text).encode(), digest_size=2).digest()
    return EOS if digest[0] < 16 else 2 + digest[1] % (VOCAB - 2)


class ToyRunner:
    """Runs plans on symbols, and counts the layer-rows of prompts by request."""

    def __init__(self, pages: int, slots: int) -> None:
        self.engine = SymbolicEngine(PLAN, GEOMETRY, pages, slots)
        self.host: dict[int, object] = {}
        self.texts: dict[str, tuple[str, list[int]]] = {}
        self.layer_rows: dict[str, int] = {}
        self._new: set[int] = set()

    def know(self, request: GenerateRequest) -> None:
        """The names of texts need the whole text; a chunk brings only its own tokens."""
        self.texts[request.request_id] = (request.cache_salt, list(request.prompt_ids))

    def run(self, plan: StepPlan) -> NDArray[np.float32]:
        self._carry_out(plan)
        logits = []
        for chunk in plan.chunks:
            symbol, text, salt = self._run(chunk)
            if chunk.save is not None:
                self.engine.save(chunk.save)
            if chunk.sampling is not None:
                right = symbol == self.engine.names.of(salt, text, len(text) - 1)
                row = np.zeros(VOCAB, np.float32)
                row[next_token(text) if right else 0] = 60.0
                logits.append(row)
        return np.array(logits, np.float32).reshape(-1, VOCAB)

    def _carry_out(self, plan: StepPlan) -> None:
        engine = self.engine
        for snapshot_id in plan.unloads:
            engine.snapshots.pop(snapshot_id)
        for save in plan.saves:
            engine.save(save)
        for snapshot_id in plan.spills:
            self.host[snapshot_id] = engine.snapshots[snapshot_id]
        for snapshot_id in plan.loads:
            engine.snapshots[snapshot_id] = self.host[snapshot_id]  # type: ignore[assignment]
        for snapshot_id in plan.dropped:
            engine.snapshots.pop(snapshot_id, None)
            self.host.pop(snapshot_id, None)
        for copy in plan.page_copies:
            old = {s: dict(e) for s, e in engine.pages[copy.source].items()}
            engine.poison({copy.target})
            for source, ratio in engine.ratios.items():
                kept = {j: v for j, v in old[source].items() if j < copy.tokens // ratio}
                engine.pages[copy.target][source] = kept
        for restore in plan.restores:
            stored = engine.snapshots[restore.snapshot_id]
            slot = engine.slots[restore.slot] = engine._empty()
            slot.rings[: len(stored.rings)] = [dict(ring) for ring in stored.rings]
            slot.unpaired.update({s: dict(ring) for s, ring in stored.unpaired.items()})
        for number in plan.reset_slots:
            engine.slots[number] = engine._empty()
        self._new |= {r.slot for r in plan.restores} | set(plan.reset_slots)

    def _run(self, chunk: Chunk) -> tuple[int | None, tuple[int, ...], str]:
        """The symbol of the last row, and the text up to it."""
        assert 0 <= min(chunk.token_ids) < VOCAB, "an open token was not filled in"
        salt, text = self.texts[chunk.request_id]
        text[chunk.start : chunk.stop] = chunk.token_ids
        keys = tuple(text[: chunk.stop])
        if chunk.slot in self._new:
            known = max(chunk.hit_tokens, chunk.start)
            self.engine.poison(set(chunk.pages[GEOMETRY.pages_for(known) :]))
            self._new.remove(chunk.slot)
        starts = chunk.layer_starts or (chunk.start,) * PLAN.num_layers
        if chunk.kind == "prefill":
            rows = sum(chunk.stop - start for start in starts)
            self.layer_rows[chunk.request_id] = self.layer_rows.get(chunk.request_id, 0) + rows
        lease = SimpleNamespace(
            salt=salt,
            slot=chunk.slot,
            pages=list(chunk.pages),
            resume=SimpleNamespace(hit_tokens=chunk.hit_tokens),
        )
        out = self.engine.run(cast(Lease, lease), keys, chunk.start, starts)
        return (out[-1] if out else None), keys, salt


def answer_alone(request: GenerateRequest, context: int) -> tuple[int, ...]:
    """The answer of the model to a request, from its definition."""
    text, most = list(request.prompt_ids), context - len(request.prompt_ids)
    most = min(most, request.sampling.max_tokens or most)
    answer: list[int] = []
    while len(answer) < most:
        answer.append(next_token(tuple(text)))
        text.append(answer[-1])
        if answer[-1] == EOS or answer[-1] in request.sampling.stop_token_ids:
            break
    return tuple(answer)
