"""Churn through the HTTP server: random requests, some abandoned, over a pool that is too small.

`Churn.play` sends them; `Churn.settle` waits for quiet and gives what is left. Used by the first
tier (a few hundred requests) and by the long one (ten thousand).
"""

import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx

from deodar.checkpoint.tiny import make_tiny

POOL_TOKENS = 2200
CONTEXT = 1300
LONG_ANSWER = 1100  # two fit as admission reserves for them, but not to their ends
LONG_EVERY = 500
AT_ONCE = 32


def make_checkpoint(folder):
    """The tiny checkpoint with room for long answers."""
    make_tiny(folder)
    path = Path(folder) / "config.json"
    config = json.loads(path.read_text())
    config["text_config"]["max_position_embeddings"] = CONTEXT
    path.write_text(json.dumps(config))


def rss_kib(pid):
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1])


class Churn:
    """A server over `folder` in two processes, and the traffic."""

    def __init__(self, folder, pool_tokens, seed=0):
        words = ["serve", str(folder), "--port", "0", "--test-hooks", "--context", str(CONTEXT)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "deodar.cli.main", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        text = "".join(self.process.stdout.readline() for _ in range(3))
        self.url = re.search(r"listening on (\S+)", text)[1]
        self.rng = random.Random(seed)
        self.prefixes = [self._ids(self.rng.randrange(24, 90)) for _ in range(12)]
        self.sent = self.abandoned = self.whole = 0
        self.canary = None
        self.memory = []
        info = httpx.get(self.url + "/server_info").json()
        self.pids = (self.process.pid, info["engine"]["pid"])
        pool = httpx.post(self.url + "/test/fault", json={"pool_tokens": pool_tokens})
        assert pool.status_code == 200

    def close(self):
        self.process.terminate()
        assert self.process.wait(40) == 0

    def page(self):
        lines = httpx.get(self.url + "/metrics").text.splitlines()
        page = {}
        for line in lines:
            if line.startswith("deodar_") and "_bucket" not in line:
                name, value = re.match(r"(\w+)\{.*\} (\S+)$", line).groups()
                page[name] = page.get(name, 0.0) + float(value)
        return page

    def play(self, count, *, sample_every=250):
        """Send `count` requests, at most AT_ONCE at a time."""
        asyncio.run(self._play(count, sample_every))

    def settle(self):
        """The metrics page once nothing runs, after the cache was flushed."""
        end = time.monotonic() + 30
        while self.page()["deodar_requests_running"] or self.page()["deodar_requests_waiting"]:
            assert time.monotonic() < end
            time.sleep(0.05)
        time.sleep(0.5)  # gauges are a little old
        kept = self.page()
        assert httpx.post(self.url + "/flush_cache?timeout=10").status_code == 200
        time.sleep(0.5)
        return kept, self.page()

    def _ids(self, count):
        return [self.rng.randrange(3, 500) for _ in range(count)]

    async def _play(self, count, sample_every):
        limits = httpx.Limits(max_connections=2 * AT_ONCE)
        async with httpx.AsyncClient(base_url=self.url, timeout=120, limits=limits) as http:
            room = asyncio.Semaphore(AT_ONCE)
            async with asyncio.TaskGroup() as group:
                for _ in range(count):
                    await room.acquire()
                    self.sent += 1
                    if self.sent % sample_every == 0:
                        self.memory.append([rss_kib(pid) for pid in self.pids])
                    one = group.create_task(self._one(http, self.sent))
                    one.add_done_callback(lambda _: room.release())

    async def _one(self, http, number):
        rng = random.Random(number)
        body = {"seed": number, "ignore_eos": True, "stream": True, "rid": f"r{number}"}
        body["prompt"] = self._ids(rng.randrange(1, 60))
        if rng.random() < 0.4:
            body["prompt"] = rng.choice(self.prefixes) + body["prompt"][: rng.randrange(1, 24)]
        body["max_tokens"] = rng.randrange(1, 16)
        if number % LONG_EVERY in (1, 2):
            body |= {"prompt": self._ids(30), "max_tokens": LONG_ANSWER}
        if number % 50 == 25:  # the same request again and again
            body |= {"prompt": self.prefixes[0] + [5, 6, 7], "max_tokens": 12, "seed": 1}
            await self._canary(http, body)
        elif rng.random() < 0.2 and body["max_tokens"] < LONG_ANSWER:
            self.abandoned += 1
            await self._abandon(http, body, rng)
        else:
            await self._read(http, body)

    async def _read(self, http, body):
        async with http.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200, await response.aread()
            lines = [line async for line in response.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in lines[-2], lines[-2]
        self.whole += 1

    async def _canary(self, http, body):
        body |= {"stream": False, "logprobs": 0, "return_tokens_as_token_ids": True}
        answer = await http.post("/v1/completions", json=body)
        shown = json.dumps(answer.json()["choices"])
        self.canary = self.canary or shown
        assert shown == self.canary
        self.whole += 1

    async def _abandon(self, http, body, rng):
        """Leave after some events, or before the first, or ask for the end by name."""
        way, events = rng.randrange(3), rng.randrange(0, body["max_tokens"])
        if way == 0:
            asking = asyncio.create_task(self._read_some(http, body, 10**9))
            await asyncio.sleep(rng.random() * 0.1)
            await http.post("/abort_request", json={"rid": body["rid"]})
            await asking
        elif way == 1:
            await self._read_some(http, body, events)
        else:
            asking = asyncio.create_task(self._read_some(http, body, 10**9))
            await asyncio.sleep(rng.random() * 0.2)
            asking.cancel()
            await asyncio.wait({asking})

    async def _read_some(self, http, body, events):
        async with http.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line and events <= 0:
                    return
                events -= bool(line)


def left(folder, count):
    """Play `count` requests over a new checkpoint; numbers for a report.

    Fails if anything is held at the end.
    """
    make_checkpoint(folder)
    churn = Churn(folder, POOL_TOKENS)
    try:
        begin = time.monotonic()
        churn.play(count)
        seconds = time.monotonic() - begin
        kept, empty = churn.settle()
        assert all(os.path.exists(f"/proc/{pid}") for pid in churn.pids)
    finally:
        churn.close()
    assert kept["deodar_kv_used_tokens"] == empty["deodar_kv_used_tokens"] == 0
    assert empty["deodar_snapshots"] == 0
    assert empty["deodar_engine_restarts_total"] == 0
    assert empty["deodar_preemptions_total"] > 0
    assert empty["deodar_cached_prompt_tokens_total"] > 0
    return {
        "requests": churn.sent,
        "read_to_the_end": churn.whole,
        "abandoned": churn.abandoned,
        "seconds": round(seconds, 1),
        "preemptions": int(empty["deodar_preemptions_total"]),
        "prompt_tokens": int(empty["deodar_prompt_tokens_total"]),
        "cached_tokens": int(empty["deodar_cached_prompt_tokens_total"]),
        "recomputed_tokens": int(empty["deodar_recomputed_tokens_total"]),
        "ended": int(empty["deodar_requests_ended_total"]),
        "disconnects": int(empty["deodar_client_disconnects_total"]),
        "snapshots_kept_before_flush": int(kept["deodar_snapshots"]),
        "rss_kib": churn.memory,
    }
