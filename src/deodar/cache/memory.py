"""How many bytes the cache takes: a closed formula over the geometry.

Called by the engine's options and by `deodar plan`. What must hold: the pools that are allocated
have exactly these bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from deodar.cache.geometry import Geometry
from deodar.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Pages, slots and snapshot budgets of one rank."""

    geometry: Geometry
    pages: int
    slots: int
    snapshot_bytes: int
    host_bytes: int

    @property
    def page_pool_bytes(self) -> int:
        return self.pages * self.geometry.page_bytes

    @property
    def slot_pool_bytes(self) -> int:
        return self.slots * self.geometry.slot_bytes

    @property
    def device_bytes(self) -> int:
        """Everything of the cache that lies on the device."""
        return self.page_pool_bytes + self.slot_pool_bytes + self.snapshot_bytes

    @property
    def pool_tokens(self) -> int:
        return self.pages * self.geometry.page_tokens


def plan_memory(
    geometry: Geometry, *, sequences: int, pool_tokens: int, snapshot_bytes: int, host_bytes: int
) -> MemoryPlan:
    """The plan for these sizes. Raises ConfigError for a pool without a page."""
    pages = pool_tokens // geometry.page_tokens
    if pages < 1:
        raise ConfigError(
            f"the pool has {pool_tokens} tokens, one page needs {geometry.page_tokens}"
        )
    for name, value in (("snapshot_bytes", snapshot_bytes), ("host_bytes", host_bytes)):
        if value < 0:
            raise ConfigError(f"{name} is {value}, it must be at least 0")
    return MemoryPlan(
        geometry=geometry,
        pages=pages,
        slots=sequences,
        snapshot_bytes=snapshot_bytes,
        host_bytes=host_bytes,
    )
