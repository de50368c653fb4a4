"""Routes that look at the server or change its state (spec api 3.1).

What only looks is open; what changes state needs the admin key, or a client on loopback if there is
no key. Everything but `health_generate` and `flush_cache` answers without waiting for the engine.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Any
from uuid import uuid4

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from deodar import __version__
from deodar.engine.hooks import Fault, Script
from deodar.errors import RequestError
from deodar.server.json import dump, load_object
from deodar.server.metrics import CONTENT_TYPE
from deodar.server.service import Service, read_json_body, service_of
from deodar.types import GenerateRequest, SamplingParams

PROBE_S = 20.0
_LONGEST_WAIT_S = 600.0
Route = Callable[[Request], Awaitable[Response]]


def guarded(route: Route) -> Route:
    """The route for those who may change state; 401 for a wrong key, 403 for strangers."""

    async def check(request: Request) -> Response:
        key = service_of(request).settings.admin_key
        if key is not None:
            given = request.headers.get("x-api-key", "")
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            given = token.strip() if scheme.lower() == "bearer" else given
            if not hmac.compare_digest(given.encode(), key.encode()):
                raise RequestError("the admin key is missing or wrong", status=401)
        elif not _is_loopback(request):
            raise RequestError(
                "without an admin key this route answers to loopback only", status=403
            )
        return await route(request)

    return check


async def metrics(request: Request) -> Response:
    """The Prometheus page."""
    return Response(service_of(request).metrics.page(), headers={"content-type": CONTENT_TYPE})


async def version(request: Request) -> Response:
    """The version of the package."""
    return _json({"version": __version__})


async def server_info(request: Request) -> Response:
    """What runs here and how; no secrets."""
    service = service_of(request)
    stats, settings = service.engine.stats(), service.settings
    return _json(
        {
            "version": __version__,
            "model_names": settings.model_names,
            "context": settings.context,
            "default_sampling": settings.sampling,
            "default_thinking": settings.default_thinking,
            "default_effort": settings.default_effort,
            "test_hooks": settings.test_hooks,
            "started": service.started,
            "engine": service.engine.info(),
            "engine_ready": stats.ready,
            "engine_restarts": stats.restarts,
        }
    )


async def model_info(request: Request) -> Response:
    """The served model in SGLang's words."""
    service = service_of(request)
    return _json(
        {
            "model_path": service.settings.model_names[0],
            "is_generation": True,
            "max_model_len": service.settings.context,
            "vocab_size": service.tokenizer.vocab_size,
        }
    )


async def loads(request: Request) -> Response:
    """Running and waiting requests, used and total tokens, per rank; there is one."""
    stats = service_of(request).engine.stats()
    load = {
        "dp_rank": 0,
        "num_running_reqs": stats.running,
        "num_waiting_reqs": stats.waiting,
        "num_total_reqs": stats.running + stats.waiting,
        "num_waiting_tokens": stats.waiting_tokens,
        "num_used_tokens": stats.used_tokens,
        "max_total_num_tokens": stats.total_tokens,
        "token_usage": stats.used_tokens / stats.total_tokens if stats.total_tokens else 0.0,
    }
    return _json({"version": __version__, "dp_rank_count": 1, "loads": [load]})


async def load(request: Request) -> Response:
    """One number: requests that run or wait."""
    stats = service_of(request).engine.stats()
    return _json({"server_load": stats.running + stats.waiting})


async def health_generate(request: Request) -> Response:
    """200 once a token was made, the probe's own or another request's; 503 after 20 seconds."""
    service = service_of(request)
    probe = GenerateRequest(
        request_id=f"probe-{uuid4().hex}",
        prompt_ids=(service.tokenizer.bos_id,),
        sampling=SamplingParams(temperature=0, max_tokens=1, seed=0, ignore_eos=True),
        arrival=time.monotonic(),
    )
    before = service.ledger.tokens
    own = asyncio.create_task(_first_token(service, probe))
    try:
        deadline = time.monotonic() + PROBE_S
        while time.monotonic() < deadline:
            done, _ = await asyncio.wait({own}, timeout=0.1)
            if done:
                own.result()
            if done or service.ledger.tokens > before:
                return _json({"status": "ok"})
    finally:
        own.cancel()
        await asyncio.wait({own})
        await service.engine.abort(probe.request_id)
    raise RequestError(
        f"no token was made within {PROBE_S:.0f} s", status=503, code="engine_not_ready"
    )


async def flush_cache(request: Request) -> Response:
    """Forget all reusable state; `?timeout=S` waits for running requests first."""
    service = service_of(request)
    given = request.query_params.get("timeout", "0")
    try:
        wait_s = float(given)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= _LONGEST_WAIT_S:
        raise RequestError(
            f"timeout is {given[:20]}, it must be from 0 to {_LONGEST_WAIT_S:.0f}", param="timeout"
        )
    deadline = time.monotonic() + wait_s
    while True:
        try:
            await service.engine.flush_cache()
            return _json({"status": "ok"})
        except RequestError as error:
            if error.code != "busy" or time.monotonic() >= deadline:
                raise
        await asyncio.sleep(0.02)


async def abort_request(request: Request) -> Response:
    """End requests: `rid`, a list `request_ids`, or `abort_all`. Unknown ids do nothing."""
    service = service_of(request)
    body = load_object(await read_json_body(request, service.settings.max_body_bytes))
    names = body.get("request_ids", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RequestError("request_ids must be a list of texts", param="request_ids")
    rid = body.get("rid")
    if rid is not None and not isinstance(rid, str):
        raise RequestError("rid must be a text", param="rid")
    wanted = [*names, *([rid] if rid else [])]
    records = [record for name in wanted for record in service.ledger.named(name)]
    if body.get("abort_all") is True:
        records = list(service.ledger.open.values())
    for record in records:
        record.asked_to_end = True
        await service.engine.abort(record.request_id)
    return _json({"aborted": [record.request_id for record in records]})


async def test_fault(request: Request) -> Response:
    """Cause a fault (`--test-hooks` only)."""
    return await _inject(request, Fault)


async def test_script(request: Request) -> Response:
    """The token steps of the next request (`--test-hooks` only)."""
    return await _inject(request, Script)


async def _inject(request: Request, kind: type[Fault] | type[Script]) -> Response:
    service = service_of(request)
    fields = load_object(await read_json_body(request, service.settings.max_body_bytes))
    try:
        what = msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise RequestError(str(error)) from None
    await service.engine.inject(what)
    return _json({"status": "ok"})


async def _first_token(service: Service, probe: GenerateRequest) -> None:
    async for event in service.engine.submit(probe):
        if event.finish_reason == "error":
            raise RequestError(
                event.error or "the engine failed", status=503, code="engine_not_ready"
            )
        if event.token_ids:
            return


def _is_loopback(request: Request) -> bool:
    if request.client is None:  # a Unix socket
        return True
    try:
        address = ip_address(request.client.host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _json(value: Any) -> Response:
    return Response(dump(value), media_type="application/json")
