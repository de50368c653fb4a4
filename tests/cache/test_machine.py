"""The state machine passes on the real code (see test_mistakes for what it finds)."""

from __future__ import annotations

from hypothesis import settings
from machine import CacheMachine

CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCache = CacheMachine.TestCase
