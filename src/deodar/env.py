"""Debug switches from the environment; nobody else reads `os.environ`. At most ten."""

from __future__ import annotations

import os
from pathlib import Path


def flag(name: str) -> bool:
    """True if the variable `DEODAR_<name>` is set to anything but empty or 0."""
    return os.environ.get(f"DEODAR_{name}", "") not in ("", "0")


def show_traceback() -> bool:
    """`DEODAR_TRACEBACK=1`: let unexpected errors of the command line show their traceback."""
    return flag("TRACEBACK")


def admin_api_key() -> str | None:
    """`DEODAR_ADMIN_API_KEY`: the key of the control routes, None if not set or empty."""
    return os.environ.get("DEODAR_ADMIN_API_KEY") or None


def cache_folder() -> Path:
    """Where compiled kernels are kept: `DEODAR_CACHE_DIR`, else deodar/ in the user's cache."""
    chosen = os.environ.get("DEODAR_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "deodar"


def processor_count() -> int:
    """Processors that this process may use, at most 8."""
    return min(len(os.sched_getaffinity(0)), 8)
