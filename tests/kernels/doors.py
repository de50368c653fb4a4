"""Lets a test call a kernel that only other kernels call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def door(kernel: Any) -> Callable[..., Any]:
    """A Python function that does nothing but call `kernel`."""

    @numba.njit
    def call(*args):
        return kernel(*args)

    return call
