"""A cache for tests that need a scheduler: 6 layers, a window and pages of 4 tokens."""

from __future__ import annotations

from deodar.cache.geometry import Geometry
from deodar.cache.manager import CacheManager
from deodar.cache.resume import EXACT, LayerPlan, Rules
from deodar.cache.snapshots import SnapshotStore
from deodar.scheduler.scheduler import Limits, Scheduler

PLAN = LayerPlan(num_layers=6, window_tokens=4, writers=((1, 2), (3, 1)))
ROOM = 3
GEOMETRY = Geometry(
    page_tokens=4,
    entry_bytes=2,
    index_key_bytes=1,
    source_ratios=(2, 1),
    window_tokens=4,
    ring_tokens=4 + ROOM,
    window_row_bytes=1,
    encoder_layers=3,
    ring_layers=6,
    unpaired_tokens=2 + ROOM,
    unpaired_row_bytes=0,
    history_tokens=0,
)


def make_cache(
    *,
    pages: int = 40,
    slots: int = 4,
    snapshots: int = 4,
    host: int = 0,
    stride: int = 8,
    rules: Rules = EXACT,
) -> CacheManager:
    """snapshots, host: how many full snapshots fit on the device and on the host."""
    store = SnapshotStore(
        full_bytes=10,
        encoder_bytes=5,
        device_budget_bytes=10 * snapshots,
        host_budget_bytes=10 * host,
    )
    return CacheManager(
        PLAN,
        GEOMETRY,
        store,
        total_pages=pages,
        total_slots=slots,
        stride_tokens=stride,
        rules=rules,
    )


def make_scheduler(
    *, slots: int, context: int, step_tokens: int, vocab_size: int, eos_token_id: int
) -> Scheduler:
    """A scheduler with pages for `slots` sequences of the whole context."""
    limits = Limits(
        context=context, step_tokens=step_tokens, vocab_size=vocab_size, eos_token_id=eos_token_id
    )
    return Scheduler(make_cache(pages=slots * GEOMETRY.pages_for(context), slots=slots), limits)
