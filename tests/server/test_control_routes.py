"""Routes that look at the server or change its state: what they do and who may use them."""

import asyncio
import threading
import time

import httpx
import pytest
from fake_engine import FakeEngine, steps_of, token_ids
from http_server import SETTINGS
from starlette.requests import Request

from deodar import __version__
from deodar.engine.hooks import Fault, Script
from deodar.server import control
from deodar.server.app import create_app

HELLO = [{"role": "user", "content": "hi"}]


def client_of(engine, tokenizer, host="127.0.0.1", **settings):
    """A client of an application of its own, seen as coming from `host`."""
    from dataclasses import replace

    app = create_app(engine, tokenizer, replace(SETTINGS, **settings))
    transport = httpx.ASGITransport(app, client=(host, 1234))
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def call(client, *requests):
    async def main():
        async with client:
            return [await client.request(method, path, **rest) for method, path, rest in requests]

    return asyncio.run(main())


@pytest.fixture
def engine(small_tokenizer):
    return FakeEngine(small_tokenizer.eos_id, lambda request: [(65,), (66,)])


def test_looking_is_open_and_tells_no_secret(small_tokenizer, engine):
    client = client_of(engine, small_tokenizer, "10.0.0.9", admin_key="s3cret")
    paths = ("/server_info", "/get_server_info", "/model_info", "/v1/loads", "/load", "/version")
    answers = call(client, *(("GET", path, {}) for path in (*paths, "/metrics", "/health")))
    assert [a.status_code for a in answers] == [200] * 8
    assert not any("s3cret" in a.text for a in answers)
    info, loads = answers[0].json(), answers[3].json()
    assert info == answers[1].json()
    assert (info["context"], info["engine"]["numerics"], info["test_hooks"]) == (2000, "kv", False)
    assert loads["loads"][0]["num_running_reqs"] == 0
    assert answers[5].json() == {"version": __version__}


