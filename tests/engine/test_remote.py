"""The engine process: same answers, death, freezes, restarts, and an API side without torch."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deodar.engine.hooks import Fault, Script
from deodar.engine.remote import RemoteClient
from deodar.errors import DeodarError, RequestError
from deodar.types import GenerateRequest, SamplingParams

TOY = [sys.executable, str(Path(__file__).with_name("toy_engine.py"))]


def request(name, **sampling):
    params = SamplingParams(**{"temperature": 0, "seed": 0, "max_tokens": 5, **sampling})
    return GenerateRequest(request_id=name, prompt_ids=(10, 20), sampling=params)


async def tokens(client, one):
    return [t async for event in client.submit(one) for t in event.token_ids]


async def until(condition, limit_s=15.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it never happened"
        await asyncio.sleep(0.02)


@pytest.fixture
def client():
    client = RemoteClient(TOY, stall_s=0.8)
    yield client
    client.close()


def test_answers_refusals_aborts_and_calls(client):
    async def main():
        answers = await asyncio.gather(*(tokens(client, request(f"r{i}")) for i in range(12)))
        assert answers == [[21, 22, 23, 24, 25]] * 12
        with pytest.raises(RequestError) as caught:
            await tokens(client, request("x", top_p=0.0))
        assert (caught.value.param, caught.value.status) == ("top_p", 400)
        stream = client.submit(request("long", max_tokens=None))
        await anext(stream)
        with pytest.raises(RequestError, match="already in use"):
            await tokens(client, request("long"))
        with pytest.raises(RequestError) as caught:
            await client.flush_cache()
        assert caught.value.code == "busy"
        await client.abort("long")
        await client.abort("nobody")
        assert [event.finish_reason async for event in stream][-1] == "abort"
        await client.flush_cache()

    asyncio.run(main())
    assert client.info().vocab_size == 300
    assert client.info().pid == client._child.process.pid


def test_death_ends_streams_refuses_and_recovers(client):
    async def main():
        before = client.info().pid
        stream = client.submit(request("a", max_tokens=None))
        await anext(stream)
        steps = client.stats().steps
        os.kill(before, signal.SIGKILL)
        with pytest.raises(RequestError) as caught:
            async for _ in stream:
                pass
        assert (caught.value.status, caught.value.code) == (503, "engine_died")
        assert not client.health()
        with pytest.raises(RequestError) as caught:
            await tokens(client, request("b"))
        assert (caught.value.status, caught.value.code) == (503, "engine_not_ready")
        with pytest.raises(RequestError):
            await client.flush_cache()
        await until(client.health)
        assert client.info().pid != before
        assert await tokens(client, request("a")) == [21, 22, 23, 24, 25]
        stats = client.stats()
        assert (stats.restarts, stats.ready) == (1, True)
        assert stats.steps >= steps

    asyncio.run(main())


def test_a_frozen_loop_is_not_ready_and_comes_back(client):
    async def main():
        await client.inject(Fault(freeze_ms=1800))
        assert client.health()
        await until(lambda: not client.health(), 1.7)
        assert client.stats().silent_s > 0.8
        assert not client.stats().ready
        assert await tokens(client, request("a")) == [21, 22, 23, 24, 25]  # it waits
        await until(client.health, 3)

    asyncio.run(main())


def test_a_stopped_process_is_not_ready(client):
    async def main():
        os.kill(client.info().pid, signal.SIGSTOP)
        try:
            await until(lambda: not client.health(), 3)
        finally:
            os.kill(client.info().pid, signal.SIGCONT)
        await until(client.health, 3)

    asyncio.run(main())


def test_a_loop_that_hangs_too_long_is_replaced():
    client = RemoteClient(TOY, stall_s=0.3, hang_s=0.8)

    async def main():
        before = client.info().pid
        await client.inject(Fault(freeze_ms=60_000))
        await until(lambda: client.info().pid != before and client.health())
        assert await tokens(client, request("a")) == [21, 22, 23, 24, 25]

    asyncio.run(main())
    client.close()


def test_a_request_that_raises_ends_only_itself(client):
    async def main():
        mate = asyncio.create_task(tokens(client, request("mate", max_tokens=60)))
        await asyncio.sleep(0.02)
        await client.inject(Fault(die_at_token=3))
        events = [event async for event in client.submit(request("bad"))]
        assert [e.token_ids for e in events] == [(21,), (22,), ()]
        assert (events[-1].finish_reason, events[-1].error) == (
            "error",
            "the engine failed: InjectedFault",
        )
        assert len(await mate) == 60
        assert client.stats().restarts == 0

    asyncio.run(main())


def test_scripts_come_in_their_steps_and_end(client):
    async def main():
        await client.inject(Script(steps=((5, 6, 7), (8,))))
        steps = [e.token_ids async for e in client.submit(request("s", max_tokens=50))]
        assert steps == [(5, 6, 7), (8,), (1,)]
        with pytest.raises(RequestError, match="steps holds 300, it must be from 0 to 299"):
            await client.inject(Script(steps=((300,),)))
        assert await tokens(client, request("next")) == [21, 22, 23, 24, 25]

    asyncio.run(main())


def test_a_limited_pool_makes_requests_wait_their_turn(client):
    async def main():
        await client.inject(Fault(pool_tokens=20))
        answers = await asyncio.gather(*(tokens(client, request(f"r{i}")) for i in range(8)))
        assert answers == [[21, 22, 23, 24, 25]] * 8
        with pytest.raises(RequestError, match="the KV memory holds 20"):
            await tokens(client, request("big", max_tokens=50))

    asyncio.run(main())


def test_an_engine_that_cannot_load_says_why():
    with pytest.raises(DeodarError, match=r"^the shard is missing$"):
        RemoteClient([*TOY, "--fail", "the shard is missing"])
    with pytest.raises(DeodarError, match="ended with status 7 while loading"):
        RemoteClient([sys.executable, "-c", "import sys; sys.exit(7)"])


def test_closing_ends_streams_and_the_process(client):
    async def main():
        stream = client.submit(request("a", max_tokens=None))
        await anext(stream)
        await asyncio.to_thread(client.close)
        assert [event.finish_reason async for event in stream][-1] == "abort"
        assert not client.health()

    asyncio.run(main())
    assert client._child.process.returncode == 0


def test_closing_while_it_loads_again_does_not_wait():
    client = RemoteClient([*TOY, "--load-s", "0.5"])
    os.kill(client.info().pid, signal.SIGKILL)
    time.sleep(0.2)
    begin = time.monotonic()
    client.close()
    assert time.monotonic() - begin < 5


def test_the_engine_ends_when_the_api_process_is_killed():
    code = (
        "import sys, time; from deodar.engine.remote import RemoteClient;"
        f"c = RemoteClient({TOY!r}); print(c.info().pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    end = time.monotonic() + 10
    while time.monotonic() < end:
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the engine outlived its client")


def test_the_api_side_loads_neither_torch_nor_kernels():
    code = (
        "import sys, deodar.cli.serve, deodar.engine.remote;"
        "bad = {'torch', 'numba', 'triton'} & set(sys.modules);"
        "sys.exit(', '.join(sorted(bad)) or None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
