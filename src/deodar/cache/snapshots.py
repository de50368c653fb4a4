"""Snapshots of window rings: ids, bytes and where the bytes are.

Called by the cache manager; the engine moves the bytes and reports back. Pure accounting. What must
hold: bytes on the device and on the host never exceed their budgets; a snapshot that is pinned or
being copied keeps the bytes that are read.

              next_spill        finish ok
    device ------------> spilling ------> both --- device room is wanted ---> host
      ^                      |              ^                                   |
      |                 finish failed       |  finish ok                        | start_load
      +----------------------+              +-------------- loading <-----------+
                                                               | finish failed: dropped
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from deodar.cache.pages import AccountingError
from deodar.types import SnapshotKind

Place = Literal["device", "spilling", "both", "host", "loading"]
_ON_DEVICE = ("device", "spilling", "both", "loading")
_ON_HOST = ("spilling", "both", "host", "loading")


@dataclass(slots=True)
class _Entry:
    kind: SnapshotKind
    place: Place = "device"
    pins: int = 0
    doomed: bool = False

    @property
    def in_use(self) -> bool:
        return self.pins > 0 or self.place in ("spilling", "loading")


class SnapshotStore:
    """Snapshots under two byte budgets, least recently used first out."""

    def __init__(
        self,
        *,
        full_bytes: int,
        encoder_bytes: int,
        device_budget_bytes: int,
        host_budget_bytes: int = 0,
    ) -> None:
        self._bytes: dict[SnapshotKind, int] = {"full": full_bytes, "encoder": encoder_bytes}
        self.device_budget_bytes = device_budget_bytes
        self.host_budget_bytes = host_budget_bytes
        self.device_bytes = 0
        self.host_bytes = 0
        self.on_dropped: Callable[[int], None] = lambda snapshot_id: None
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._unloaded: list[int] = []
        self._next_id = 0

    def __len__(self) -> int:
        """How many take room, those that are about to go included."""
        return len(self._entries)

    def ids(self) -> set[int]:
        """All snapshots but those that go as soon as a copy or a reader is done."""
        return {snapshot_id for snapshot_id, entry in self._entries.items() if not entry.doomed}

    def place(self, snapshot_id: int) -> Place:
        return self._entries[snapshot_id].place

    def on_device(self, snapshot_id: int) -> bool:
        """True if a slot can be restored from it now."""
        return self._entries[snapshot_id].place in ("device", "spilling", "both")

    def add(self, kind: SnapshotKind) -> int | None:
        """Room on the device for a new snapshot, pinned once; None when pinned ones fill it."""
        if not self._make_device_room(self._bytes[kind]):
            return None
        snapshot_id = self._next_id
        self._next_id += 1
        self._entries[snapshot_id] = _Entry(kind, pins=1)
        self.device_bytes += self._bytes[kind]
        return snapshot_id

    def pin(self, snapshot_id: int) -> None:
        """Keep it where it is, and make it the most recently used."""
        self._entries[snapshot_id].pins += 1
        self._entries.move_to_end(snapshot_id)

    def unpin(self, snapshot_id: int) -> None:
        entry = self._entries[snapshot_id]
        if entry.pins == 0:
            raise AccountingError(f"snapshot {snapshot_id} is not pinned")
        entry.pins -= 1
        if entry.doomed:
            self.discard(snapshot_id)

    def discard(self, snapshot_id: int) -> None:
        """Forget it and both copies, or as soon as nobody reads or copies it."""
        entry = self._entries[snapshot_id]
        entry.doomed = True
        if entry.in_use:
            return
        if entry.place in _ON_DEVICE:
            self.device_bytes -= self._bytes[entry.kind]
        if entry.place in _ON_HOST:
            self.host_bytes -= self._bytes[entry.kind]
        del self._entries[snapshot_id]
        self.on_dropped(snapshot_id)

    def could_hold(self, kind: SnapshotKind) -> bool:
        """False if even an empty device budget is too small."""
        return self._bytes[kind] <= self.device_budget_bytes

    # --- host spill ------------------------------------------------------------------------------

    def next_spill(self) -> int | None:
        """Begin to copy the oldest unpinned device-only snapshot to the host, if it has room."""
        for snapshot_id, entry in self._entries.items():
            if entry.place == "device" and not entry.pins:
                if not self._make_host_room(self._bytes[entry.kind], snapshot_id):
                    return None
                entry.place = "spilling"
                self.host_bytes += self._bytes[entry.kind]
                return snapshot_id
        return None

    def wanted_spills(self) -> tuple[int, ...]:
        """Begin to copy one more snapshot to the host when the device budget is half used."""
        if not self.host_budget_bytes or 2 * self.device_bytes < self.device_budget_bytes:
            return ()
        snapshot_id = self.next_spill()
        return () if snapshot_id is None else (snapshot_id,)

    def take_unloaded(self) -> tuple[int, ...]:
        """Snapshots that left the device since the last call, and are kept on the host."""
        unloaded, self._unloaded = tuple(self._unloaded), []
        return unloaded

    def start_load(self, snapshot_id: int) -> bool:
        """Begin to copy a snapshot back to the device; False while there is no room for it."""
        entry = self._entries[snapshot_id]
        if entry.place != "host":
            raise AccountingError(f"snapshot {snapshot_id} is {entry.place}, not on the host only")
        entry.pins += 1
        room = self._make_device_room(self._bytes[entry.kind])
        entry.pins -= 1
        if room:
            entry.place = "loading"
            self.device_bytes += self._bytes[entry.kind]
            self._entries.move_to_end(snapshot_id)
        return room

    def finish(self, snapshot_id: int, *, ok: bool) -> None:
        """A copy ended. A failed spill leaves the device copy; a failed load drops the snapshot,
        so that a damaged one is not loaded again."""
        entry = self._entries[snapshot_id]
        if entry.place not in ("spilling", "loading"):
            raise AccountingError(f"snapshot {snapshot_id} is {entry.place}, no copy is under way")
        if not ok and entry.place == "spilling":
            entry.place = "device"
            self.host_bytes -= self._bytes[entry.kind]
        else:
            entry.doomed |= not ok
            entry.place = "both"
        if entry.doomed:
            self.discard(snapshot_id)

    # --- room ------------------------------------------------------------------------------------

    def _make_device_room(self, wanted_bytes: int) -> bool:
        """Free device bytes, oldest first; what also lies on the host stays there."""
        if wanted_bytes > self.device_budget_bytes - self._device_bytes_in_use():
            return False
        for snapshot_id, entry in list(self._entries.items()):
            if self.device_budget_bytes - self.device_bytes >= wanted_bytes:
                break
            if entry.pins:
                continue
            if entry.place == "both":
                entry.place = "host"
                self._unloaded.append(snapshot_id)
                self.device_bytes -= self._bytes[entry.kind]
            elif entry.place == "device":
                self.discard(snapshot_id)
        return True

    def _device_bytes_in_use(self) -> int:
        return sum(
            self._bytes[e.kind]
            for e in self._entries.values()
            if e.in_use and e.place in _ON_DEVICE
        )

    def _make_host_room(self, wanted_bytes: int, keep: int) -> bool:
        """Free host bytes of older snapshots that lie on the host only."""
        for snapshot_id, entry in list(self._entries.items()):
            if self.host_budget_bytes - self.host_bytes >= wanted_bytes or snapshot_id == keep:
                break
            if entry.place == "host" and not entry.pins:
                self.discard(snapshot_id)
        return self.host_budget_bytes - self.host_bytes >= wanted_bytes

    def check(self) -> None:
        """Recount the bytes. Raises AccountingError with the first contradiction."""
        for name, places, counted, budget in (
            ("device", _ON_DEVICE, self.device_bytes, self.device_budget_bytes),
            ("host", _ON_HOST, self.host_bytes, self.host_budget_bytes),
        ):
            real = sum(self._bytes[e.kind] for e in self._entries.values() if e.place in places)
            if real != counted or real > budget:
                raise AccountingError(f"{name}: {real} bytes, counted {counted}, budget {budget}")
