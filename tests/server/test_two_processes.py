"""`deodar serve` over the tiny checkpoint as users start it: two processes, faults from outside."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest
from metrics_page import change, samples

from deodar.checkpoint.tiny import make_tiny

HELLO = [{"role": "user", "content": "hello there"}]


class Served:
    """A running server: its process, a client and shorthands."""

    def __init__(self, folder):
        words = ["serve", str(folder), "--port", "0", "--test-hooks", "--context", "400"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "deodar.cli.main", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        text = "".join(self.process.stdout.readline() for _ in range(3))
        self.url = re.search(r"listening on (\S+)", text).group(1)
        self.http = httpx.Client(base_url=self.url, timeout=30)

    def post(self, path, **body):
        return self.http.post(path, json=body)

    def chat(self, **fields):
        body = {"messages": HELLO, "max_tokens": 8, "seed": 1, "temperature": 0, **fields}
        return self.post("/v1/chat/completions", **body)

    def complete(self, **fields):
        body = {"prompt": [5, 6, 7], "max_tokens": 8, "seed": 1, "ignore_eos": True, **fields}
        return self.post("/v1/completions", **body)

    def page(self):
        return samples(self.http.get("/metrics").text)

    def until(self, status, limit_s=30.0):
        end = time.monotonic() + limit_s
        while self.http.get("/health").status_code != status:
            assert time.monotonic() < end
            time.sleep(0.02)

    @property
    def engine_pid(self):
        return self.http.get("/server_info").json()["engine"]["pid"]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    make_tiny(folder)
    served = Served(folder)
    yield served
    served.http.close()
    served.process.terminate()
    assert served.process.wait(20) == 0


def test_an_answer_its_numbers_and_its_other_process(served):
    before = served.page()
    answer = served.chat().json()
    grown = change(before, served.page())
    assert grown["deodar_generation_tokens_total"] == answer["usage"]["completion_tokens"]
    assert grown["deodar_prompt_tokens_total"] == answer["usage"]["prompt_tokens"]
    assert grown["deodar_request_queue_seconds_count"] == 1
    assert grown["deodar_request_prefill_seconds_count"] == 1
    assert served.engine_pid != served.process.pid
    assert served.http.get("/health_generate").status_code == 200
    assert served.http.get("/flush_cache").status_code == 200


def test_log_probabilities_do_not_change_the_tokens(served):
    plain = served.complete(temperature=1).json()["choices"][0]
    listed = served.complete(temperature=1, logprobs=3).json()["choices"][0]
    assert listed["text"] == plain["text"]
    lists = served.complete(logprobs=3, temperature=0, return_tokens_as_token_ids=True)
    lists = lists.json()["choices"][0]["logprobs"]
    assert len(lists["tokens"]) == 8
    for token, logprob, top in zip(
        lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True
    ):
        assert len(top) == 3
        assert max(top, key=top.get) == token
        assert top[token] == logprob


def test_a_script_is_what_the_next_request_says(served):
    assert served.post("/test/script", steps=[[70, 71], [72]]).status_code == 200
    options = {"include_usage": True}
    text = served.complete(stream=True, stream_options=options, ignore_eos=False).text
    frames = [json.loads(f.removeprefix("data: ")) for f in text.split("\n\n")[:-2]]
    assert frames[-1]["usage"]["completion_tokens"] == 4
    same = served.complete(ignore_eos=False).json()
    assert same["usage"]["completion_tokens"] == 8


def test_a_scripted_answer_is_a_real_prefix(served):
    """The rows of scripted tokens were really run: what follows equals the plain continuation."""
    ids = [70, 71, 72, 73, 74]
    plain = served.complete(prompt=[5, 6, 7, *ids], temperature=0, max_tokens=6).json()
    served.post("/test/script", steps=[ids[:3], ids[3:]])
    scripted = served.complete(
        temperature=0, max_tokens=11, logprobs=0, return_tokens_as_token_ids=True
    ).json()
    tokens = [int(t.split(":")[1]) for t in scripted["choices"][0]["logprobs"]["tokens"]]
    assert tokens[:5] == ids
    again = served.complete(
        prompt=[5, 6, 7, *ids],
        temperature=0,
        max_tokens=6,
        logprobs=0,
        return_tokens_as_token_ids=True,
    ).json()
    expected = [int(t.split(":")[1]) for t in again["choices"][0]["logprobs"]["tokens"]]
    assert tokens[5:] == expected
    assert plain["choices"][0]["text"] == again["choices"][0]["text"]


def test_a_request_that_raises_takes_down_only_itself(served):
    body = {"prompt": [5, 6], "max_tokens": 390, "ignore_eos": True, "stream": True}
    with served.http.stream("POST", "/v1/completions", json=body) as mate:
        lines = mate.iter_lines()
        next(lines)
        served.post("/test/fault", die_at_token=3)
        text = served.complete(stream=True).text
        frames = [f.removeprefix("data: ") for f in text.split("\n\n") if f]
        assert frames[-1] == "[DONE]"
        assert "InjectedFault" in json.loads(frames[-2])["error"]["message"]
        rest = [line for line in lines if line]
    assert '"finish_reason":"length"' in rest[-2]
    assert served.complete().status_code == 200


def test_a_slow_chunk_is_waited_for(served):
    served.post("/test/fault", slow_chunk_ms=400)
    begin = time.monotonic()
    assert served.complete(max_tokens=1).status_code == 200
    assert time.monotonic() - begin >= 0.4


def test_a_frozen_engine_is_unhealthy_and_metrics_answer(served):
    served.post("/test/fault", freeze_ms=3500)
    served.until(503, 3.2)
    begin = time.monotonic()
    assert served.page()["deodar_engine_ready"] == {(): 0.0}
    assert time.monotonic() - begin < 0.5
    refused = served.chat()
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    served.until(200, 5)
    assert served.chat().status_code == 200


def test_death_ends_open_streams_and_the_engine_comes_back(served):
    before = served.page()
    pid = served.engine_pid
    body = {"prompt": [5, 6], "max_tokens": 300, "ignore_eos": True, "stream": True}
    with served.http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        os.kill(pid, signal.SIGKILL)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "engine_died"
    assert served.chat().status_code == 503
    served.until(200)
    assert served.engine_pid != pid
    assert served.chat().status_code == 200
    after = served.page()
    grown = change(before, after)
    assert grown["deodar_engine_restarts_total"] == 1
    assert grown["deodar_requests_ended_total/error"] == 1
    assert after["deodar_engine_steps_total"][()] >= before["deodar_engine_steps_total"][()]


def test_running_and_waiting_are_shown_and_gone_at_the_end(served):
    asker = threading.Thread(target=lambda: served.complete(prompt=[[5]] * 24, max_tokens=200))
    asker.start()
    seen = set()
    while asker.is_alive():
        load = served.http.get("/v1/loads").json()["loads"][0]
        seen.add((load["num_running_reqs"], load["num_waiting_reqs"]))
        time.sleep(0.02)
    assert (16, 8) in seen
    time.sleep(0.5)
    load = served.http.get("/v1/loads").json()["loads"][0]
    assert (load["num_running_reqs"], load["num_waiting_reqs"]) == (0, 0)
    assert load["num_used_tokens"] == 0


def test_a_limited_pool_refuses_what_never_fits_and_finishes_the_rest(served):
    """Last: the limit stays."""
    served.post("/test/fault", pool_tokens=60)
    answer = served.complete(prompt=[[5, 6]] * 10, max_tokens=20)
    assert answer.json()["usage"]["completion_tokens"] == 200
    refused = served.complete(max_tokens=100)
    assert refused.status_code == 400
    assert "holds 56" in refused.json()["error"]["message"]  # whole pages of 8 tokens
