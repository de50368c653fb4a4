"""The scheduler alone, with a made-up model: budgets, slots, ends, and every request ends once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_cache import make_scheduler

from deodar.errors import RequestError
from deodar.scheduler.scheduler import Scheduler
from deodar.types import (
    GenerateRequest,
    SampledToken,
    SamplingParams,
    StepOutput,
    StepPlan,
    TokenEvent,
)

EOS = 1


def scheduler(slots: int = 2, context: int = 64, step_tokens: int = 8) -> Scheduler:
    return make_scheduler(
        slots=slots, context=context, step_tokens=step_tokens, vocab_size=100, eos_token_id=EOS
    )


def request(name: str, length: int, **sampling: object) -> GenerateRequest:
    params = SamplingParams(seed=0, **sampling)  # type: ignore[arg-type]
    first = sum(map(ord, name)) * 7  # texts of different names share no prefix
    ids = tuple(2 + (first + i) % 90 for i in range(length))
    return GenerateRequest(request_id=name, prompt_ids=ids, sampling=params)


def output(plan: StepPlan, token: int) -> StepOutput:
    drawn = SampledToken(token, -1.0)
    return StepOutput(
        step_no=plan.step_no, sampled=tuple((drawn,) if c.sampling else () for c in plan.chunks)
    )


def finish(machine: Scheduler, token: int = 5) -> list[TokenEvent]:
    events: list[TokenEvent] = []
    while machine.has_work:
        plan = machine.plan()
        assert not plan.is_idle
        events += machine.commit(plan, output(plan, token))
    return events


def test_a_prompt_is_cut_by_the_budget_and_sampled_at_its_end() -> None:
    machine = scheduler()
    machine.add(request("a", 19, max_tokens=2))
    shapes = []
    while machine.has_work:
        plan = machine.plan()
        shapes += [(c.kind, c.start, len(c.token_ids), c.sampling is None) for c in plan.chunks]
        machine.commit(plan, output(plan, 7))
    assert shapes == [
        ("prefill", 0, 8, True),
        ("prefill", 8, 8, True),
        ("prefill", 16, 3, False),
        ("decode", 19, 1, False),
    ]


def test_generating_rows_come_before_prompts() -> None:
    machine = scheduler(slots=2, step_tokens=8)
    machine.add(request("a", 3, max_tokens=9))
    plan = machine.plan()
    machine.commit(plan, output(plan, 7))
    machine.add(request("b", 30))
    plan = machine.plan()
    assert [(c.request_id, len(c.token_ids)) for c in plan.chunks] == [("a", 1), ("b", 7)]
    assert plan.num_tokens == 8
    assert plan.chunks[0].output_index == 1
    assert plan.chunks[0].token_ids == (7,)


def test_first_come_first_served_over_the_slots() -> None:
    machine = scheduler(slots=2)
    for name in "abc":
        machine.add(request(name, 2, max_tokens=1))
    plan = machine.plan()
    assert [c.request_id for c in plan.chunks] == ["a", "b"]
    assert plan.reset_slots == (0, 1)
    machine.commit(plan, output(plan, 7))
    assert [c.request_id for c in machine.plan().chunks] == ["c"]


@pytest.mark.parametrize(
    ("sampling", "token", "reason", "count"),
    [
        ({}, EOS, "stop", 1),
        ({"ignore_eos": True, "max_tokens": 3}, EOS, "length", 3),
        ({"stop_token_ids": (9,)}, 9, "stop", 1),
        ({}, 5, "length", 62),  # 2 prompt tokens in a context of 64
        ({"max_tokens": 1000}, 5, "length", 62),
    ],
)
def test_ends(sampling: dict[str, object], token: int, reason: str, count: int) -> None:
    machine = scheduler()
    machine.add(request("a", 2, **sampling))
    events = finish(machine, token)
    assert len(events) == count
    assert events[-1].finish_reason == reason
    assert events[-1].usage.completion_tokens == count
    assert events[-1].stop_token_id == (token if reason == "stop" else None)
    assert all(e.finish_reason is None for e in events[:-1])


@pytest.mark.parametrize(
    ("bad", "param", "words"),
    [
        (request("a", 0), "prompt", "empty"),
        (request("a", 64), "prompt", "maximum context length is 64 tokens"),
        (request("a", 3, temperature=2.5), "temperature", "from 0 to 2"),
        (request("a", 3, top_p=0.0), "top_p", "above 0"),
        (request("a", 3, min_p=float("nan")), "min_p", "nan"),
        (request("a", 3, top_k=-1), "top_k", "-1"),
        (request("a", 3, max_tokens=0), "max_tokens", "0"),
        (request("a", 3, max_tokens=2.5), "max_tokens", "2.5, it must be an integer"),
        (request("a", 3, temperature="1"), "temperature", "must be a number"),
        (
            GenerateRequest(request_id="a", prompt_ids=(3, 100), sampling=SamplingParams(seed=0)),
            "prompt",
            "token 1 is 100",
        ),
    ],
)
def test_refusals_name_field_value_and_limit(bad: GenerateRequest, param: str, words: str) -> None:
    machine = scheduler()
    with pytest.raises(RequestError, match=words) as caught:
        machine.add(bad)
    assert caught.value.param == param
    assert not machine.has_work


def test_too_long_has_the_code_that_clients_look_for() -> None:
    with pytest.raises(RequestError) as caught:
        scheduler().add(request("a", 65))
    assert caught.value.code == "context_length_exceeded"
    scheduler().add(request("a", 63))


def test_a_failed_chunk_ends_only_its_request() -> None:
    machine = scheduler(slots=2)
    for name in "abc":
        machine.add(request(name, 3, max_tokens=2))
    plan = machine.plan()
    result = output(plan, 7)
    result = replace(result, sampled=((), result.sampled[1]), failed={"a": "it broke"})
    first, second = machine.commit(plan, result)
    assert (first.request_id, first.finish_reason, first.error) == ("a", "error", "it broke")
    assert (second.request_id, second.finish_reason) == ("b", None)
    assert {e.request_id for e in finish(machine)} == {"b", "c"}


def test_several_tokens_in_one_step_end_at_the_stop_and_run_as_one_chunk() -> None:
    machine = scheduler(slots=2, step_tokens=8)
    machine.add(request("a", 3, max_tokens=9))

    def many(*tokens: int) -> list[TokenEvent]:
        plan = machine.plan()
        drawn = tuple(SampledToken(token, -1.0) for token in tokens)
        shapes.append([(c.start, c.token_ids, c.output_index) for c in plan.chunks])
        sampled = tuple(drawn if c.sampling else () for c in plan.chunks)
        result = StepOutput(step_no=plan.step_no, sampled=sampled)
        return list(machine.commit(plan, result))

    shapes: list[list[tuple[int, tuple[int, ...], int]]] = []
    assert many(5, 6, 7, 8, 9)[0].token_ids == (5, 6, 7, 8, 9)
    (event,) = many(10, EOS, 11)
    assert shapes[1:] == [[(3, (5, 6, 7, 8, 9), 5)]]
    assert (event.token_ids, event.finish_reason) == ((10, EOS), "stop")
    assert event.usage.completion_tokens == 7


def test_a_limited_pool_lets_requests_wait_and_refuses_what_never_fits() -> None:
    machine = scheduler(slots=2)
    machine.limit_pool(20)
    machine.add(request("a", 3, max_tokens=9))
    machine.add(request("b", 3, max_tokens=9))
    with pytest.raises(RequestError, match="may take 23 tokens, the KV memory holds 20"):
        machine.add(request("c", 3, max_tokens=20))
    assert [c.request_id for c in machine.plan().chunks] == ["a"]
    assert (machine.stats.running, machine.stats.waiting, machine.stats.waiting_tokens) == (1, 1, 3)
    machine.abort("a")
    assert [c.request_id for c in machine.plan().chunks] == ["b"]


def test_the_same_id_twice_is_refused() -> None:
    machine = scheduler()
    machine.add(request("a", 3))
    with pytest.raises(RequestError, match="already in use"):
        machine.add(request("a", 4))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 40), st.integers(1, 6)),
            st.tuples(st.just("abort"), st.integers(0, 20), st.just(0)),
            st.tuples(st.just("step"), st.integers(0, 99), st.just(0)),
        ),
        max_size=60,
    ),
    st.integers(1, 3),
    st.integers(4, 20),
)
def test_any_traffic(actions: list[tuple[str, int, int]], slots: int, step_tokens: int) -> None:
    """No slot has two owners, budgets hold, tokens run in order, every request ends once."""
    machine = scheduler(slots=slots, step_tokens=step_tokens)
    events: list[TokenEvent] = []
    seen: dict[str, list[int]] = {}
    requests: dict[str, GenerateRequest] = {}

    def step(token: int) -> None:
        plan = machine.plan()
        if plan.is_idle:
            return
        assert plan.num_tokens <= step_tokens
        owners = [c.slot for c in plan.chunks]
        assert len(set(owners)) == len(owners)
        for chunk in plan.chunks:
            run = seen.setdefault(chunk.request_id, [])
            assert chunk.start == len(run)
            run += chunk.token_ids
        events.extend(machine.commit(plan, output(plan, token)))

    for kind, number, extra in actions:
        if kind == "add":
            new = request(f"r{len(requests)}", number, max_tokens=extra)
            requests[new.request_id] = new
            machine.add(new)
        elif kind == "abort":
            ended = machine.abort(f"r{number}")
            events += [ended] if ended else []
        else:
            step(number)
    while machine.has_work:
        step(EOS)
    for name, one in requests.items():
        mine = [e for e in events if e.request_id == name]
        assert [e.finish_reason for e in mine].count(None) == len(mine) - 1
        assert mine[-1].finish_reason is not None
        tokens = [t for e in mine for t in e.token_ids]
        whole = [*one.prompt_ids, *tokens]
        assert seen.get(name, []) == whole[: len(seen.get(name, []))]
