"""The step loop between a queue of commands and a sender of messages.

Runs in a thread of the caller's process (`client`) or as the engine process (`process`). What must
hold: a request that raises ends only itself; commands are carried out between steps; `turns` grows
as long as the loop lives, also while there is nothing to do.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from dataclasses import replace

from deodar.engine.loop import Engine
from deodar.engine.wire import (
    Abort,
    Done,
    Events,
    Flush,
    FromEngine,
    Inject,
    Refusal,
    Refused,
    Stop,
    Submit,
    ToEngine,
)
from deodar.errors import RequestError
from deodar.types import EngineStats, TokenEvent

IDLE_TURN_S = 0.2
STATS_EVERY_S = 0.1

logger = logging.getLogger("deodar.engine")


class Worker:
    """One engine, its commands and where its messages go."""

    def __init__(
        self,
        engine: Engine,
        send: Callable[[FromEngine], None],
        commands: queue.SimpleQueue[ToEngine],
    ) -> None:
        self.commands = commands
        self.stats = EngineStats()
        self.turns = 0
        self.turned = time.monotonic()
        self._engine = engine
        self._send = send
        self._stats_due = 0.0

    def run(self) -> None:
        """Turn until `Stop`; running requests end with reason "abort" then."""
        while self._take_commands():
            events = self._engine.step()
            if events:
                self._send(Events(events))
            self._turn()
        scheduler = self._engine.scheduler
        ended = [self._engine.abort(request_id) for request_id in scheduler.requests()]
        self._send(Events(tuple(event for event in ended if event is not None)))

    def _turn(self) -> None:
        self.turns += 1
        self.turned = time.monotonic()
        busy = self._engine.scheduler.has_work
        if self.turned >= self._stats_due or not busy:
            self._stats_due = self.turned + STATS_EVERY_S
            self.stats = self._engine.scheduler.stats

    def _take_commands(self) -> bool:
        """Carry out all waiting commands, after a short wait if there is no work; False to stop."""
        wait = not self._engine.scheduler.has_work
        while True:
            try:
                command = self.commands.get(block=wait, timeout=IDLE_TURN_S)
            except queue.Empty:
                return True
            wait = False
            if isinstance(command, Stop):
                return False
            self._carry_out(command)

    def _carry_out(self, command: ToEngine) -> None:
        match command:
            case Submit(request):
                try:
                    self._engine.add(request)
                except RequestError as error:
                    self._send(Refused(request.request_id, Refusal.of(error)))
            case Abort(request_id):
                event: TokenEvent | None = self._engine.abort(request_id)
                if event is not None:
                    self._send(Events((event,)))
            case Flush(call):
                self._answer(call, self._engine.flush_cache)
            case Inject(call, what):
                self._answer(call, lambda: self._engine.inject(what))

    def _answer(self, call: int, act: Callable[[], None]) -> None:
        try:
            act()
        except RequestError as error:
            self._send(Done(call, Refusal.of(error)))
        else:
            self._send(Done(call))


def current_stats(worker: Worker) -> EngineStats:
    """The gauges with the turn counter of this moment; safe from any thread."""
    return replace(worker.stats, turns=worker.turns)
