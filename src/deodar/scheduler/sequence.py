"""The scheduler's record of one request. Private to this room."""

from __future__ import annotations

from dataclasses import dataclass, field

from deodar.cache.lease import Lease, Parked
from deodar.types import OPEN_TOKEN, GenerateRequest, Usage


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """A request on its way.

    0 ........ computed ........ planned ........ total
    |  committed  |  in flight     |  to be planned: prompt, then known and open tokens  |

    total: prompt, committed output and `open_tokens`, those that steps in flight will draw. room:
    the most tokens of the answer. number: order of arrival. epoch: grows whenever rows in flight
    become void, so that their results are not taken. wide_chunks: chunks in flight after which the
    slot cannot be saved as it was before them. Waiting without a lease; running with one.
    """

    request: GenerateRequest
    prompt_tokens: int
    room: int
    number: int
    lease: Lease | None = None
    parked: Parked | None = None
    pages: tuple[int, ...] = ()
    output_ids: list[int] = field(default_factory=list)
    planned_tokens: int = 0
    open_tokens: int = 0
    wide_chunks: int = 0
    epoch: int = 0
    preemptions: int = 0
    broken_steps: int = 0
    cached_tokens: int | None = None
    replayed_tokens: int = 0
    recomputed_tokens: int = 0
    scheduled: float | None = None

    @property
    def rank(self) -> tuple[int, float, int]:
        """Who comes first among running sequences."""
        return (self.request.priority, self.request.arrival, self.number)

    @property
    def queue_rank(self) -> tuple[int, bool, float, int]:
        """Who comes first among waiting ones: within a priority, those that were preempted."""
        first = self.preemptions == 0
        return (self.request.priority, first, self.request.arrival, self.number)

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + len(self.output_ids) + self.open_tokens

    @property
    def needed_tokens(self) -> int:
        """Tokens of state that this sequence may come to hold."""
        return self.prompt_tokens + self.room

    @property
    def pending_rows(self) -> int:
        """Rows that can be planned now; none when the last token of the answer is under way."""
        answer = len(self.output_ids) + self.open_tokens
        return self.prompt_tokens + answer - self.planned_tokens if answer < self.room else 0

    def token_ids(self, start: int, stop: int) -> tuple[int, ...]:
        """The tokens at positions start .. stop - 1, all of the prompt or all of the answer."""
        at = self.prompt_tokens
        if start < at:
            return self.request.prompt_ids[start:stop]
        known = tuple(self.output_ids[start - at : stop - at])
        return known + (OPEN_TOKEN,) * (stop - start - len(known))

    def void_flights(self, computed_tokens: int) -> None:
        """Plan again from `computed_tokens`; results of steps in flight are not taken."""
        self.epoch += 1
        self.planned_tokens = computed_tokens
        self.open_tokens = self.wide_chunks = 0

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=len(self.output_ids),
            cached_tokens=self.cached_tokens or 0,
            replayed_tokens=self.replayed_tokens,
            recomputed_tokens=self.recomputed_tokens,
            preemptions=self.preemptions,
        )
