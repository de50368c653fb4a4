"""`LLM` as scripts use it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import deodar
from deodar import LLM, SamplingParams
from deodar.errors import CheckpointError, RequestError


@pytest.fixture(scope="module")
def llm(tiny_path: Path) -> LLM:
    return LLM(str(tiny_path), context=256)


def test_one_text_several_texts_and_ids_agree(llm: LLM) -> None:
    params = SamplingParams(seed=1, max_tokens=8)
    (one,) = llm.generate("a cedar", params)
    several = llm.generate(["a cedar", "an oak"], params)
    by_ids = llm.generate([one.prompt_ids], params)
    for again in (several[0], by_ids[0]):  # the second time most of the prompt is cached
        assert again.usage.cached_tokens > 0
        assert replace(again, usage=one.usage) == one
    assert several[1].prompt_ids != one.prompt_ids
    assert one.prompt_ids[0] == llm.tokenizer.bos_id
    assert len(one.token_ids) == len(one.logprobs) == one.usage.completion_tokens == 8
    assert one.text == llm.tokenizer.decode(one.token_ids)
    assert one.seed == 1
    assert one.finish_reason == "length"


def test_results_keep_the_order_of_many_prompts(llm: LLM) -> None:
    params = [SamplingParams(seed=i, max_tokens=1 + i % 7) for i in range(40)]
    steps: list[tuple[int, int]] = []
    prompts = [[3 + i] for i in range(40)]
    outputs = llm.generate(prompts, params, progress=lambda *state: steps.append(state))
    assert [o.prompt_ids for o in outputs] == [(3 + i,) for i in range(40)]
    assert [o.seed for o in outputs] == list(range(40))
    assert steps == [(i, 40) for i in range(1, 41)]


def test_a_bad_prompt_does_not_stop_the_others(llm: LLM) -> None:
    outputs = llm.generate([[5] * 400, [5], [], [9999]], SamplingParams(max_tokens=2))
    assert "maximum context length is 256 tokens" in (outputs[0].error or "")
    assert outputs[1].error is None
    assert "empty" in (outputs[2].error or "")
    assert "9999" in (outputs[3].error or "")
    assert [o.finish_reason for o in outputs] == ["error", "length", "error", "error"]


def test_a_fraction_is_refused_and_a_misuse_leaves_the_engine_empty(llm: LLM) -> None:
    half = SamplingParams(seed=1.5, max_tokens=2)  # type: ignore[arg-type]
    assert "must be an integer" in (llm.generate("x", half)[0].error or "")
    with pytest.raises(TypeError):
        llm.generate([[1.5, 2]])  # type: ignore[list-item]
    fine = SamplingParams(max_tokens=2)
    with pytest.raises(AttributeError):
        llm.generate(["x", "y"], [fine, {"seed": 1}])  # type: ignore[list-item]
    assert [o.finish_reason for o in llm.generate("x", fine)] == ["length"]


def test_defaults_come_from_generation_config(llm: LLM) -> None:
    assert llm.default_sampling.top_p == 0.95  # as written by make-tiny
    greedy = SamplingParams(temperature=0, max_tokens=5)
    assert llm.generate("x", greedy)[0].token_ids == llm.generate("x", greedy)[0].token_ids


def test_chat_renders_and_parses(llm: LLM) -> None:
    hello = [{"role": "user", "content": "hello"}]
    params = SamplingParams(seed=2, max_tokens=6)
    (thinking,) = llm.chat(hello, params)
    plain, other = llm.chat([hello, [*hello, *hello]], params, thinking=False)
    assert thinking.prompt_ids != plain.prompt_ids != other.prompt_ids
    assert (thinking.text, plain.reasoning) == ("", "")
    with pytest.raises(RequestError, match=r"messages\[0\]"):
        llm.chat([{"role": "judge", "content": "x"}])
    with pytest.raises(RequestError, match="empty"):
        llm.chat([])


def test_lengths_must_agree_and_models_must_exist(llm: LLM) -> None:
    with pytest.raises(RequestError, match="2 entries for 1 prompts"):
        llm.generate("x", [SamplingParams(), SamplingParams()])
    with pytest.raises(CheckpointError, match="no model"):
        LLM("no-such-model")


def test_the_package_exports_three_names() -> None:
    assert deodar.__all__ == ["LLM", "SamplingParams", "__version__"]
    with pytest.raises(AttributeError, match="no attribute 'Engine'"):
        _ = deodar.Engine
