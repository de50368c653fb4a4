"""What one turn of the scheduler costs: `plan` and `commit` without a model.

Called by `deodar bench plan`. Every sequence generates, so each step plans and commits a row of
each; the drawn tokens are made up. Medians of wall time: asking for processor time can take longer
than what is measured.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from deodar.cache.manager import CacheManager
from deodar.cache.resume import LayerPlan
from deodar.cache.snapshots import SnapshotStore
from deodar.config import ModelConfig
from deodar.engine.options import EngineOptions, resolve
from deodar.scheduler.scheduler import Limits, Scheduler
from deodar.types import GenerateRequest, SampledToken, SamplingParams, StepOutput, StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCost:
    """Milliseconds of wall time per step."""

    sequences: int
    prompt_tokens: int
    steps: int
    plan_ms: float
    commit_ms: float
    both_p99_ms: float

    @property
    def both_ms(self) -> float:
        return self.plan_ms + self.commit_ms


def bench_plan(
    config: ModelConfig, *, sequences: int, prompt_tokens: int, steps: int, ahead: bool
) -> PlanCost:
    """Measure `steps` steps of `sequences` running sequences, each after a prompt.

    ahead: with one more plan in flight, as the overlapped loop has it.
    """
    scheduler = _scheduler(config, sequences, prompt_tokens + 2 * steps + 64)
    for number in range(sequences):
        ids = tuple((number * 31 + i) % 1000 for i in range(prompt_tokens))
        params = SamplingParams(seed=number, ignore_eos=True, max_tokens=2 * steps + 32)
        scheduler.add(GenerateRequest(request_id=f"r{number}", prompt_ids=ids, sampling=params))
    while True:
        plan = scheduler.plan()
        scheduler.commit(plan, _output(plan))
        if len(plan.chunks) == sequences and all(c.kind == "decode" for c in plan.chunks):
            break
    plans: list[float] = []
    commits: list[float] = []
    waiting = [scheduler.plan()] if ahead else []
    for _ in range(steps):
        start = time.perf_counter()
        waiting.append(scheduler.plan())
        planned = time.perf_counter()
        output = _output(waiting[0])
        began = time.perf_counter()
        scheduler.commit(waiting.pop(0), output)
        commits.append((time.perf_counter() - began) * 1e3)
        plans.append((planned - start) * 1e3)
    both = sorted(a + b for a, b in zip(plans, commits, strict=True))
    return PlanCost(
        sequences=sequences,
        prompt_tokens=prompt_tokens,
        steps=steps,
        plan_ms=statistics.median(plans),
        commit_ms=statistics.median(commits),
        both_p99_ms=both[int(len(both) * 0.99)],
    )


def _scheduler(config: ModelConfig, sequences: int, context: int) -> Scheduler:
    options = EngineOptions(context=context, sequences=sequences, step_tokens=8192)
    memory = resolve(config, options).memory
    store = SnapshotStore(
        full_bytes=memory.geometry.full_snapshot_bytes,
        encoder_bytes=memory.geometry.encoder_snapshot_bytes,
        device_budget_bytes=memory.snapshot_bytes,
    )
    cache = CacheManager(
        LayerPlan.from_config(config),
        memory.geometry,
        store,
        total_pages=memory.pages,
        total_slots=memory.slots,
    )
    limits = Limits(
        context=context,
        step_tokens=8192,
        vocab_size=config.vocab_size,
        eos_token_id=config.eos_token_id,
    )
    return Scheduler(cache, limits)


def _output(plan: StepPlan) -> StepOutput:
    drawn = (SampledToken(7, -1.0),)
    sampled = tuple(drawn if chunk.sampling is not None else () for chunk in plan.chunks)
    return StepOutput(step_no=plan.step_no, sampled=sampled)
