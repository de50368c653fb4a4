"""`deodar bench streams|reuse|trim`: the whole engine on one checkpoint, in one process.

Everything that is compared runs in turns in one run, so that other load on the machine hits all of
it; numbers are medians over the turns. Prompts are random token ids: the cost of a row does not
depend on what it says. What must hold: each comparison also checks that the answers are equal.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deodar.bench.decode import BIG_BYTES, processor_name, reading_speed
from deodar.cache.resume import Trim
from deodar.engine.loop import Engine
from deodar.engine.options import EngineOptions
from deodar.env import processor_count
from deodar.errors import ConfigError
from deodar.model.cpu import CpuModel
from deodar.types import GenerateRequest, SamplingParams

TURNS = 5
ANSWER_TOKENS = 24
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What became of some requests that ran together.

    first_s: from their arrival to the first token of any. decode_s: from the step in which the last
    of them got its first token to the end; decode_tokens: what was made in that time. step_s: the
    median of the steps in it.
    """

    tokens: dict[str, tuple[int, ...]]
    logprobs: dict[str, tuple[float, ...]]
    cached: int
    layer_rows: int
    first_s: float
    first_processor_s: float
    decode_s: float
    decode_processor_s: float
    decode_tokens: int
    step_s: float


class Bench:
    """An engine over a checkpoint, and how to run requests on it."""

    def __init__(self, folder: Path, options: EngineOptions) -> None:
        self.threads = processor_count()
        self.engine = Engine.open(folder, options, threads=self.threads)
        self.engine.warm_up()
        assert isinstance(self.engine.runner, CpuModel)
        self.model = self.engine.runner
        self._count = 0

    def prompt(self, seed: int, count: int) -> tuple[int, ...]:
        """Random token ids that are no special tokens."""
        limit = self.model.config.vocab_size - 64
        return tuple(np.random.default_rng(seed).integers(3, limit, count).tolist())

    def run(self, prompts: Sequence[Sequence[int]], answer_tokens: int) -> Served:
        """Run the prompts together, greedily, to the end."""
        self.model.layer_rows = 0
        start, processor = time.perf_counter(), time.process_time()
        for ids in prompts:
            self._count += 1
            params = SamplingParams(
                temperature=0, seed=1, max_tokens=answer_tokens, ignore_eos=True
            )
            name = f"b{self._count}"
            self.engine.add(
                GenerateRequest(request_id=name, prompt_ids=tuple(ids), sampling=params)
            )
        tokens: dict[str, tuple[int, ...]] = {}
        logprobs: dict[str, tuple[float, ...]] = {}
        cached = rows = made = 0
        first = first_processor = together = together_processor = 0.0
        steps: list[float] = []
        while self.engine.scheduler.has_work:
            begin = time.perf_counter()
            for event in self.engine.step():
                name = event.request_id
                tokens[name] = tokens.get(name, ()) + event.token_ids
                logprobs[name] = logprobs.get(name, ()) + event.logprobs
                cached = event.usage.cached_tokens
            if together:
                steps.append(time.perf_counter() - begin)
            if tokens and not first:
                first, rows = time.perf_counter() - start, self.model.layer_rows
                first_processor = time.process_time() - processor
            if len(tokens) == len(prompts) and not together:
                together, together_processor = time.perf_counter(), time.process_time()
                made = sum(map(len, tokens.values()))
        return Served(
            tokens=tokens,
            logprobs=logprobs,
            cached=cached,
            layer_rows=rows,
            first_s=first,
            first_processor_s=first_processor,
            decode_s=time.perf_counter() - together,
            decode_processor_s=time.process_time() - together_processor,
            decode_tokens=sum(map(len, tokens.values())) - made,
            step_s=statistics.median(steps or [0.0]),
        )

    def flush(self) -> None:
        self.engine.flush_cache()


def bench_streams(
    folder: Path, *, prompt_tokens: int, steps: int, sequences: int, report: Report
) -> dict[str, Any]:
    """Tokens a second of one stream and of `sequences` at once, with what bytes and operations
    allow."""
    context = prompt_tokens + steps + 1
    options = EngineOptions(context=context, sequences=sequences, step_tokens=256 + sequences)
    bench = Bench(folder, options)
    prompts = [bench.prompt(seed, prompt_tokens) for seed in range(sequences)]
    speeds: dict[int, list[float]] = {1: [], sequences: []}
    costs: dict[int, list[float]] = {1: [], sequences: []}
    steps_s: dict[int, list[float]] = {1: [], sequences: []}
    for turn in range(TURNS):
        answers = {}
        for count in speeds:
            bench.flush()
            served = bench.run(prompts[:count], steps)
            speeds[count].append(served.decode_tokens / served.decode_s)
            steps_s[count].append(served.step_s)
            costs[count].append(served.decode_processor_s / served.decode_tokens * 1e3)
            answers[count] = next(iter(served.tokens.values()))
        _must_be_equal(answers[1], answers[sequences], "alone and in company")
        report(f"turn {turn + 1} of {TURNS}")
    one, many = (statistics.median(values) for values in speeds.values())
    row_bytes = bench.model.active_bytes(context)
    memory, same = reading_speed(BIG_BYTES), reading_speed(row_bytes)
    rate = _product_rate() * bench.threads
    return _head(folder, bench.threads) | {
        "prompt_tokens": prompt_tokens,
        "steps": steps,
        "sequences": sequences,
        "one_tokens_per_s": one,
        "many_tokens_per_s": many,
        "one_processor_ms_per_token": statistics.median(costs[1]),
        "many_processor_ms_per_token": statistics.median(costs[sequences]),
        "one_step_ms": statistics.median(steps_s[1]) * 1e3,
        "many_step_ms": statistics.median(steps_s[sequences]) * 1e3,
        "ratio_of_median_steps": sequences
        * statistics.median(steps_s[1])
        / statistics.median(steps_s[sequences]),
        "ratio": many / one,
        "ratios": [b / a for a, b in zip(*speeds.values(), strict=True)],
        "bytes_per_row": row_bytes,
        "gb_per_s_memory": memory,
        "gb_per_s_same": same,
        "products_gflops": rate,
        # A weight is two bytes and two operations: a row has as many operations as it reads bytes.
        "one_floor_ms": row_bytes / same / 1e6,
        "many_floor_ms": max(row_bytes / same, sequences * row_bytes / rate) / 1e6,
    }


