"""Plans as text: one JSON line each, to be broadcast, kept or run again.

Called by the engine when it keeps a log, and by whoever replays one. What must hold: a plan that
was written and read is equal to itself; it names all that its step needs but weights and state.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from deodar.types import StepPlan


def encode_plan(plan: StepPlan) -> bytes:
    """One line without its end."""
    return msgspec.json.encode(plan)


def decode_plan(line: bytes) -> StepPlan:
    """The plan of a line. Raises msgspec.ValidationError for anything else."""
    return msgspec.json.decode(line, type=StepPlan)


class PlanLog:
    """A file that plans are appended to; complete up to the last line if the process dies."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, plan: StepPlan) -> None:
        self._file.write(encode_plan(plan) + b"\n")


def read_plans(path: Path) -> Iterator[StepPlan]:
    """The plans of a log, in their order."""
    with path.open("rb") as lines:
        for line in lines:
            yield decode_plan(line)
