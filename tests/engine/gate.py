"""The gate of the engine: random traffic against each request alone, bit for bit.

`Gate` holds one model; `Gate.play(seed)` draws a schedule from the seed - pool, budgets, loop,
requests, aborts, preemptions, evictions, restarts - plays it, and returns what differs. Alone
means: one request in one chunk on an empty cache, without trim, in the plain loop. State that may
not be read is NaN in every run. The rows that the model ran are compared with the plan's, and the
plan's with the formula of the way that each prompt started.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from deodar.cache.lease import Lease
from deodar.cache.resume import LayerPlan, Replay, Trim
from deodar.checkpoint.loader import Checkpoint
from deodar.engine.loop import Engine, make_cache
from deodar.engine.options import EngineOptions, EngineSettings, resolve
from deodar.model.cpu import CpuModel
from deodar.scheduler.scheduler import Limits, Scheduler
from deodar.scheduler.sequence import Sequence
from deodar.types import GenerateRequest, SamplingParams, StepPlan, TokenEvent

Answer = tuple[tuple[int, ...], tuple[float, ...], str | None]
MAX_SEQUENCES = 32
MAX_STEP_TOKENS = 8192 + MAX_SEQUENCES


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the traffic of a gate is, in tokens and requests."""

    context: int
    longest: int
    requests: int


TINY = Sizes(context=192, longest=110, requests=10)
SEEDLING = Sizes(context=2048, longest=1400, requests=8)


class WatchedModel:
    """Runs plans and checks that the rows that ran are those of the plan."""

    def __init__(self, model: CpuModel) -> None:
        self.model = model
        self.differences: list[str] = []
        self.layer_rows = 0

    def run(self, plan: StepPlan) -> NDArray[np.float32]:
        before, layers = self.model.layer_rows, self.model.config.num_hidden_layers
        rows = self.model.run(plan)
        planned = sum(
            len(chunk.token_ids) * layers
            if chunk.layer_starts is None
            else sum(chunk.stop - start for start in chunk.layer_starts)
            for chunk in plan.chunks
        )
        ran = self.model.layer_rows - before
        self.layer_rows += ran
        if ran != planned:
            self.differences.append(f"step {plan.step_no}: {ran} layer-rows, planned {planned}")
        return rows


class WatchedScheduler(Scheduler):
    """Compares the layer-rows of every prompt with the formula of its start."""

    def watch(self) -> WatchedScheduler:
        self.rows: dict[str, int] = {}
        self.formula: dict[str, int] = {}
        self.differences: list[str] = []
        return self

    def _start(self, sequence: Sequence, lease: Lease) -> None:
        if sequence.parked is None:
            self.rows[sequence.request.request_id] = 0
            self.formula[sequence.request.request_id] = lease.resume.layer_rows
        super()._start(sequence, lease)

    def plan(self) -> StepPlan:
        plan = super().plan()
        for chunk in plan.chunks:
            if chunk.layer_starts is None:
                continue
            name = chunk.request_id
            self.rows[name] += sum(chunk.stop - start for start in chunk.layer_starts)
            end = len(self._known[name].request.prompt_ids)
            if chunk.stop == end and self.rows[name] != self.formula[name]:
                self.differences.append(
                    f"{name}: {self.rows[name]} layer-rows, formula {self.formula[name]}"
                )
        return plan


