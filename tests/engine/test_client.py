"""The engine thread and its asyncio side: streams, aborts, refusals, shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from deodar.engine.client import InProcessClient
from deodar.engine.options import EngineOptions
from deodar.errors import RequestError
from deodar.types import GenerateRequest, SamplingParams, TokenEvent


@pytest.fixture
def client(tiny_path: Path) -> Iterator[InProcessClient]:
    client = InProcessClient.open(tiny_path, EngineOptions(context=256))
    yield client
    client.close()


def request(name: str, **sampling: object) -> GenerateRequest:
    params = SamplingParams(**{"seed": 3, "ignore_eos": True, **sampling})  # type: ignore[arg-type]
    return GenerateRequest(request_id=name, prompt_ids=(5, 6, 7), sampling=params)


async def collect(client: InProcessClient, one: GenerateRequest) -> list[TokenEvent]:
    return [event async for event in client.submit(one)]


def test_streams_run_side_by_side_and_end_once(client: InProcessClient) -> None:
    async def main() -> list[list[TokenEvent]]:
        return await asyncio.gather(
            *(collect(client, request(f"r{i}", seed=i % 4, max_tokens=20)) for i in range(24))
        )

    streams = asyncio.run(main())
    answers = [tuple(t for e in events for t in e.token_ids) for events in streams]
    assert all(len(answer) == 20 for answer in answers)
    assert answers == answers[:4] * 6
    assert len(set(answers[:4])) == 4
    assert all(events[-1].finish_reason == "length" for events in streams)


def test_abort_ends_the_stream_and_frees_the_slot(client: InProcessClient) -> None:
    async def main() -> list[TokenEvent]:
        events = []
        async for event in client.submit(request("long")):
            events.append(event)
            if len(events) == 3:
                await client.abort("long")
                await client.abort("nobody")
        await collect(client, request("next", max_tokens=2))
        return events

    events = asyncio.run(main())
    assert events[-1].finish_reason == "abort"
    assert events[-1].usage.completion_tokens == sum(len(e.token_ids) for e in events)


def test_a_refused_request_raises_and_hurts_nobody(client: InProcessClient) -> None:
    async def main() -> None:
        too_long = GenerateRequest(request_id="x", prompt_ids=(5,) * 300, sampling=SamplingParams())
        with pytest.raises(RequestError, match="maximum context length is 256 tokens"):
            await collect(client, too_long)
        assert (await collect(client, request("y", max_tokens=1)))[-1].finish_reason == "length"

    asyncio.run(main())


def test_close_ends_running_streams_and_refuses_new_ones(client: InProcessClient) -> None:
    async def main() -> None:
        first = asyncio.create_task(collect(client, request("a")))
        await asyncio.sleep(0.02)
        assert client.health()
        await asyncio.to_thread(client.close)
        assert (await first)[-1].finish_reason == "abort"
        assert not client.health()
        with pytest.raises(RequestError) as caught:
            await collect(client, request("b"))
        assert caught.value.status == 503

    asyncio.run(main())


def test_an_engine_that_dies_answers_everybody(client: InProcessClient) -> None:
    async def main() -> None:
        first = asyncio.create_task(collect(client, request("a")))
        await asyncio.sleep(0.02)

        def die() -> None:
            raise RuntimeError("the scheduler lost its mind")

        client._worker._engine.scheduler.plan = die  # type: ignore[method-assign,assignment]
        with pytest.raises(RequestError) as caught:
            await first
        assert (caught.value.status, caught.value.code) == (503, "engine_died")
        assert not client.health()

    asyncio.run(main())
