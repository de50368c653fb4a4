"""A client that is gone before its request reaches the engine must not leave an answer running."""

import asyncio
import json

import pytest
from fake_engine import FakeEngine

from deodar.server.app import create_app
from deodar.server.settings import ServerSettings


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_left_while_its_body_was_prepared_ends_its_request(small_tokenizer, stream):
    engine = FakeEngine(small_tokenizer.eos_id, lambda request: ["wait"])
    settings = ServerSettings(model_names=("seedling",), context=2000)
    app = create_app(engine, small_tokenizer, settings)
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": stream})
    news = [{"type": "http.request", "body": body.encode(), "more_body": False}]

    async def receive():
        return news.pop() if news else {"type": "http.disconnect"}

    async def send(message):
        pass

    scope = {
        "type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    asyncio.run(asyncio.wait_for(app(scope, receive, send), 5))
    assert engine.aborted[0] == engine.requests[0].request_id
