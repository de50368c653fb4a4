"""The scheduler's record of one request. Private to this room."""

from __future__ import annotations

from dataclasses import dataclass, field

from deodar.types import GenerateRequest, Usage


@dataclass(slots=True, kw_only=True)
class Sequence:
    """A request on its way. num_computed: tokens whose state the slot holds.

    0 ........ num_computed ........ prompt ........ prompt + output_ids
    |  in the slot   |  to be run: prefill, then the newest output token  |
    """

    request: GenerateRequest
    room: int
    slot: int = -1
    num_computed: int = 0
    scheduled: float | None = None
    output_ids: list[int] = field(default_factory=list)

    @property
    def prompt_left(self) -> int:
        return len(self.request.prompt_ids) - self.num_computed

    @property
    def pending_ids(self) -> tuple[int, ...]:
        """Generated tokens whose rows have not been run."""
        return tuple(self.output_ids[self.num_computed - len(self.request.prompt_ids) :])

    @property
    def reserved_tokens(self) -> int:
        """Tokens of state that this sequence may come to hold."""
        return len(self.request.prompt_ids) + self.room

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=len(self.request.prompt_ids), completion_tokens=len(self.output_ids)
        )
