"""The plain loop: answers depend on the request only; a step that raises hurts only its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_cache import make_scheduler

from deodar.engine.loop import Engine
from deodar.engine.options import EngineOptions
from deodar.errors import ConfigError
from deodar.types import GenerateRequest, SamplingParams, StepPlan, TokenEvent


def request(name: str, length: int, seed: int | None = 0, **sampling: object) -> GenerateRequest:
    ids = np.random.default_rng(length).integers(0, 512, length).tolist()
    params = SamplingParams(seed=seed, **{"max_tokens": 12, **sampling})  # type: ignore[arg-type]
    return GenerateRequest(request_id=name, prompt_ids=tuple(ids), sampling=params)


def answers(engine: Engine) -> dict[str, tuple[list[int], list[float]]]:
    result: dict[str, tuple[list[int], list[float]]] = {}
    while engine.scheduler.has_work:
        for event in engine.step():
            tokens, logprobs = result.setdefault(event.request_id, ([], []))
            tokens += event.token_ids
            logprobs += event.logprobs
    return result


@pytest.mark.parametrize(("slots", "step_tokens", "threads"), [(6, 64, 1), (2, 9, 1), (5, 200, 2)])
def test_tokens_and_log_probabilities_are_equal_alone_and_together(
    tiny_path: Path, slots: int, step_tokens: int, threads: int
) -> None:
    alone = Engine.open(tiny_path, EngineOptions(context=256, sequences=1, step_tokens=128))
    together = Engine.open(
        tiny_path,
        EngineOptions(context=256, sequences=slots, step_tokens=step_tokens),
        threads=threads,
    )
    requests = [
        request(
            f"r{i}", length, seed=i, temperature=(0.0, 0.7, 1.0)[i % 3], top_p=(1.0, 0.9)[i % 2]
        )
        for i, length in enumerate((1, 2, 7, 8, 9, 31, 64, 100, 15))
    ]
    expected = {}
    for one in requests:
        alone.add(one)
        expected.update(answers(alone))
    for one in requests:
        together.add(one)
    assert answers(together) == expected


def test_without_a_seed_every_answer_has_its_own(tiny_path: Path) -> None:
    engine = Engine.open(tiny_path, EngineOptions(context=64, sequences=2, step_tokens=16))
    events: list[TokenEvent] = []
    for name in ("a", "b"):
        engine.add(request(name, 4, seed=None, max_tokens=1))
    while engine.scheduler.has_work:
        events += engine.step()
    seeds = {e.seed for e in events}
    assert len(seeds) == 2
    assert all(0 <= seed < 2**63 for seed in seeds)


class _Broken:
    """Raises for steps in which request "bad" takes part."""

    def run(self, plan: StepPlan) -> np.ndarray:
        if any(chunk.request_id == "bad" for chunk in plan.chunks):
            raise ValueError("a poisoned request")
        logits = np.zeros((sum(c.sampling is not None for c in plan.chunks), 512), np.float32)
        logits[:, 7] = 50.0
        return logits


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_a_request_that_raises_ends_alone_and_its_mates_go_on(slots: int) -> None:
    scheduler = make_scheduler(
        slots=slots, context=64, step_tokens=12, vocab_size=512, eos_token_id=1
    )
    engine = Engine(_Broken(), scheduler)
    for name in ("good", "bad", "later"):
        engine.add(request(name, 3, max_tokens=2))
    events: list[TokenEvent] = []
    while scheduler.has_work:
        events += engine.step()
    ends = {e.request_id: e for e in events if e.finish_reason}
    assert {name: e.finish_reason for name, e in ends.items()} == {
        "good": "length",
        "bad": "error",
        "later": "length",
    }
    assert ends["bad"].error == "the engine failed: ValueError"


@pytest.mark.parametrize("context", [1, 513, 10**9])
def test_a_context_out_of_range_is_refused(tiny_path: Path, context: int) -> None:
    with pytest.raises(ConfigError, match=f"context is {context}"):
        Engine.open(tiny_path, EngineOptions(context=context))
