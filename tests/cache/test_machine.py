"""The state machine passes on the real code (see test_mistakes for what it finds)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from machine import GEOMETRY, LONGEST_PROMPT, CacheMachine

from deodar.cache.resume import LayerPlan

BUDGET = settings(max_examples=40, stateful_step_count=40, deadline=None)


class OddMachine(CacheMachine):
    """Three writers, the first in layer 0, pages shorter than the window, an odd window."""

    plan = LayerPlan(num_layers=5, window_tokens=5, writers=((0, 2), (2, 2), (3, 1)))
    geometry = replace(
        GEOMETRY, page_tokens=4, window_tokens=5, ring_tokens=8, source_ratios=(2, 2, 1)
    )


class TightMachine(CacheMachine):
    """The longest prompt just fits into an empty cache."""

    pages = -(-LONGEST_PROMPT // GEOMETRY.page_tokens)


class DeepMachine(CacheMachine):
    """A short window under many layers, the last writer of ratio 2."""

    plan = LayerPlan(num_layers=9, window_tokens=2, writers=((2, 2), (6, 2)))
    pages = 24
    geometry = replace(
        GEOMETRY, page_tokens=2, window_tokens=2, ring_tokens=5, source_ratios=(2, 2)
    )


for machine in (CacheMachine, OddMachine, TightMachine, DeepMachine):
    machine.TestCase.settings = BUDGET
TestCache = CacheMachine.TestCase
TestOdd = OddMachine.TestCase
TestTight = TightMachine.TestCase
TestDeep = DeepMachine.TestCase
