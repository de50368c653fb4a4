"""Random traffic over the toy model: every answer is that of the request alone, in both loops."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traffic import Schedule


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.booleans())
def test_every_answer_is_that_of_the_request_alone(seed: int, ahead: bool) -> None:
    count, differences = Schedule(seed, ahead).play()
    assert count >= 3
    assert differences == []


@pytest.mark.parametrize("seed", range(25))
def test_one_step_ahead_gives_every_request_the_same_events(seed: int) -> None:
    """Same requests at the same steps without disturbance: tokens, reasons and cuts of events."""
    plain, ahead = (Schedule(seed, loop, calm=True).streams() for loop in (False, True))
    assert plain == ahead
    assert plain
