"""Deodar: a serving engine for DeepSeek-V4.1-Flash, exact and deterministic.

`LLM` is imported on first use so that the torch-free half of the package starts in milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deodar.types import SamplingParams

if TYPE_CHECKING:
    from deodar.engine.llm import LLM

__all__ = ["LLM", "SamplingParams", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from deodar.engine.llm import LLM

        return LLM
    raise AttributeError(f"module 'deodar' has no attribute {name!r}")
