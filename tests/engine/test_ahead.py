"""One step ahead: the same events as the plain loop, masks in time; plans that run again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from deodar.checkpoint.loader import Checkpoint
from deodar.decoding.sampler import sample
from deodar.engine.loop import Engine, Matcher
from deodar.engine.options import EngineOptions
from deodar.model.cpu import CpuModel
from deodar.scheduler.plan_log import decode_plan, encode_plan, read_plans
from deodar.types import GenerateRequest, SamplingParams, StepPlan

VOCAB = 512
Streams = dict[str, list[tuple[tuple[int, ...], tuple[float, ...], str | None]]]


def request(name: str, length: int, **sampling: object) -> GenerateRequest:
    ids = np.random.default_rng(length).integers(3, VOCAB, length).tolist()
    params = SamplingParams(seed=length, **{"max_tokens": 12, **sampling})  # type: ignore[arg-type]
    return GenerateRequest(request_id=name, prompt_ids=tuple(ids), sampling=params)


def streams(engine: Engine, requests: list[GenerateRequest]) -> Streams:
    found: Streams = {}
    for one in requests:
        engine.add(one)
    while engine.scheduler.has_work:
        for event in engine.step():
            news = (event.token_ids, event.logprobs, event.finish_reason)
            found.setdefault(event.request_id, []).append(news)
    return found


def options(ahead: bool, **more: object) -> EngineOptions:
    sizes = {"context": 128, "sequences": 3, "step_tokens": 24, **more}
    return EngineOptions(ahead=ahead, **sizes)  # type: ignore[arg-type]


def test_events_are_those_of_the_plain_loop(tiny_path: Path) -> None:
    requests = [
        request(f"r{i}", length, temperature=(0.0, 1.0)[i % 2], stop_token_ids=(17, 40, 99, 200))
        for i, length in enumerate((1, 5, 8, 16, 40, 41, 70))
    ]
    requests.append(replace(requests[4], request_id="twin"))
    plain, ahead = (
        streams(Engine.open(tiny_path, options(loop), poison=True), requests)
        for loop in (False, True)
    )
    assert plain == ahead
    assert {stream[-1][2] for stream in plain.values()} <= {"stop", "length"}


class Alternating:
    """A grammar: the next token is the last one plus 1 or plus 3. Knows when it is asked."""

    def __init__(self, first: int) -> None:
        self.last = first
        self.accepted: list[int] = []

    def accept(self, token_ids: tuple[int, ...]) -> None:
        self.accepted += token_ids
        self.last = token_ids[-1]

    def mask(self) -> NDArray[np.bool_]:
        allowed = np.zeros(VOCAB, np.bool_)
        allowed[[(self.last + 1) % VOCAB, (self.last + 3) % VOCAB]] = True
        return allowed


class Masked:
    """An engine over the tiny model with a grammar for requests whose name begins with g."""

    def __init__(self, path: Path, ahead: bool) -> None:
        self.matchers: dict[str, Alternating] = {}
        engine = Engine.open(path, options(ahead))
        self.engine = Engine(
            engine.runner, engine.scheduler, ahead=ahead, matcher_for=self._matcher_for
        )

    def _matcher_for(self, one: GenerateRequest) -> Matcher | None:
        if not one.request_id.startswith("g"):
            return None
        return self.matchers.setdefault(one.request_id, Alternating(one.prompt_ids[-1]))


def test_masks_are_never_late(tiny_path: Path) -> None:
    """Every token obeys the mask of all tokens before it, also in the step that ran ahead."""
    requests = [request(f"{kind}{i}", 9 + i, ignore_eos=True) for i in range(3) for kind in "gf"]
    found = {}
    for ahead in (False, True):
        masked = Masked(tiny_path, ahead)
        found[ahead] = streams(masked.engine, requests)
        for one in requests:
            tokens = [t for event in found[ahead][one.request_id] for t in event[0]]
            assert len(tokens) == 12
            steps = np.diff([one.prompt_ids[-1], *tokens]) % VOCAB
            assert set(steps.tolist()) <= {1, 3} or not one.request_id.startswith("g")
            if one.request_id.startswith("g"):
                assert masked.matchers[one.request_id].accepted == tokens[:-1]
    assert found[False] == found[True]


def test_a_late_mask_would_be_seen(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above fails if masks are those of a token earlier."""
    real = Alternating.mask
    late: dict[int, NDArray[np.bool_]] = {}

    def mask(self: Alternating) -> NDArray[np.bool_]:
        now = real(self)
        before = late.get(id(self), now)
        late[id(self)] = now
        return before

    monkeypatch.setattr(Alternating, "mask", mask)
    with pytest.raises(AssertionError):
        test_masks_are_never_late(tiny_path)


def plans(path: Path) -> Iterator[StepPlan]:
    yield from read_plans(path)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_plan_log_runs_again_and_gives_the_same_tokens(
    tiny_path: Path, tmp_path: Path, ahead: bool
) -> None:
    log = tmp_path / "plans.jsonl"
    engine = Engine.open(tiny_path, options(ahead, plan_log=str(log), snapshot_bytes=40_000))
    requests = [request(f"r{i}", length) for i, length in enumerate((7, 30, 31, 60))]
    requests.append(replace(requests[3], request_id="twin"))
    expected = streams(engine, requests)
    memory = engine.scheduler.cache
    model = CpuModel(
        Checkpoint.open(tiny_path),
        slots=3,
        context=128,
        max_rows=24,
        pages=memory.pool.total_pages,
        poison=True,
    )
    tokens: dict[str, dict[int, tuple[int, float]]] = {}
    for plan in plans(log):
        assert decode_plan(encode_plan(plan)) == plan
        rows = iter(model.run(plan))
        for chunk in plan.chunks:
            if chunk.sampling is not None:
                assert chunk.sampling.seed is not None
                drawn = sample(next(rows), chunk.sampling, chunk.sampling.seed, chunk.output_index)
                answer = tokens.setdefault(chunk.request_id, {})
                answer[chunk.output_index] = (drawn.token_id, drawn.logprob)
    for name, stream in expected.items():
        want = [(t, p) for ids, logprobs, _ in stream for t, p in zip(ids, logprobs, strict=True)]
        assert [tokens[name][i] for i in range(len(want))] == want


def test_a_request_that_raises_one_step_ahead_ends_alone(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [request(f"r{i}", 20 + i) for i in range(3)]
    expected = streams(Engine.open(tiny_path, options(ahead=False)), requests)
    engine = Engine.open(tiny_path, options(ahead=True), poison=True)
    run = engine.runner.run

    def break_one(plan: StepPlan) -> NDArray[np.float32]:
        for chunk in plan.chunks:
            if chunk.request_id == "r1" and chunk.output_index == 4:
                raise ValueError("a poisoned request")
        return run(plan)

    monkeypatch.setattr(engine.runner, "run", break_one)
    found = streams(engine, requests)
    assert found["r1"][-1][2] == "error"
    assert [found["r0"], found["r2"]] == [expected["r0"], expected["r2"]]
