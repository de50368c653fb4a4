"""A client that is gone before its request reaches the engine must not leave an answer running."""

import asyncio
import json

import pytest
from fake_engine import FakeEngine
from http_server import SETTINGS

from deodar.server.app import create_app

CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
RAW = ("/v1/completions", {"prompt": ["a", "b", "c"]})


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("path", "fields"), [CHAT, RAW])
def test_a_client_that_left_while_its_body_was_prepared_ends_its_request(
    small_tokenizer, stream, path, fields
):
    engine = FakeEngine(small_tokenizer.eos_id, lambda request: ["wait"])
    app = create_app(engine, small_tokenizer, SETTINGS)
    body = json.dumps({**fields, "stream": stream})
    news = [{"type": "http.request", "body": body.encode(), "more_body": False}]

    async def receive():
        return news.pop() if news else {"type": "http.disconnect"}

    async def send(message):
        pass

    scope = {
        "type": "http", "method": "POST", "path": path, "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip
    asyncio.run(asyncio.wait_for(app(scope, receive, send), 5))
    assert set(engine.aborted) == {request.request_id for request in engine.requests}
    assert len(engine.requests) == len(fields.get("prompt", "x"))
