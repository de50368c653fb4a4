"""A real server on loopback over a scripted engine."""

import time
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
from fake_engine import FakeEngine, steps_of, token_ids
from http_server import SETTINGS, Server

from deodar.server.app import create_app

ANSWER = "Let me see.</think>It is 12.<｜end▁of▁sentence｜>"


@dataclass
class Place:
    """The running server, its engine and two clients."""

    url: str
    engine: FakeEngine
    tokenizer: Any
    http: httpx.Client
    client: openai.OpenAI

    def script(self, text, size=1):
        ids = token_ids(self.tokenizer, text)
        self.engine.script = lambda request: steps_of(ids, size)

    def wait_until(self, condition):
        end = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.01)

    def post(self, body, **options):
        return self.http.post("/v1/chat/completions", json=body, **options)


@pytest.fixture(scope="session")
def running(small_tokenizer):
    engine = FakeEngine(small_tokenizer.eos_id, lambda request: [])
    server = Server(create_app(engine, small_tokenizer, SETTINGS))
    server.start()
    with httpx.Client(base_url=server.url, timeout=10) as http:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        yield Place(server.url, engine, small_tokenizer, http, client)
    server.stop()


@pytest.fixture
def place(running):
    running.engine.requests.clear()
    running.engine.aborted.clear()
    running.engine.healthy = True
    running.engine.delay_s = 0.0
    running.engine.cached_tokens = 0
    running.engine.waiting = 0
    running.script(ANSWER)
    return running
