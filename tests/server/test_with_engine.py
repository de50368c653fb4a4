"""The whole way once: HTTP, renderer, tokenizer, engine and parser on the tiny checkpoint."""

import asyncio
import time

import httpx
import openai
import pytest
from http_server import Server

from deodar.checkpoint.loader import read_config
from deodar.checkpoint.tiny import make_tiny
from deodar.engine.client import InProcessClient
from deodar.server.app import create_app
from deodar.server.settings import ServerSettings
from deodar.text.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "hello there"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    make_tiny(folder)
    engine = InProcessClient.open(folder)
    settings = ServerSettings(
        model_names=("tiny",), context=read_config(folder).max_position_embeddings
    )
    server = Server(create_app(engine, Tokenizer.from_folder(folder), settings))
    server.start()
    yield openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    server.stop()
    engine.close()


def ask(client, seed, **fields):
    return client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=24, seed=seed, **fields
    )


@pytest.mark.parametrize("kind", ["enabled", "disabled"])
def test_whole_and_streamed_answers_are_the_same(served, kind):
    extra = {"thinking": {"type": kind}}
    whole = ask(served, 0, extra_body=extra)
    message = whole.choices[0].message
    texts = {"content": "", "reasoning_content": ""}
    for chunk in ask(served, 0, extra_body=extra, stream=True):
        for name in texts:
            texts[name] += getattr(chunk.choices[0].delta, name, None) or ""
    assert texts["content"] == message.content
    assert texts["reasoning_content"] == getattr(message, "reasoning_content", "")
    assert whole.usage.completion_tokens == 24 or whole.choices[0].finish_reason == "stop"
    assert whole.seed == 0


def test_an_answer_does_not_depend_on_its_company(served):
    def text(answer):
        message = answer.choices[0].message
        return getattr(message, "reasoning_content", ""), message.content

    alone = [text(ask(served, seed)) for seed in range(4)]
    assert len(set(alone)) == 4

    async def together():
        client = openai.AsyncOpenAI(base_url=served.base_url, api_key="none", max_retries=0)
        async with client:
            return await asyncio.gather(*(ask(client, seed % 4) for seed in range(12)))

    assert [text(answer) for answer in asyncio.run(together())] == alone * 3


def test_a_request_without_a_seed_tells_the_one_that_it_drew(served):
    first = ask(served, None)
    again = ask(served, first.seed)
    assert again.choices[0].message == first.choices[0].message


def test_abandoned_streams_do_not_hold_the_engine(served):
    url = str(served.base_url)
    body = {"messages": HELLO, "stream": True, "ignore_eos": True, "max_tokens": 400}
    for _ in range(40):
        with httpx.stream("POST", url + "chat/completions", json=body) as response:
            next(response.iter_bytes())
    begin = time.monotonic()
    ask(served, 1)
    assert time.monotonic() - begin < 5


def test_a_prompt_longer_than_the_context_never_reaches_the_engine(served):
    with pytest.raises(openai.BadRequestError, match="maximum context length is 512 tokens"):
        served.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "word " * 2000}]
        )
