"""Random traffic over the toy model: what comes, when, and what is compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from small_cache import make_cache
from toy import EOS, VOCAB, ToyRunner, answer_alone

from deodar.cache.manager import CacheManager
from deodar.engine.loop import Engine
from deodar.scheduler.scheduler import Limits, Scheduler
from deodar.types import GenerateRequest, SamplingParams, TokenEvent

CONTEXT = 48


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    reason: str | None = None
    prefill_rows: int = 0


@dataclass(frozen=True)
class Schedule:
    """One random run, drawn from a seed. calm: nobody is aborted or preempted on purpose."""

    seed: int
    ahead: bool = False
    calm: bool = False

    def play(self) -> tuple[int, list[str]]:
        """Number of requests and the differences found."""
        return Play(self).run()

    def streams(self) -> dict[str, list[tuple[tuple[int, ...], tuple[float, ...], str | None]]]:
        """The events of every request: tokens, log-probabilities and the reason of the last."""
        play = Play(self)
        _, differences = play.run()
        assert differences == []
        return play.streams


class Play:
    def __init__(self, schedule: Schedule) -> None:
        self.rng = rng = Random(schedule.seed)
        self.calm = schedule.calm
        self.streams: dict[str, list[tuple[tuple[int, ...], tuple[float, ...], str | None]]] = {}
        slots = rng.choice((1, 2, 4, 6))
        pages = rng.choice((14, 16, 20, 40))
        self.cache: CacheManager = make_cache(
            pages=pages,
            slots=slots,
            snapshots=rng.choice((0, 2, 4, 20)),
            host=rng.choice((0, 3)),
            stride=rng.choice((4, 8)),
        )
        limits = Limits(
            context=CONTEXT,
            step_tokens=slots + rng.choice((1, 2, 3, 5, 8, 40)),
            vocab_size=VOCAB,
            eos_token_id=EOS,
            reserve_tokens=rng.choice((0, 4, 100)),
        )
        self.scheduler = Scheduler(self.cache, limits)
        self.runner = ToyRunner(pages, slots)
        self.engine = Engine(self.runner, self.scheduler, ahead=schedule.ahead)
        self.requests: dict[str, GenerateRequest] = {}
        self.answers: dict[str, Answer] = {}
        self.texts: list[tuple[int, ...]] = []

    def run(self) -> tuple[int, list[str]]:
        rng, count = self.rng, self.rng.randint(3, 14)
        steps = 0
        while count or self.scheduler.has_work:
            while count and (self.calm or rng.random() < 0.4):
                count -= 1
                self._come()
            if not self.calm:
                self._disturb()
            for event in self.engine.step():
                self._take(event)
            self.cache.check()
            steps += 1
            assert steps < 5000, "nothing goes on"
        return len(self.requests), self._differences()

    def _disturb(self) -> None:
        rng, running = self.rng, self.scheduler.requests()
        if running and rng.random() < 0.04:
            self._take(self.engine.abort(rng.choice(running)))
        elif running and rng.random() < 0.1:
            self.scheduler.preempt(rng.choice(running), save=rng.random() < 0.6)
        elif rng.random() < 0.05:
            self.cache.tree.evict(rng.randint(1, 9))

    def _come(self) -> None:
        rng = self.rng
        base: tuple[int, ...] = ()
        if self.texts and rng.random() < 0.7:
            base = rng.choice(self.texts)[: rng.choice((100, 100, rng.randint(0, 40)))]
            base = base[: len(base) - rng.choice((0, 1, 2))]
        tail = tuple(rng.randrange(2, 4) for _ in range(rng.choice((1, 2, 3, 7, 13, 20))))
        ids = (base + tail)[: CONTEXT - 2]
        most = rng.choice((1, 2, 5, 20))
        request = GenerateRequest(
            request_id=f"r{len(self.requests)}",
            prompt_ids=ids,
            sampling=SamplingParams(temperature=0.0, seed=0, max_tokens=most),
            priority=rng.choice((0, 0, 0, 1)),
            cache_salt=rng.choice(("", "", "x")),
        )
        self.requests[request.request_id] = request
        self.answers[request.request_id] = Answer()
        self.runner.know(request)
        self.engine.add(request)
        self.texts.append(ids)

    def _take(self, event: TokenEvent | None) -> None:
        if event is None:
            return
        self.streams.setdefault(event.request_id, []).append(
            (event.token_ids, event.logprobs, event.finish_reason)
        )
        answer = self.answers[event.request_id]
        assert answer.reason is None, "an event after the end"
        answer.token_ids += event.token_ids
        answer.reason = event.finish_reason
        if event.finish_reason is not None:
            request = self.requests[event.request_id]
            self.texts.append(request.prompt_ids + tuple(answer.token_ids))

    def _differences(self) -> list[str]:
        found = []
        for name, answer in self.answers.items():
            want = answer_alone(self.requests[name], CONTEXT)
            got = tuple(answer.token_ids)
            whole = answer.reason in ("stop", "length")
            if not (got == want if whole else answer.reason == "abort" and want[: len(got)] == got):
                found.append(f"{name}: {got} ({answer.reason}), alone {want}")
        held = (self.cache.pool.held_pages, self.cache.slots.held_pages)
        return found if held == (0, 0) else [*found, f"held at the end: {held}"]
