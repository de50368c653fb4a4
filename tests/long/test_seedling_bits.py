"""Second tier: determinism of the shipped model at lengths the first tier has no time for."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from deodar import LLM, SamplingParams
from deodar.checkpoint.loader import Checkpoint
from deodar.checkpoint.locate import resolve_model
from deodar.model.cpu import CpuModel

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
QUESTIONS = (
    "What is a volcano?", "What is 23 + 58?", "Repeat exactly: plinth and gorsal",
    "Sort these numbers: 7, 2, 19, 4", "What is the capital of Italy?", "Hello! Who are you?",
    "Explain a compiler.", "Write a haiku about rain.",
)  # fmt: skip


def seedling() -> Path:
    return resolve_model("seedling")


def long_prompt(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 8160, count).tolist()


def last_logits(ids: list[int], cuts: list[int], threads: int) -> np.ndarray:
    model = CpuModel(
        Checkpoint.open(seedling()), slots=1, context=8192, max_rows=1024, threads=threads
    )
    for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        count = stop - start
        rows = model.run_rows(ids[start:stop], [0] * count, list(range(start, stop)), [count - 1])
    return rows[0].copy()


def test_any_cut_of_a_long_prompt_gives_the_same_bits() -> None:
    ids = long_prompt(5000, seed=1)
    even = list(range(1000, 5000, 1000))
    whole = last_logits(ids, even, threads=1)
    rng = random.Random(2)
    for threads in (1, 2):
        cuts = [0]
        while len(ids) - cuts[-1] > 1024:
            cuts.append(cuts[-1] + rng.choice([1, 2, 3, 63, 127, 128, 129, 500, 1024]))
        assert np.array_equal(whole, last_logits(ids, cuts[1:], threads))


def test_answers_alone_and_in_company_are_the_same() -> None:
    conversations = [[{"role": "user", "content": QUESTIONS[i % 8]}] for i in range(64)]
    sampling = [SamplingParams(temperature=0.8, seed=i, max_tokens=120) for i in range(64)]
    llm = LLM()
    together = llm.chat(conversations, sampling)
    for i in range(0, 64, 4):
        (alone,) = llm.chat([conversations[i]], [sampling[i]])
        assert alone.token_ids == together[i].token_ids
        assert alone.logprobs == together[i].logprobs
