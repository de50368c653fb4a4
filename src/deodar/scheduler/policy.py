"""How a step's rows are shared out. Pure functions over integers; called by the scheduler only."""

from __future__ import annotations

from collections.abc import Sequence


def share_rows(budget: int, wants: Sequence[int]) -> list[int]:
    """Rows for each of `wants`, the first in rank first; their sum is at most `budget`.

    Nobody gets more than an equal part while others want more: a long prompt takes what short ones
    leave, and a burst of short ones leaves the long one its part. With fewer rows than takers the
    first in rank get one each.
    """
    given = [0] * len(wants)
    takers = [i for i, want in enumerate(wants) if want > 0][: max(0, budget)]
    left = budget
    for done, i in enumerate(sorted(takers, key=lambda i: wants[i])):
        given[i] = min(wants[i], left // (len(takers) - done))
        left -= given[i]
    return given
