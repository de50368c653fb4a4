"""Sharing rows, fairness, pressure: what the scheduler promises beside right answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from small_cache import make_cache
from toy import EOS, VOCAB, ToyRunner, answer_alone

from deodar.engine.loop import Engine
from deodar.scheduler.policy import share_rows
from deodar.scheduler.scheduler import Limits, Scheduler
from deodar.types import GenerateRequest, SamplingParams, StepPlan, TokenEvent


@given(st.integers(0, 60), st.lists(st.integers(0, 50), max_size=8))
def test_shares_are_fair_and_nothing_is_left_over(budget: int, wants: list[int]) -> None:
    given_rows = share_rows(budget, wants)
    assert all(0 <= rows <= want for rows, want in zip(given_rows, wants, strict=True))
    assert sum(given_rows) == min(budget, sum(wants))
    takers = [i for i, want in enumerate(wants) if want]
    short = [given_rows[i] for i in takers if given_rows[i] < wants[i]]
    if len(takers) <= budget and short:
        assert max(given_rows) <= min(short) + 1, "nobody has more while others lack"
    elif len(takers) > budget:
        assert [given_rows[i] for i in takers] == [1] * budget + [0] * (len(takers) - budget)


def engine(
    *, pages: int = 60, slots: int = 4, step_tokens: int = 12, reserve: int = 1024, **cache: int
) -> Engine:
    limits = Limits(
        context=100,
        step_tokens=step_tokens,
        vocab_size=VOCAB,
        eos_token_id=EOS,
        reserve_tokens=reserve,
    )
    scheduler = Scheduler(make_cache(pages=pages, slots=slots, **cache), limits)
    return Engine(ToyRunner(pages, slots), scheduler)


def request(name: str, length: int, most: int = 4, **more: object) -> GenerateRequest:
    first = sum(map(ord, name))
    ids = tuple(2 + (first * 31 + i * i * (first % 7 + 1)) % (VOCAB - 2) for i in range(length))
    params = SamplingParams(temperature=0.0, seed=0, max_tokens=most, ignore_eos=False)
    return GenerateRequest(
        request_id=name,
        prompt_ids=more.pop("ids", ids),  # type: ignore[arg-type]
        sampling=params,
        **more,  # type: ignore[arg-type]
    )


def add(machine: Engine, *requests: GenerateRequest) -> None:
    assert isinstance(machine.runner, ToyRunner)
    for one in requests:
        machine.runner.know(one)
        machine.add(one)


def drain(machine: Engine) -> dict[str, list[TokenEvent]]:
    events: dict[str, list[TokenEvent]] = {}
    while machine.scheduler.has_work:
        for event in machine.step():
            events.setdefault(event.request_id, []).append(event)
    return events


def plans_of(machine: Engine) -> list[StepPlan]:
    """From now on, all plans that are run."""
    plans: list[StepPlan] = []
    run = machine.runner.run

    def kept(plan: StepPlan):  # type: ignore[no-untyped-def]
        plans.append(plan)
        return run(plan)

    machine.runner.run = kept  # type: ignore[method-assign]
    return plans


def test_a_long_prompt_does_not_starve_short_ones_nor_they_it() -> None:
    machine = engine(step_tokens=12)
    plans = plans_of(machine)
    add(machine, request("long", 80, most=1), *(request(f"s{i}", 4, most=1) for i in range(8)))
    drain(machine)
    rows = [{c.request_id: len(c.token_ids) for c in plan.chunks} for plan in plans]
    first = {n: next(i for i, r in enumerate(rows) if n in r) for n in ("long", "s0", "s2")}
    assert max(first.values()) == 0, "all that have a slot start at once"
    while_short = [r for r in rows if any(name.startswith("s") for name in r)]
    assert all(r.get("long", 0) >= 3 for r in while_short), "a burst leaves the long one its part"
    assert all(sum(r.values()) <= 12 for r in rows)


def test_many_requests_for_one_prefix_prefill_it_once() -> None:
    machine = engine(pages=100, slots=8, step_tokens=20, snapshots=20, stride=1000)
    shared = request("shared", 60).prompt_ids
    add(machine, *(request(f"r{i}", 0, ids=(*shared, 2 + i % 6, 3, 4)) for i in range(8)))
    events = drain(machine)
    cached = sorted(ends[-1].usage.cached_tokens for ends in events.values())
    assert cached[0] == 0, "the first one runs it"
    assert cached[1] >= 20, "the second shares its pages"
    assert cached[2] >= 56, "the others start at the branch"


def test_salts_share_nothing() -> None:
    machine = engine()
    for turn, salt in enumerate(("a", "b", "", "a", "b", "")):
        add(machine, request(f"r{turn}", 0, ids=request("x", 40).prompt_ids, cache_salt=salt))
        (events,) = drain(machine).values()
        assert (events[-1].usage.cached_tokens > 0) == (turn > 2), salt


def test_a_full_cache_still_hits_its_oldest_text() -> None:
    machine = engine(pages=20, slots=1, snapshots=20)
    old = request("old", 38)
    add(machine, old)
    drain(machine)
    add(machine, request("new", 30, most=4))
    drain(machine)
    assert machine.scheduler.cache.pool.free_pages <= 2, "nearly everything is reusable text"
    add(machine, request("again", 0, ids=old.prompt_ids))
    (events,) = drain(machine).values()
    assert events[-1].usage.cached_tokens >= 36


def test_under_pressure_everything_finishes() -> None:
    """D21: memory for three requests, forty that are each larger than a quarter of it."""
    machine = engine(pages=20, slots=6, step_tokens=16, reserve=0, snapshots=3)
    requests = [request(f"r{i}", 12 + i % 5, most=9, priority=i % 2) for i in range(40)]
    assert all(machine.scheduler.cache.pages_for(len(r.prompt_ids) + 9) > 5 - 1 for r in requests)
    add(machine, *requests)
    events: dict[str, list[TokenEvent]] = {}
    silent = 0
    while machine.scheduler.has_work:
        news = machine.step()
        silent = 0 if news else silent + 1
        assert silent < 100, "in every hundred steps somebody advances"
        for event in news:
            events.setdefault(event.request_id, []).append(event)
    assert len(events) == 40
    for one in requests:
        mine = events[one.request_id]
        assert tuple(t for e in mine for t in e.token_ids) == answer_alone(one, 100)
        assert mine[-1].usage.preemptions <= 3
    assert sum(mine[-1].usage.preemptions for mine in events.values()) > 0


def test_lower_priority_numbers_run_first() -> None:
    machine = engine(slots=1)
    add(machine, request("a", 5, priority=1), request("b", 5, priority=0), request("c", 5))
    order = list(drain(machine))
    assert order == ["b", "c", "a"]


def test_a_request_past_its_deadline_ends_with_an_error_and_gives_back() -> None:
    machine = engine(slots=1)
    now = [0.0]
    machine.scheduler._clock = lambda: now[0]
    add(machine, request("a", 30, most=20, deadline=5.0), request("b", 30, deadline=3.0))
    for _ in range(3):
        machine.step()
    now[0] = 4.0
    events = machine.step()
    assert [(e.request_id, e.finish_reason) for e in events if e.finish_reason] == [("b", "error")]
    now[0] = 6.0
    ends = [e for e in machine.step() if e.finish_reason]
    assert [(e.request_id, e.finish_reason) for e in ends] == [("a", "error")]
    assert "deadline" in str(ends[0].error)
    drain(machine)
    assert machine.scheduler.cache.pool.held_pages == 0


def test_a_preempted_request_goes_on_without_a_row_again() -> None:
    machine = engine()
    plans = plans_of(machine)
    add(machine, request("a", 30, most=12))
    while not any(c.kind == "decode" for plan in plans for c in plan.chunks):
        machine.step()
    assert machine.scheduler.preempt("a", save=True)
    events = drain(machine)["a"]
    starts = [c.start for plan in plans for c in plan.chunks]
    assert starts == sorted(set(starts)), "no row runs twice"
    assert events[-1].usage.preemptions == 1
    assert events[-1].usage.recomputed_tokens == 0


def test_without_the_save_the_answer_runs_again_as_forced_rows_of_its_own_kind() -> None:
    machine = engine(snapshots=0)
    plans = plans_of(machine)
    names = (f"a{i}" for i in range(50))
    one = next(r for n in names if len(answer_alone(r := request(n, 30, most=12), 100)) == 12)
    add(machine, one)
    seen: list[TokenEvent] = []
    while sum(len(e.token_ids) for e in seen) < 5:
        seen += machine.step()
    assert machine.scheduler.preempt(one.request_id, save=False)
    before = len(plans)
    seen += drain(machine)[one.request_id]
    again = [c for plan in plans[before:] for c in plan.chunks]
    assert all((c.start >= 30) == (c.kind == "decode") for c in again)
    assert any(c.kind == "decode" and len(c.token_ids) > 1 and c.start == 30 for c in again)
    assert tuple(t for e in seen for t in e.token_ids) == answer_alone(one, 100)
    assert seen[-1].usage.recomputed_tokens > 0


def test_aborts_in_every_state_give_everything_back() -> None:
    machine = engine(pages=20, slots=2, reserve=0)
    requests = [request(f"r{i}", 20, most=20) for i in range(5)]
    add(machine, *requests)
    for _ in range(4):
        machine.step()
    machine.scheduler.preempt("r0", save=True)  # parked, prompt, waiting
    for one in requests:
        assert machine.abort(one.request_id) is not None
    assert machine.abort("r0") is None
    drain(machine)
    cache = machine.scheduler.cache
    cache.check()
    assert (cache.pool.held_pages, cache.slots.held_pages) == (0, 0)
