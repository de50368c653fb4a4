"""The plain step loop: plan, run, sample, commit. The oracle of every faster loop to come.

Used by `worker` and, without any thread, by `llm`. What must hold: a chunk that raises ends its own
request and no other.
"""

from __future__ import annotations

import logging
import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from deodar.checkpoint.loader import Checkpoint
from deodar.decoding.logprobs import top_logprobs
from deodar.decoding.sampler import sample
from deodar.engine.hooks import Fault, Hooks, Injection
from deodar.errors import ConfigError, RequestError
from deodar.model.cpu import CpuModel
from deodar.scheduler.scheduler import Scheduler
from deodar.types import (
    Chunk,
    EngineInfo,
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
        """Run a step; float32 [n, vocab], logits of the last rows of the n chunks that sample.

        If it raises, the same chunks may be run again: state is written by position.
        """
        ...


class Engine:
    """A model with its scheduler; one thread at a time may use it.

    hooks: faults and scripts of the test hooks, None in every engine that serves.
    """

    def __init__(self, runner: Runner, scheduler: Scheduler, hooks: Hooks | None = None) -> None:
        self._runner = runner
        self._hooks = hooks
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
        test_hooks: bool = False,
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
        hooks = Hooks(config.vocab_size, config.eos_token_id) if test_hooks else None
        return cls(model, scheduler, hooks)

    @property
    def info(self) -> EngineInfo:
        """What this engine is."""
        return EngineInfo(
            pid=os.getpid(),
            context=self.scheduler.context,
            vocab_size=self.scheduler.vocab_size,
            slots=self.scheduler.slots,
            step_tokens=self.scheduler.step_tokens,
            device="cpu",
            numerics="kv",
        )

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
        if self._hooks is not None:
            self._hooks.on_request(request)

    def flush_cache(self) -> None:
        """Forget all reusable state; RequestError while requests run. Nothing is reusable yet."""
        if self.scheduler.has_work:
            raise RequestError("requests are running, the cache cannot be flushed", code="busy")

    def inject(self, what: Injection) -> None:
        """Take a fault or script; RequestError without test hooks."""
        if self._hooks is None:
            raise RequestError("this engine has no test hooks", status=404)
        self._hooks.inject(what)
        if isinstance(what, Fault) and what.pool_tokens is not None:
            self.scheduler.limit_pool(what.pool_tokens)

    def step(self) -> tuple[TokenEvent, ...]:
        """Run one step; its events. A chunk that raises ends its own request."""
        if self._hooks is not None:
            self._hooks.on_turn()
        plan = self.scheduler.plan()
        if plan.is_idle:
            return ()
        return self.scheduler.commit(plan, self._run_apart(plan))

    def _run_apart(self, plan: StepPlan) -> StepOutput:
        """Run a plan; if that raises, run its chunks one by one, so that the culprit is known."""
        try:
            return self._run(plan)
        except Exception:
            logger.exception("step %d raised; its chunks are run one by one", plan.step_no)
        sampled: list[tuple[SampledToken, ...]] = []
        failed: dict[str, str] = {}
        for chunk in plan.chunks:
            resets = tuple(slot for slot in plan.reset_slots if slot == chunk.slot)
            part = StepPlan(step_no=plan.step_no, chunks=(chunk,), reset_slots=resets)
            try:
                output = self._run(part)
            except Exception as error:
                logger.exception("request %s raised and ends", chunk.request_id)
                failed[chunk.request_id] = f"the engine failed: {type(error).__name__}"
                sampled.append(())
            else:
                sampled += output.sampled
                failed.update(output.failed)
        return StepOutput(step_no=plan.step_no, sampled=tuple(sampled), failed=failed)

    def _run(self, plan: StepPlan) -> StepOutput:
        if self._hooks is not None:
            self._hooks.on_run(plan)
        rows = iter(self._runner.run(plan))
        sampled: list[tuple[SampledToken, ...]] = []
        failed: dict[str, str] = {}
        for chunk in plan.chunks:
            tokens: tuple[SampledToken, ...] = ()
            if chunk.sampling is not None:
                row = next(rows)
                try:
                    tokens = self._tokens(chunk, chunk.sampling, row)
                except Exception as error:
                    logger.exception("request %s raised and ends", chunk.request_id)
                    failed[chunk.request_id] = f"the engine failed: {type(error).__name__}"
            sampled.append(tokens)
        return StepOutput(step_no=plan.step_no, sampled=tuple(sampled), failed=failed)

    def _tokens(
        self, chunk: Chunk, params: SamplingParams, row: NDArray[np.float32]
    ) -> tuple[SampledToken, ...]:
        """What the chunk's request gets in this step: a drawn token, or scripted ones."""
        scripted = self._hooks.on_sample(chunk) if self._hooks is not None else None
        assert params.seed is not None
        drawn = sample(row, params, params.seed, chunk.output_index)
        tokens = [drawn]
        if scripted is not None:  # log-probabilities of the row, as if it had been drawn from
            shift = drawn.logprob - float(row[drawn.token_id])
            tokens = [SampledToken(token, float(row[token]) + shift) for token in scripted]
        if params.top_logprobs:
            top = top_logprobs(row, drawn, params.top_logprobs)
            tokens = [replace(token, top=top) for token in tokens]
        return tuple(tokens)


def with_seed(request: GenerateRequest) -> GenerateRequest:
    """The request with a seed of its own if it came without one (design D4)."""
    if request.sampling.seed is not None:
        return request
    return replace(request, sampling=replace(request.sampling, seed=secrets.randbits(63)))