def bench_reuse(folder: Path, *, prompt_tokens: int, report: Report) -> dict[str, Any]:
    """A known conversation continued by 50 tokens, and the third user of a shared prefix, each
    against the same prompt cold: layer-rows and time to the first token."""
    bench = Bench(folder, EngineOptions(context=prompt_tokens + 50 + 2 * ANSWER_TOKENS))
    found: dict[str, list[dict[str, float]]] = {"next_turn": [], "third_user": []}
    for turn in range(TURNS):
        shared, tails = bench.prompt(turn, prompt_tokens), bench.prompt(100 + turn, 150)
        bench.flush()
        (answer,) = bench.run([shared], ANSWER_TOKENS).tokens.values()
        longer = (*shared, *answer, *tails[:50])
        found["next_turn"].append(_against_cold(bench, longer))
        users = [(*shared, *tails[i : i + 50]) for i in (0, 50, 100)]
        bench.flush()
        for user in users[:2]:
            bench.run([user], ANSWER_TOKENS)
        found["third_user"].append(_against_cold(bench, users[2]))
        report(f"turn {turn + 1} of {TURNS}")
    result = _head(folder, bench.threads) | {"prompt_tokens": prompt_tokens}
    for name, rows in found.items():
        result |= {f"{name}_{k}": statistics.median(r[k] for r in rows) for k in rows[0]}
    return result


def _against_cold(bench: Bench, prompt: tuple[int, ...]) -> dict[str, float]:
    warm = bench.run([prompt], ANSWER_TOKENS)
    bench.flush()
    cold = bench.run([prompt], ANSWER_TOKENS)
    _must_be_equal(_answers(warm), _answers(cold), "warm and cold")
    return {
        "cached_tokens": warm.cached,
        "rows": warm.layer_rows,
        "cold_rows": cold.layer_rows,
        "rows_share": warm.layer_rows / cold.layer_rows,
        "first_ms": warm.first_s * 1e3,
        "cold_first_ms": cold.first_s * 1e3,
        "first_share": warm.first_s / cold.first_s,
    }


def bench_trim(folder: Path, *, prompt_tokens: int, report: Report) -> dict[str, Any]:
    """One cold prompt with every decoder row, with the exact trim and with the bounded one."""
    trims: tuple[Trim, ...] = ("off", "exact", "bounded")
    context = prompt_tokens + ANSWER_TOKENS
    benches = {
        trim: Bench(folder, EngineOptions(context=context, sequences=2, decoder_trim=trim))
        for trim in trims
    }
    prompt = benches["off"].prompt(0, prompt_tokens)
    runs: dict[str, list[Served]] = {trim: [] for trim in trims}
    for turn in range(TURNS):
        for trim, bench in benches.items():
            bench.flush()
            runs[trim].append(bench.run([prompt], ANSWER_TOKENS))
        _must_be_equal(_answers(runs["off"][-1]), _answers(runs["exact"][-1]), "off and exact")
        report(f"turn {turn + 1} of {TURNS}")
    result = _head(folder, benches["off"].threads) | {"prompt_tokens": prompt_tokens}
    for name, served in runs.items():
        result |= {
            f"{name}_first_ms": statistics.median(s.first_s for s in served) * 1e3,
            f"{name}_processor_ms": statistics.median(s.first_processor_s for s in served) * 1e3,
            f"{name}_layer_rows": served[0].layer_rows,
        }
    return result


def _answers(served: Served) -> list[Any]:
    return [*served.tokens.values(), *served.logprobs.values()]


def _must_be_equal(one: object, other: object, what: str) -> None:
    if one != other:
        raise ConfigError(f"the answers {what} differ; a speed without equality says nothing")


def _head(folder: Path, threads: int) -> dict[str, Any]:
    return {"model": folder.name, "machine": processor_name(), "threads": threads, "turns": TURNS}


def _product_rate() -> float:
    """Billions of float32 operations per second of processor time in numpy's matrix product."""
    a = np.ones((768, 768), np.float32)
    times = []
    for _ in range(8):
        start = time.process_time()
        a @ a
        times.append(time.process_time() - start)
    return float(2 * 768**3 / min(times) / 1e9)