class Gate:
    """A model and the answers that its requests get alone.

    bounded: for runs under a bounded rule, whose rows see fewer window keys.
    """

    def __init__(
        self, folder: Path, sizes: Sizes, *, threads: int = 1, bounded: bool = False
    ) -> None:
        self.sizes = sizes
        self.checkpoint = Checkpoint.open(folder)
        self.config = self.checkpoint.config
        self.plan = LayerPlan.from_config(self.config)
        self.most_rows = min(MAX_STEP_TOKENS, sizes.context * 4)
        page_tokens = resolve(self.config, EngineOptions(context=64)).memory.geometry.page_tokens
        self.page_tokens = page_tokens
        self.context_pages = -(-sizes.context // page_tokens)
        self.model = CpuModel(
            self.checkpoint,
            slots=MAX_SEQUENCES,
            context=sizes.context,
            max_rows=self.most_rows,
            threads=threads,
            pages=8 * self.context_pages,
            poison=True,
            cut_windows=bounded,
        )
        self._alone: dict[GenerateRequest, Answer] = {}

    def play(self, seed: int, *, replay: Replay = "exact", trim: Trim = "exact") -> Play:
        """Play the schedule of a seed to its end."""
        play = Play(self, seed, replay, trim)
        play.run()
        return play

    def engine(self, options: EngineOptions, step_tokens: int) -> Engine:
        """An engine with an empty cache over the one model, with smaller limits than it has."""
        settings = resolve(self.config, options)
        return self.engine_for(replace(settings, step_tokens=step_tokens))

    def engine_for(self, settings: EngineSettings, reserve_tokens: int = 1024) -> Engine:
        memory = self.model.memory
        memory.device.clear()
        memory.host.clear()
        for slot in range(MAX_SEQUENCES):
            memory.reset(slot)
        limits = Limits(
            context=settings.context,
            step_tokens=settings.step_tokens,
            vocab_size=self.config.vocab_size,
            eos_token_id=self.config.eos_token_id,
            reserve_tokens=reserve_tokens,
        )
        scheduler = WatchedScheduler(make_cache(self.config, settings), limits).watch()
        return Engine(WatchedModel(self.model), scheduler, ahead=settings.ahead)

    def alone(self, request: GenerateRequest) -> Answer:
        """The request's answer: one chunk, no cache, no trim, plain loop. Call with no run open."""
        bare = replace(request, request_id="", priority=0, cache_salt="")
        if bare not in self._alone:
            options = EngineOptions(
                context=self.sizes.context, sequences=1, decoder_trim="off", snapshot_bytes=0
            )
            engine = self.engine(options, self.most_rows)
            engine.add(bare)
            events: list[TokenEvent] = []
            while engine.scheduler.has_work:
                events += engine.step()
            self._alone[bare] = _answer(events)
        return self._alone[bare]


@dataclass
class Play:
    """One schedule: what was asked, what came, and what differs."""

    gate: Gate
    seed: int
    replay: Replay
    trim: Trim
    requests: dict[str, GenerateRequest] = field(default_factory=dict)
    events: dict[str, list[TokenEvent]] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def run(self) -> None:
        self.rng = Random(self.seed)
        self._draw_settings()
        self.engine = self._new_engine()
        self.texts: list[tuple[int, ...]] = []
        self.left = self.rng.randint(2, self.gate.sizes.requests)
        steps = 0
        while self.left or self.engine.scheduler.has_work:
            while self.left and self.rng.random() < self.rush:
                self.left -= 1
                self._come(self._drawn_request())
            self._disturb()
            for event in self.engine.step():
                self._take(event)
            steps += 1
            assert steps < 100_000, "nothing goes on"
        self._close(self.engine)
        for name, request in self.requests.items():
            self._compare(name, request)

    def _draw_settings(self) -> None:
        rng, gate = self.rng, self.gate
        sequences = rng.choice((1, 2, 3, 4, 8, 32))
        budget = rng.choice((1, 2, 3, 5, 7, 8, 9, 16, 31, 64, 128, 512, 8192))
        geometry = resolve(gate.config, EngineOptions(context=64)).memory.geometry
        pages = rng.choice((1, 1.3, 2, 3, 8)) * gate.context_pages
        full = geometry.full_snapshot_bytes
        options = EngineOptions(
            context=gate.sizes.context,
            sequences=sequences,
            step_tokens=min(sequences + budget, gate.most_rows),
            pool_tokens=int(pages) * gate.page_tokens,
            snapshot_bytes=rng.choice((0, 1, 3, 50)) * full,
            host_bytes=rng.choice((0, 0, 4)) * full,
            stride_tokens=rng.choice((1, 2, 4, 1000)) * gate.page_tokens,
            decoder_trim=self.trim,
            replay=self.replay,
            ahead=rng.random() < 0.5,
        )
        self.settings = resolve(gate.config, options)
        self.reserve = rng.choice((0, 8, 1024))
        self.rush = rng.choice((0.05, 0.3, 0.9))
        self.roughness = rng.choice((0.0, 0.02, 0.1))

    def _new_engine(self) -> Engine:
        return self.gate.engine_for(self.settings, self.reserve)

    def _drawn_request(self) -> GenerateRequest:
        rng, gate = self.rng, self.gate
        config, longest = gate.config, gate.sizes.longest
        base: tuple[int, ...] = ()
        if self.texts and rng.random() < 0.7:
            base = rng.choice(self.texts)
            base = base[: rng.choice((len(base), len(base) - 1, self._edge(), self._edge()))]
        tail = self._edge() if rng.random() < 0.5 else rng.randint(1, 12)
        ids = base + tuple(rng.randrange(3, config.vocab_size) for _ in range(tail))
        sampling = SamplingParams(
            temperature=rng.choice((0.0, 0.7, 1.0)),
            top_p=rng.choice((1.0, 0.9)),
            top_k=rng.choice((0, 5)),
            seed=rng.randrange(3),
            max_tokens=rng.choice((1, 2, 5, 12, 24)),
            ignore_eos=rng.random() < 0.8,
        )
        return GenerateRequest(
            request_id=f"r{len(self.requests)}",
            prompt_ids=ids[:longest] or (5,),
            sampling=sampling,
            priority=rng.choice((0, 0, 0, 1)),
            cache_salt=rng.choice(("", "", "", "x")),
        )

    def _edge(self) -> int:
        """A length at or beside a multiple of something that matters."""
        rng, config = self.rng, self.gate.config
        units = (config.sliding_window, self.gate.page_tokens, config.index_topk, 2)
        unit = rng.choice((*units, 2 * config.index_topk, self.gate.plan.decoder_reach_tokens))
        length = unit * rng.randint(1, max(1, self.gate.sizes.longest // unit))
        return max(1, min(length, self.gate.sizes.longest) + rng.choice((-1, 0, 1, 2)))

    def _come(self, request: GenerateRequest) -> None:
        self.requests[request.request_id] = request
        self.events[request.request_id] = []
        self.texts.append(request.prompt_ids)
        self.engine.add(request)

    def _disturb(self) -> None:
        """Now and then something that must not change any answer."""
        rng, scheduler = self.rng, self.engine.scheduler
        if rng.random() >= self.roughness:
            return
        running = scheduler.requests()
        what = rng.choice(("abort", "save", "save", "drop", "evict", "restart"))
        done = True
        if what == "abort" and running:
            self._take(self.engine.abort(rng.choice(running)))
        elif what in ("save", "drop") and running:
            done = scheduler.preempt(rng.choice(running), save=what == "save")
        elif what == "evict":
            scheduler.cache.tree.evict(rng.randint(1, 12))
        elif what == "restart":
            self._restart()
        self.counts[what] = self.counts.get(what, 0) + done

    def _restart(self) -> None:
        """The engine dies and comes back empty; its clients ask again."""
        lost = [self.requests[name] for name in self.engine.scheduler.requests()]
        for request in lost:
            self._take(self.engine.abort(request.request_id))
        while self.engine.scheduler.has_work:
            self.engine.step()
        self._close(self.engine)
        self.engine = self._new_engine()
        for request in lost:
            self._come(replace(request, request_id=f"r{len(self.requests)}"))

    def _take(self, event: TokenEvent | None) -> None:
        if event is None:
            return
        self.events[event.request_id].append(event)
        if event.finish_reason is not None:
            usage = event.usage
            for name in ("cached_tokens", "replayed_tokens", "recomputed_tokens", "preemptions"):
                self.counts[name] = self.counts.get(name, 0) + getattr(usage, name)
            tokens = tuple(t for e in self.events[event.request_id] for t in e.token_ids)
            self.texts.append(self.requests[event.request_id].prompt_ids + tokens)

    def _close(self, engine: Engine) -> None:
        """Nothing may be left behind."""
        scheduler, model = engine.scheduler, engine.runner
        assert isinstance(scheduler, WatchedScheduler)
        assert isinstance(model, WatchedModel)
        scheduler.cache.check()
        self.differences += scheduler.differences + model.differences
        held = (scheduler.cache.pool.held_pages, scheduler.cache.slots.held_pages)
        if held != (0, 0):
            self.differences.append(f"pages and slots held at the end: {held}")

    def _compare(self, name: str, request: GenerateRequest) -> None:
        tokens, logprobs, reason = _answer(self.events[name])
        want = self.gate.alone(request)
        if reason == "abort":
            count = len(tokens)
            same = (tokens, logprobs) == (want[0][:count], want[1][:count])
        else:
            same = (tokens, logprobs, reason) == want
        if not same:
            self.differences.append(f"{name}: {tokens} {reason}, alone {want[0]} {want[2]}")


def _answer(events: list[TokenEvent]) -> Answer:
    tokens = tuple(t for e in events for t in e.token_ids)
    logprobs = tuple(p for e in events for p in e.logprobs)
    ends = [e.finish_reason for e in events if e.finish_reason is not None]
    assert len(ends) == 1, "every request ends once"
    return tokens, logprobs, ends[0]
