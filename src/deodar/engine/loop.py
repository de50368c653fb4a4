"""The step loop: plan, run, sample, commit; plain, or with the plan one step ahead.

Used by `worker` and by `llm`. The plain loop is the oracle of the other. What must hold: both give
every request the same events; a chunk that raises ends its own request and no other.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from deodar.cache.manager import CacheManager
from deodar.cache.resume import LayerPlan
from deodar.cache.snapshots import SnapshotStore
from deodar.checkpoint.loader import Checkpoint
from deodar.config import ModelConfig
from deodar.decoding.logprobs import top_logprobs
from deodar.decoding.sampler import sample, sample_masked
from deodar.engine.hooks import Fault, Hooks, Injection
from deodar.engine.options import EngineOptions, EngineSettings, resolve
from deodar.errors import RequestError
from deodar.model.cpu import CpuModel
from deodar.scheduler.plan_log import PlanLog
from deodar.scheduler.scheduler import Limits, Scheduler
from deodar.types import (
    OPEN_TOKEN,
    Chunk,
    EngineInfo,
    GenerateRequest,
    SampledToken,
    SamplingParams,
    StepOutput,
    StepPlan,
    TokenEvent,
)

_NO_ROWS = np.zeros((0, 0), np.float32)
logger = logging.getLogger("deodar.engine")


class Runner(Protocol):
    """What the loop needs of a model."""

    def run(self, plan: StepPlan) -> NDArray[np.float32]:
        """Run a step; float32 [n, vocab], logits of the last rows of the n chunks that sample.

        If it raises, the same chunks may be run again: state is written by position.
        """
        ...


class Matcher(Protocol):
    """What the loop needs of a grammar: which tokens may come next."""

    def accept(self, token_ids: tuple[int, ...]) -> None:
        """These tokens have become part of the answer."""
        ...

    def mask(self) -> NDArray[np.bool_]:
        """bool [vocab]: True for the tokens that may come next; at least one."""
        ...


@dataclass(slots=True)
class _Masks:
    matcher: Matcher
    allowed: NDArray[np.bool_]


class Engine:
    """A model with its scheduler; one thread at a time may use it.

    hooks: faults and scripts of the test hooks, None in every engine that serves. ahead: plan one
    step ahead, see `step`. matcher_for: the grammar matcher of a request, if it has one. plan_log:
    keeps every plan that is run, with its tokens filled in.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        hooks: Hooks | None = None,
        *,
        ahead: bool = False,
        matcher_for: Callable[[GenerateRequest], Matcher | None] | None = None,
        plan_log: PlanLog | None = None,
    ) -> None:
        self._plan_log = plan_log
        self.runner = runner
        self._hooks = hooks
        self._matcher_for = matcher_for
        self._masks: dict[str, _Masks] = {}
        self._ahead = ThreadPoolExecutor(1, "deodar-step") if ahead else None
        self._running: tuple[StepPlan, Future[NDArray[np.float32] | Exception]] | None = None
        self.scheduler = scheduler

    @classmethod
    def open(
        cls,
        folder: Path,
        options: EngineOptions | None = None,
        *,
        threads: int = 1,
        test_hooks: bool = False,
        poison: bool = False,
    ) -> Engine:
        """Load the checkpoint in `folder` and make its kernels ready.

        options: None for the defaults. poison: state that may not be read is NaN, for tests.
        Raises ConfigError for options that cannot be.
        """
        checkpoint = Checkpoint.open(folder)
        config = checkpoint.config
        settings = resolve(config, options or EngineOptions())
        model = CpuModel(
            checkpoint,
            slots=settings.sequences,
            context=settings.context,
            max_rows=settings.step_tokens,
            threads=threads,
            pages=settings.memory.pages,
            poison=poison,
            cut_windows=not settings.rules.exact,
        )
        limits = Limits(
            context=settings.context,
            step_tokens=settings.step_tokens,
            vocab_size=config.vocab_size,
            eos_token_id=config.eos_token_id,
        )
        scheduler = Scheduler(make_cache(config, settings), limits)
        hooks = Hooks(config.vocab_size, config.eos_token_id) if test_hooks else None
        log = None if settings.plan_log is None else PlanLog(Path(settings.plan_log))
        return cls(model, scheduler, hooks, ahead=settings.ahead, plan_log=log)

    @property
    def info(self) -> EngineInfo:
        """What this engine is."""
        limits, cache = self.scheduler.limits, self.scheduler.cache
        return EngineInfo(
            pid=os.getpid(),
            context=limits.context,
            vocab_size=limits.vocab_size,
            slots=cache.slots.total_pages,
            step_tokens=limits.step_tokens,
            page_tokens=cache.page_tokens,
            total_pages=cache.pool.total_pages,
            decoder_trim=cache.rules.trim,
            replay=cache.rules.replay,
            device="cpu",
            numerics="kv",
        )

    def warm_up(self) -> None:
        """Compile every kernel, or fetch it from an earlier run, before the first request."""
        params = SamplingParams(temperature=1.0, top_k=2, top_p=0.5, seed=0)
        limits, cache = self.scheduler.limits, self.scheduler.cache
        room = cache.pool.total_pages * cache.page_tokens
        for count in (1, min(limits.step_tokens, limits.context - 1, room)):
            chunk = Chunk(
                request_id="",
                slot=0,
                kind="prefill",
                start=0,
                token_ids=(0,) * count,
                sampling=params,
                pages=tuple(range(cache.pages_for(count))),
            )
            rows = self.runner.run(StepPlan(step_no=0, chunks=(chunk,)))
            self._tokens(chunk, params, rows[0])

    def add(self, request: GenerateRequest) -> None:
        """Let a request wait; without a seed it draws 63 bits. RequestError if refused."""
        self.scheduler.add(with_seed(request))
        if self._hooks is not None:
            self._hooks.on_request(request)
        if self._matcher_for is not None and (matcher := self._matcher_for(request)) is not None:
            self._masks[request.request_id] = _Masks(matcher, matcher.mask())

    def abort(self, request_id: str) -> TokenEvent | None:
        """End a request now; its last event, or None if it is unknown or has ended."""
        self._masks.pop(request_id, None)
        return self.scheduler.abort(request_id)

    def flush_cache(self) -> None:
        """Forget all reusable state; RequestError while requests run."""
        self.scheduler.flush()

    def inject(self, what: Injection) -> None:
        """Take a fault or script; RequestError without test hooks."""
        if self._hooks is None:
            raise RequestError("this engine has no test hooks", status=404)
        self._hooks.inject(what)
        if isinstance(what, Fault) and what.pool_tokens is not None:
            self.scheduler.limit_pool(what.pool_tokens)

    def step(self) -> tuple[TokenEvent, ...]:
        """Run one step; its events. A chunk that raises ends its own request.

        One step ahead, it plans step n + 1 while step n runs, draws step n's tokens, launches step
        n + 1 and only then accounts for step n: the matchers' masks for the tokens of step n + 1
        are made while its rows run, before they are needed.
        """
        if self._hooks is not None:
            self._hooks.on_turn()
        plan = self.scheduler.plan()
        if self._ahead is None:
            if plan.is_idle:
                return self.scheduler.take_events()
            return self._commit(plan, self._finish(plan, self._rows(plan)))
        running, self._running = self._running, None
        if running is None:
            self._launch(plan)
            return self.scheduler.take_events()
        before, rows = running
        output = self._finish(before, rows.result())
        self._launch(with_tokens(plan, before, output))
        return self._commit(before, output)

    def _launch(self, plan: StepPlan) -> None:
        assert self._ahead is not None
        if not plan.is_idle:
            self._running = (plan, self._ahead.submit(self._rows, plan))

    def _commit(self, plan: StepPlan, output: StepOutput) -> tuple[TokenEvent, ...]:
        events = self.scheduler.commit(plan, output)
        for event in events if self._masks else ():
            masks = self._masks.get(event.request_id)
            if masks is not None and event.finish_reason is not None:
                del self._masks[event.request_id]
            elif masks is not None:
                masks.matcher.accept(event.token_ids)
                masks.allowed = masks.matcher.mask()
        return events

    def _rows(self, plan: StepPlan) -> NDArray[np.float32] | Exception:
        """Run the model; may happen in another thread."""
        try:
            if self._plan_log is not None:
                self._plan_log.write(plan)
            if self._hooks is not None:
                self._hooks.on_run(plan)
            return self.runner.run(plan)
        except Exception as error:
            return error

    def _finish(self, plan: StepPlan, rows: NDArray[np.float32] | Exception) -> StepOutput:
        """Draw the tokens. If the step raised, run its chunks one by one to find the culprit.

        Rows of generated text may run twice, so their results stand. The state of a prompt that
        took part is not sure any more: its request starts again.
        """
        live = self.scheduler.live_chunks(plan)
        if not isinstance(rows, Exception):
            return self._drawn(plan, rows, live)
        logger.error("step %d raised; its chunks run one by one", plan.step_no, exc_info=rows)
        sampled: list[tuple[SampledToken, ...]] = []
        failed: dict[str, str] = {}
        void: set[str] = set()
        for chunk, is_live in zip(plan.chunks, live, strict=True):
            part = StepPlan(step_no=plan.step_no, chunks=(chunk,))
            again = self._rows(part) if is_live else _NO_ROWS
            if isinstance(again, Exception):
                logger.error("request %s raised and ends", chunk.request_id, exc_info=again)
                failed[chunk.request_id] = _failure(again)
                sampled.append(())
            elif chunk.kind == "prefill" or not is_live:
                void.add(chunk.request_id)
                sampled.append(())
            else:
                output = self._drawn(part, again, (True,))
                sampled += output.sampled
                failed.update(output.failed)
        return StepOutput(
            step_no=plan.step_no, sampled=tuple(sampled), failed=failed, void=frozenset(void)
        )

    def _drawn(
        self, plan: StepPlan, rows: NDArray[np.float32], live: tuple[bool, ...]
    ) -> StepOutput:
        """The tokens of every live chunk that samples; `rows` has a row for each that samples."""
        rest = iter(rows)
        sampled: list[tuple[SampledToken, ...]] = []
        failed: dict[str, str] = {}
        for chunk, is_live in zip(plan.chunks, live, strict=True):
            tokens: tuple[SampledToken, ...] = ()
            if chunk.sampling is not None:
                row = next(rest)
                try:
                    tokens = self._tokens(chunk, chunk.sampling, row) if is_live else ()
                except Exception as error:
                    logger.exception("request %s raised and ends", chunk.request_id)
                    failed[chunk.request_id] = _failure(error)
            sampled.append(tokens)
        return StepOutput(step_no=plan.step_no, sampled=tuple(sampled), failed=failed)

    def _tokens(
        self, chunk: Chunk, params: SamplingParams, row: NDArray[np.float32]
    ) -> tuple[SampledToken, ...]:
        """What the chunk's request gets in this step: a drawn token, or scripted ones."""
        scripted = self._hooks.on_sample(chunk) if self._hooks is not None else None
        assert params.seed is not None
        masks = self._masks.get(chunk.request_id)
        if masks is None:
            drawn = sample(row, params, params.seed, chunk.output_index)
        else:
            drawn = sample_masked(row, masks.allowed, params, params.seed, chunk.output_index)
        tokens = [drawn]
        if scripted is not None:  # log-probabilities of the row, as if it had been drawn from
            shift = drawn.logprob - float(row[drawn.token_id])
            tokens = [SampledToken(token, float(row[token]) + shift) for token in scripted]
        if params.top_logprobs:
            top = top_logprobs(row, drawn, params.top_logprobs)
            tokens = [replace(token, top=top) for token in tokens]
        return tuple(tokens)


