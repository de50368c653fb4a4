"""Debug switches from the environment; nobody else reads `os.environ`. At most ten."""

from __future__ import annotations

import os


def flag(name: str) -> bool:
    """True if the variable `DEODAR_<name>` is set to anything but empty or 0."""
    return os.environ.get(f"DEODAR_{name}", "") not in ("", "0")


def show_traceback() -> bool:
    """`DEODAR_TRACEBACK=1`: let unexpected errors of the command line show their traceback."""
    return flag("TRACEBACK")
