"""What an engine is started with, and the numbers that follow from it (design D10).

Called by the commands, by `LLM` and by `Engine.open`. `resolve` is pure: every default of the
engine is here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass

from deodar.cache.geometry import Geometry
from deodar.cache.memory import MemoryPlan, plan_memory
from deodar.cache.resume import Replay, Rules, Trim
from deodar.config import ModelConfig
from deodar.errors import ConfigError

DEFAULT_SEQUENCES = 16
DEFAULT_STEP_TOKENS = 256
DEFAULT_SNAPSHOTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What users may set; None leaves it to `resolve`.

    context: tokens of prompt and answer together. sequences: how many run at once. step_tokens:
    rows of one step. pool_tokens: tokens that all pages hold. snapshot_bytes, host_bytes: budgets
    of the snapshots. stride_tokens: distance of encoder snapshots within a prompt. ahead: plan one
    step ahead. plan_log: a file to which every plan is written.
    """

    context: int | None = None
    sequences: int = DEFAULT_SEQUENCES
    step_tokens: int = DEFAULT_STEP_TOKENS
    pool_tokens: int | None = None
    snapshot_bytes: int | None = None
    host_bytes: int = 0
    stride_tokens: int = 8192
    decoder_trim: Trim = "exact"
    replay: Replay = "exact"
    ahead: bool = False
    plan_log: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Every number of an engine, and the memory that it takes."""

    context: int
    sequences: int
    step_tokens: int
    stride_tokens: int
    rules: Rules
    ahead: bool
    plan_log: str | None
    memory: MemoryPlan


def resolve(config: ModelConfig, options: EngineOptions) -> EngineSettings:
    """The numbers of an engine; ConfigError with value and limit for options that cannot be."""
    limit = config.max_position_embeddings
    context = limit if options.context is None else options.context
    if not 2 <= context <= limit:
        raise ConfigError(f"context is {context}, it must be from 2 to {limit}")
    if options.sequences < 1:
        raise ConfigError(f"sequences is {options.sequences}, it must be at least 1")
    if options.step_tokens <= options.sequences:
        raise ConfigError(
            f"step_tokens is {options.step_tokens}, it must be more than the"
            f" {options.sequences} sequences that each take a row"
        )
    geometry = Geometry.from_config(config)
    pool_tokens = options.pool_tokens
    if pool_tokens is None:
        pool_tokens = options.sequences * geometry.pages_for(context) * geometry.page_tokens
    snapshots = options.snapshot_bytes
    if snapshots is None:
        snapshots = DEFAULT_SNAPSHOTS * geometry.full_snapshot_bytes
    return EngineSettings(
        context=context,
        sequences=options.sequences,
        step_tokens=options.step_tokens,
        stride_tokens=options.stride_tokens,
        rules=Rules(trim=options.decoder_trim, replay=options.replay),
        ahead=options.ahead,
        plan_log=options.plan_log,
        memory=plan_memory(
            geometry,
            sequences=options.sequences,
            pool_tokens=pool_tokens,
            snapshot_bytes=snapshots,
            host_bytes=options.host_bytes,
        ),
    )