def make_cache(config: ModelConfig, settings: EngineSettings) -> CacheManager:
    """The accounting of an engine with these settings."""
    memory = settings.memory
    store = SnapshotStore(
        full_bytes=memory.geometry.full_snapshot_bytes,
        encoder_bytes=memory.geometry.encoder_snapshot_bytes,
        device_budget_bytes=memory.snapshot_bytes,
        host_budget_bytes=memory.host_bytes,
    )
    return CacheManager(
        LayerPlan.from_config(config),
        memory.geometry,
        store,
        total_pages=memory.pages,
        total_slots=memory.slots,
        stride_tokens=settings.stride_tokens,
        rules=settings.rules,
    )


def with_tokens(plan: StepPlan, before: StepPlan, output: StepOutput) -> StepPlan:
    """The plan with its open tokens filled in by what the step before it drew.

    A sequence that got none has ended or starts again; its row is void and runs with any token.
    """
    drawn = {
        chunk.request_id: tokens[0].token_id
        for chunk, tokens in zip(before.chunks, output.sampled, strict=True)
        if tokens
    }
    chunks = tuple(
        replace(chunk, token_ids=(*chunk.token_ids[:-1], drawn.get(chunk.request_id, 0)))
        if chunk.token_ids[-1] == OPEN_TOKEN
        else chunk
        for chunk in plan.chunks
    )
    return replace(plan, chunks=chunks)


def _failure(error: Exception) -> str:
    return f"the engine failed: {type(error).__name__}"


def with_seed(request: GenerateRequest) -> GenerateRequest:
    """The request with a seed of its own if it came without one (design D4)."""
    if request.sampling.seed is not None:
        return request
    return replace(request, sampling=replace(request.sampling, seed=secrets.randbits(63)))
