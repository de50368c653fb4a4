"""Batch files: order, errors in their own line, the same bodies as over HTTP."""

import asyncio
import json

import pytest
from fake_engine import FakeEngine, steps_of, token_ids

from deodar.server.batch import run_batch
from deodar.server.service import Service
from deodar.server.settings import ServerSettings

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture
def engine(small_tokenizer):
    ids = token_ids(small_tokenizer, "Hm.</think>Yes.<｜end▁of▁sentence｜>")
    return FakeEngine(small_tokenizer.eos_id, lambda request: steps_of(ids))


def run(engine, tokenizer, lines, concurrency=4):
    service = Service.of(engine, tokenizer, ServerSettings(model_names=("m",), context=500))

    async def collect():
        raw = [x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines]
        return [(json.loads(o), good) async for o, good in run_batch(service, raw, concurrency)]

    return asyncio.run(collect())


def line(name, url=CHAT, **body):
    return {"custom_id": name, "method": "POST", "url": url, "body": {"messages": HELLO, **body}}


def test_answers_keep_the_order_whoever_is_first(engine, small_tokenizer):
    def script(request):
        return [(65,)] * (30 - 3 * len(engine.requests))

    engine.script = script
    engine.delay_s = 0.001
    outputs = run(engine, small_tokenizer, [line(f"r{i}") for i in range(9)])
    assert [out["custom_id"] for out, _ in outputs] == [f"r{i}" for i in range(9)]
    assert all(good and out["response"]["status_code"] == 200 for out, good in outputs)
    assert len({out["id"] for out, _ in outputs}) == 9


def test_at_most_so_many_run_at_once(engine, small_tokenizer):
    most = 0

    def script(request):
        nonlocal most
        most = max(most, len(engine._ends))
        return [(65,)] * 5

    engine.script = script
    run(engine, small_tokenizer, [line(f"r{i}") for i in range(12)], concurrency=3)
    assert most == 3


def test_bodies_are_those_of_the_routes(engine, small_tokenizer):
    (chat, _), (raw, _) = run(
        engine,
        small_tokenizer,
        [line("a"), {**line("b", "/v1/completions"), "body": {"prompt": "x", "max_tokens": 99}}],
    )
    body = chat["response"]["body"]
    assert body["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "Hm.",
    }
    assert body["usage"]["completion_tokens"] == 9
    assert raw["response"]["body"]["choices"][0]["text"] == "Hm.Yes."
    assert chat["error"] is None


@pytest.mark.parametrize(
    ("bad", "param"),
    [
        (b"not json", None),
        (b"[]", None),
        ({"url": CHAT, "body": {}}, "custom_id"),
        ({**line("x"), "method": "GET"}, "method"),
        ({**line("x"), "url": "/v1/embeddings"}, "url"),
        ({**line("x"), "url": 7}, "url"),
        ({**line("x"), "body": "hi"}, "body"),
        (line("x", stream=True), "stream"),
        (line("x", temperature=9), "temperature"),
    ],
)
def test_a_bad_line_is_an_error_of_its_own(engine, small_tokenizer, bad, param):
    outputs = run(engine, small_tokenizer, [line("a"), bad, b"  ", line("b")])
    assert [good for _, good in outputs] == [True, False, True]
    response = outputs[1][0]["response"]
    assert response["status_code"] == 400
    assert response["body"]["error"]["param"] == param


def test_an_engine_failure_is_an_error_of_its_own(engine, small_tokenizer):
    ids = token_ids(small_tokenizer, "x</think>y<｜end▁of▁sentence｜>")
    engine.script = lambda request: ["error"] if len(engine.requests) == 1 else steps_of(ids)
    outputs = run(engine, small_tokenizer, [line("a"), line("b")], concurrency=1)
    assert [out["response"]["status_code"] for out, _ in outputs] == [500, 200]
