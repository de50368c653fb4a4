"""Faults and scripts for tests from outside; exist only in engines started with test hooks.

The engine asks at four places: when a request comes, before a step, before the model runs and
before a token is drawn. What must hold: without an injection nothing changes.
"""

from __future__ import annotations

import time

import msgspec

from deodar.errors import RequestError
from deodar.types import Chunk, GenerateRequest, StepPlan


class Fault(msgspec.Struct, frozen=True, kw_only=True, tag="fault", forbid_unknown_fields=True):
    """One fault per field. slow_chunk_ms: wait inside the next prefill chunk. freeze_ms: stop the
    step loop once. die_at_token: raise in the step that makes this token (from 1) of the next
    request. pool_tokens: limit the KV memory from now on.
    """

    slow_chunk_ms: int | None = None
    freeze_ms: int | None = None
    die_at_token: int | None = None
    pool_tokens: int | None = None


class Script(msgspec.Struct, frozen=True, kw_only=True, tag="script", forbid_unknown_fields=True):
    """The token steps that the next request emits; the end token follows them."""

    steps: tuple[tuple[int, ...], ...]


Injection = Fault | Script


class InjectedFault(Exception):
    """Raised on purpose."""


class Hooks:
    """What was injected and has not happened yet."""

    def __init__(self, vocab_size: int, eos_token_id: int) -> None:
        self._vocab_size = vocab_size
        self._eos = eos_token_id
        self._slow_s = 0.0
        self._freeze_s = 0.0
        self._next_death: int | None = None
        self._next_script: Script | None = None
        self._deaths: dict[str, int] = {}
        self._scripts: dict[str, list[tuple[int, ...]]] = {}

    def inject(self, what: Injection) -> None:
        """Take an injection; RequestError if it makes no sense. `pool_tokens` is the engine's."""
        if isinstance(what, Script):
            self._check(what)
            self._next_script = what
            return
        for name in what.__struct_fields__:
            value = getattr(what, name)
            if value is not None and value < 0:
                raise RequestError(f"{name} is {value}, it must be at least 0", param=name)
        self._slow_s += (what.slow_chunk_ms or 0) / 1000
        self._freeze_s += (what.freeze_ms or 0) / 1000
        if what.die_at_token is not None:
            self._next_death = what.die_at_token

    def on_request(self, request: GenerateRequest) -> None:
        """Bind what waits for the next request to this one."""
        if self._next_death is not None:
            self._deaths[request.request_id], self._next_death = self._next_death, None
        if self._next_script is not None:
            steps = list(reversed(self._next_script.steps))
            if not request.sampling.ignore_eos:
                steps.insert(0, (self._eos,))
            self._scripts[request.request_id], self._next_script = steps, None

    def on_turn(self) -> None:
        """Stop the step loop, if asked."""
        pause, self._freeze_s = self._freeze_s, 0.0
        time.sleep(pause)

    def on_run(self, plan: StepPlan) -> None:
        """Wait inside a prefill chunk, if asked."""
        if self._slow_s and any(chunk.kind == "prefill" for chunk in plan.chunks):
            pause, self._slow_s = self._slow_s, 0.0
            time.sleep(pause)

    def on_sample(self, chunk: Chunk) -> tuple[int, ...] | None:
        """The scripted tokens of this step, or None to draw; InjectedFault if it is to die."""
        death = self._deaths.get(chunk.request_id)
        if death is not None and chunk.output_index + 1 >= death:
            del self._deaths[chunk.request_id]
            raise InjectedFault(f"injected at token {chunk.output_index + 1}")
        steps = self._scripts.get(chunk.request_id)
        return steps.pop() if steps else None

    def _check(self, script: Script) -> None:
        if not script.steps or not all(script.steps):
            raise RequestError("steps must hold at least one token each", param="steps")
        for token in (token for step in script.steps for token in step):
            if not 0 <= token < self._vocab_size:
                raise RequestError(
                    f"steps holds {token}, it must be from 0 to {self._vocab_size - 1}",
                    param="steps",
                )