CHANGES = [
    ("POST", "/flush_cache"),
    ("GET", "/flush_cache"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/abort_request"),
    ("POST", "/abort_requests"),
    ("POST", "/test/fault"),
    ("POST", "/test/script"),
]
BODY = {"json": {"steps": [[1]]}}


@pytest.mark.parametrize(("method", "path"), CHANGES)
@pytest.mark.parametrize(
    ("host", "key", "headers", "allowed"),
    [
        ("127.0.0.1", None, {}, True),
        ("::1", None, {}, True),
        ("::ffff:127.0.0.1", None, {}, True),
        ("10.0.0.9", None, {}, False),
        ("unknown", None, {}, False),
        ("10.0.0.9", "k€y", {}, False),
        ("127.0.0.1", "key", {}, False),
        ("10.0.0.9", "key", {"authorization": "Bearer key"}, True),
        ("10.0.0.9", "key", {"authorization": "bearer  key"}, True),
        ("10.0.0.9", "key", {"x-api-key": "key"}, True),
        ("10.0.0.9", "key", {"x-api-key": "kex"}, False),
        ("10.0.0.9", "key", {"authorization": "Basic key"}, False),
    ],
)
def test_who_may_change_state(small_tokenizer, engine, method, path, host, key, headers, allowed):
    client = client_of(engine, small_tokenizer, host, admin_key=key, test_hooks=True)
    (answer,) = call(client, (method, path, {**BODY, "headers": headers}))
    if allowed:
        assert answer.status_code in (200, 400)
    else:
        assert answer.status_code == (403 if key is None else 401)
        assert (engine.flushed, engine.injected) == (0, [])


def test_without_test_hooks_the_routes_do_not_exist(small_tokenizer, engine):
    client = client_of(engine, small_tokenizer)
    answers = call(client, ("POST", "/test/fault", BODY), ("POST", "/test/script", BODY))
    assert [a.status_code for a in answers] == [404, 404]


def test_injections_reach_the_engine_and_mistakes_are_named(small_tokenizer, engine):
    client = client_of(engine, small_tokenizer, test_hooks=True)
    answers = call(
        client,
        ("POST", "/test/fault", {"json": {"freeze_ms": 5}}),
        ("POST", "/test/fault", {"json": {"slow_chunk_ms": 1, "die_at_token": 2}}),
        ("POST", "/test/script", {"json": {"steps": [[1, 2], [3]]}}),
        ("POST", "/test/fault", {"json": {"explode": 1}}),
        ("POST", "/test/script", {"json": {"steps": [["a"]]}}),
    )
    assert [a.status_code for a in answers] == [200, 200, 200, 400, 400]
    assert "explode" in answers[3].json()["error"]["message"]
    assert engine.injected == [
        Fault(freeze_ms=5),
        Fault(slow_chunk_ms=1, die_at_token=2),
        Script(steps=((1, 2), (3,))),
    ]


def test_flush_refuses_waits_or_does_it(place):
    assert place.http.post("/flush_cache").status_code == 200
    for bad in ("-1", "x", "1e9", "nan"):
        answer = place.http.post(f"/flush_cache?timeout={bad}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "timeout")
    ids = token_ids(place.tokenizer, "abc")
    place.engine.script = lambda request: [*steps_of(ids), "wait"]
    with place.http.stream("POST", "/v1/chat/completions", json=stream_body()) as response:
        lines = response.iter_lines()
        next(lines)
        assert place.http.post("/flush_cache").status_code == 400
        flushed = place.engine.flushed
        waiter = threading.Thread(target=place.http.post, args=("/flush_cache?timeout=9",))
        waiter.start()
        time.sleep(0.1)
        assert place.engine.flushed == flushed
        place.http.post("/abort_request", json={"abort_all": True})
        waiter.join()
        assert place.engine.flushed == flushed + 1


def stream_body(**fields):
    return {"messages": HELLO, "stream": True, **fields}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/abort_request", {"rid": "mine"}),
        ("/abort_requests", {"request_ids": ["other", "mine"]}),
        ("/abort_request", {"abort_all": True}),
    ],
)
def test_an_aborted_answer_ends_with_what_it_had(place, path, body):
    ids = token_ids(place.tokenizer, "x</think>abc")
    place.engine.script = lambda request: [*steps_of(ids), "wait"]
    done = {}

    def ask():
        done["answer"] = place.post({"messages": HELLO, "rid": "mine"}).json()

    asker = threading.Thread(target=ask)
    asker.start()
    place.wait_until(lambda: place.engine.waiting)
    other = place.http.post("/abort_request", json={"rid": "unknown"})
    assert (other.status_code, other.json()) == (200, {"aborted": []})
    (aborted,) = place.http.post(path, json=body).json()["aborted"]
    asker.join()
    choice = done["answer"]["choices"][0]
    assert choice["finish_reason"] == "abort"
    assert choice["message"]["content"] == "abc"
    assert done["answer"]["id"] == aborted


@pytest.mark.parametrize("body", [{"rid": 3}, {"request_ids": "x"}, {"request_ids": [1]}])
def test_wrong_abort_bodies_are_refused(place, body):
    assert place.http.post("/abort_request", json=body).status_code == 400


def test_health_generate_makes_a_token(place):
    assert place.http.get("/health_generate").status_code == 200
    (probe,) = place.engine.requests
    assert (len(probe.prompt_ids), probe.sampling.max_tokens) == (1, 1)


def test_health_generate_gives_up(place, monkeypatch):
    monkeypatch.setattr(control, "PROBE_S", 0.3)
    place.engine.script = lambda request: ["wait"]
    answer = place.http.get("/health_generate")
    assert answer.status_code == 503
    assert place.engine.aborted == [place.engine.requests[0].request_id]


def test_a_full_queue_does_not_make_the_probe_fail(place):
    """The probe itself never runs, but somebody else's token shows that steps progress."""
    place.engine.delay_s = 0.05
    ids = token_ids(place.tokenizer, "a" * 60)
    place.engine.script = lambda request: (
        ["wait"] if request.request_id.startswith("probe") else steps_of(ids)
    )
    with place.http.stream("POST", "/v1/chat/completions", json=stream_body()) as response:
        lines = response.iter_lines()
        next(lines)
        assert place.http.get("/health_generate").status_code == 200


def test_a_client_without_an_address_is_local():
    scope = {"type": "http", "client": None, "headers": []}
    assert control._is_loopback(Request(scope))
