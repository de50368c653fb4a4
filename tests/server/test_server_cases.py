"""Cases of the specification that concern the whole server in its two processes."""

import asyncio
import json
import random
import statistics
import time

import httpx
import pytest
from churn import CONTEXT, Churn, make_checkpoint

WINDOW = GRAIN = 8
JSON = {"content-type": "application/json"}
SESSIONS, TURNS = 8, 12


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cases")
    make_checkpoint(folder)
    server = Churn(folder, 16 * CONTEXT)
    yield server.url
    server.close()


async def turn(http, prompt, count):
    body = {"prompt": prompt, "max_tokens": count, "ignore_eos": True, "seed": 1, "logprobs": 0}
    body["return_tokens_as_token_ids"] = True
    answer = (await http.post("/v1/completions", json=body)).json()
    names = answer["choices"][0]["logprobs"]["tokens"]
    ids = [int(name.removeprefix("token_id:")) for name in names]
    return ids, answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_d19_a_session_pays_for_what_is_new_with_seven_others_running(url):
    async def session(http, seed):
        rng = random.Random(seed)
        text = [rng.randrange(3, 500) for _ in range(60)]
        known = 0
        for _ in range(TURNS):
            answer, cached = await turn(http, text, 15)
            assert cached >= known - GRAIN - WINDOW
            known = len(text) + len(answer)
            text = text + answer + [rng.randrange(3, 500) for _ in range(21)]

    async def main():
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            await asyncio.gather(*(session(http, seed) for seed in range(SESSIONS)))

    asyncio.run(main())


def test_d23_a_very_long_prompt_does_not_freeze_the_others(url):
    """Ten streams, then 2 MB of chat; their gaps, and how long health and metrics take."""
    gaps = {"before": [], "after": []}
    times = []

    async def stream(http, phase):
        body = {"prompt": [5, 6], "max_tokens": 1200, "ignore_eos": True, "stream": True}
        async with http.stream("POST", "/v1/completions", json=body) as response:
            last = time.monotonic()
            async for line in response.aiter_lines():
                if line and phase["name"] == "over":
                    return
                if line:
                    now = time.monotonic()
                    gaps[phase["name"]].append(now - last)
                    last = now

    async def main():
        phase = {"name": "before"}
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            streams = [asyncio.create_task(stream(http, phase)) for _ in range(10)]
            await asyncio.sleep(0.4)
            phase["name"] = "after"
            text = "word and more of it " * 100_000
            body = json.dumps({"messages": [{"role": "user", "content": text}]})
            asking = asyncio.create_task(
                http.post("/v1/chat/completions", content=body, headers=JSON)
            )
            while not asking.done():
                begin = time.monotonic()
                await http.get("/metrics")
                assert (await http.get("/health")).status_code == 200
                times.append((time.monotonic() - begin) / 2)
                await asyncio.sleep(0.02)
            phase["name"] = "over"
            await asyncio.gather(*streams)
            return asking.result()

    answer = asyncio.run(main())
    assert answer.status_code == 400  # longer than the context
    assert max(gaps["after"]) < 3 * statistics.median(gaps["before"]) + 0.5
    assert statistics.median(times) < 0.2
