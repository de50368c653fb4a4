"""The plain step loop: plan, run, sample, commit. The oracle of every faster loop to come.

Used by the engine thread of `client` and, without any thread, by `llm`.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from deodar.checkpoint.loader import Checkpoint
from deodar.decoding.sampler import sample
from deodar.errors import ConfigError
from deodar.model.cpu import CpuModel
from deodar.scheduler.scheduler import Scheduler
from deodar.types import (
    Chunk,
    GenerateRequest,
    SampledToken,
    SamplingParams,
    StepOutput,
    StepPlan,
    TokenEvent,
)

DEFAULT_SLOTS = 16
DEFAULT_STEP_TOKENS = 256
logger = logging.getLogger("deodar.engine")


class Runner(Protocol):
    """What the loop needs of a model."""

    def run(self, plan: StepPlan) -> NDArray[np.float32]:
        """Run a step; float32 [n, vocab], logits of the last rows of the n chunks that sample."""
        ...


class Engine:
    """A model with its scheduler; one thread at a time may use it."""

    def __init__(self, runner: Runner, scheduler: Scheduler) -> None:
        self._runner = runner
        self.scheduler = scheduler

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        context: int | None = None,
        slots: int = DEFAULT_SLOTS,
        step_tokens: int = DEFAULT_STEP_TOKENS,
        threads: int = 1,
    ) -> Engine:
        """Load the checkpoint in `folder` and make its kernels ready.

        context: tokens of prompt and answer together, None for what the model was made for.
        """
        checkpoint = Checkpoint.open(folder)
        config = checkpoint.config
        limit = config.max_position_embeddings
        if context is not None and not 2 <= context <= limit:
            raise ConfigError(f"context is {context}, it must be from 2 to {limit}")
        model = CpuModel(
            checkpoint, slots=slots, context=context, max_rows=step_tokens, threads=threads
        )
        scheduler = Scheduler(
            slots=slots,
            context=model.context,
            step_tokens=step_tokens,
            vocab_size=config.vocab_size,
            eos_token_id=config.eos_token_id,
        )
        return cls(model, scheduler)

    def warm_up(self) -> None:
        """Compile every kernel, or fetch it from an earlier run, before the first request."""
        params = SamplingParams(temperature=1.0, top_k=2, top_p=0.5, seed=0)
        for count in (1, self.scheduler.step_tokens):
            ids = (0,) * min(count, self.scheduler.context - 1)
            chunk = Chunk(
                request_id="", slot=0, kind="prefill", start=0, token_ids=ids, sampling=params
            )
            self._run(StepPlan(step_no=0, chunks=(chunk,)))

    def add(self, request: GenerateRequest) -> None:
        """Let a request wait; without a seed it draws 63 bits. RequestError if refused."""
        self.scheduler.add(with_seed(request))

    def step(self) -> tuple[TokenEvent, ...]:
        """Run one step; its events. A step that raises ends the requests that took part in it."""
        plan = self.scheduler.plan()
        if plan.is_idle:
            return ()
        try:
            output = self._run(plan)
        except Exception as error:
            logger.exception("step %d raised; its requests end", plan.step_no)
            return self.scheduler.fail(plan, f"the engine failed: {type(error).__name__}")
        return self.scheduler.commit(plan, output)

    def _run(self, plan: StepPlan) -> StepOutput:
        rows = iter(self._runner.run(plan))
        sampled: list[SampledToken | None] = []
        for chunk in plan.chunks:
            if chunk.sampling is None:
                sampled.append(None)
                continue
            assert chunk.sampling.seed is not None
            seed = chunk.sampling.seed
            sampled.append(sample(next(rows), chunk.sampling, seed, chunk.output_index))
        return StepOutput(step_no=plan.step_no, sampled=tuple(sampled))


def with_seed(request: GenerateRequest) -> GenerateRequest:
    """The request with a seed of its own if it came without one (design D4)."""
    if request.sampling.seed is not None:
        return request
    return replace(request, sampling=replace(request.sampling, seed=secrets.randbits(63)))
