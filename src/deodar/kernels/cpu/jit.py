"""How CPU kernels are compiled: strict IEEE, no interpreter lock, kept on disk between runs.

Used by every file of this folder and by the sampler. The kept code is filed under a digest of all
kernel sources: numba by itself does not notice that a function called by a kept one has changed.
"""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.extending import register_jitable

from deodar import env

F = TypeVar("F", bound=Callable[..., object])
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}  # division by zero gives inf


def entry(function: F) -> F:
    """A function that Python calls: compiled on its first call, kept on disk."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = _code_folder()
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)
    finally:
        numba.config.CACHE_DIR = before


def part(function: F) -> F:
    """A function that only other kernels call: compiled with them, a third cheaper than an entry.

    Python sees the plain function, which mostly cannot run; tests wrap it in one of their own.
    """
    return register_jitable(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)(function)


def kept() -> bool:
    """Whether an earlier run has left compiled kernels; if not, the first use takes a while."""
    return any(Path(_code_folder()).rglob("*.nbi"))


@cache
def _code_folder() -> str:
    """A writable folder named by the digest of the kernel sources and of numba's version."""
    room = Path(__file__).parent
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted([*room.glob("*.py"), *room.parents[1].glob("decoding/*.py")]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    name = f"kernels-{digest.hexdigest()[:16]}"
    try:
        kept = env.cache_folder() / name
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=kept):
            pass
        return str(kept)
    except (OSError, RuntimeError):  # no home, read-only home, no space: compile in this run only
        folder = tempfile.mkdtemp(prefix="deodar-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder
