"""What a server is told at start; built by `deodar serve`, read by the routes."""

from __future__ import annotations

from dataclasses import dataclass, field

from deodar.server.metrics import MetricsCompat
from deodar.text.chat import DEFAULT_EFFORT
from deodar.types import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """model_names: all names that are served, the first is the main one. context: tokens of prompt
    and answer together. sampling: used where a request says nothing. default_thinking,
    default_effort: likewise (spec api 1.3). max_body_bytes: larger bodies are 413.
    keep_alive_s: longest silence of a stream. admin_key: asked for by control routes; without one
    they answer to loopback only. test_hooks: offer the routes of `test_routes`. metrics_compat:
    whose names the metrics page shows beside our own.
    """

    model_names: tuple[str, ...]
    context: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    default_thinking: bool = True
    default_effort: int = DEFAULT_EFFORT
    max_body_bytes: int = 256 * 2**20
    keep_alive_s: float = 15.0
    admin_key: str | None = None
    test_hooks: bool = False
    metrics_compat: MetricsCompat = "vllm"
