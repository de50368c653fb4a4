"""`RemoteClient`: an engine in a process of its own, started, watched and restarted from here.

Used by `deodar serve`; needs no torch. A thread reads the engine's messages. What must hold:
`health` is true only while the engine's loop turns; if the engine ends, open streams end with an
error and new requests are refused with a 503 until the next engine is ready.
"""

from __future__ import annotations

import logging
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from deodar.engine.client import STALL_S, MessageClient, died, not_ready
from deodar.engine.options import EngineOptions
from deodar.engine.wire import Beat, Channel, Failed, FromEngine, Ready, Stop, ToEngine
from deodar.errors import DeodarError, WireError
from deodar.types import EngineInfo, EngineStats

HANG_S = 120.0  # an engine whose loop has not turned for so long is killed
CLOSE_S = 10.0
LONGEST_PAUSE_S = 30.0
logger = logging.getLogger("deodar.engine")


def engine_command(folder: Path, options: EngineOptions, test_hooks: bool) -> list[str]:
    """The command line of an engine process, without its socket."""
    words = [sys.executable, "-m", "deodar.engine.process", "--folder", str(folder)]
    words += ["--options", msgspec.json.encode(options).decode()]
    return words + ["--test-hooks"] * test_hooks


class _Child:
    """One engine process and the channel to it; a thread of its own sends, so nobody blocks."""

    def __init__(self, command: Sequence[str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self.process = subprocess.Popen(
                [*command, "--fd", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        self.channel: Channel[FromEngine] = Channel(ours, FromEngine)
        self.outbox: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()
        threading.Thread(target=self._send, name="deodar-send", daemon=True).start()

    def wait_until_ready(self) -> EngineInfo:
        """Block until the engine is loaded; DeodarError if it cannot be."""
        try:
            message = self.channel.receive()
        except (EOFError, WireError) as error:
            status = self.end(0.0)
            raise DeodarError(
                f"the engine process ended with status {status} while loading {error}".rstrip()
            ) from None
        if isinstance(message, Ready):
            return message.info
        self.end(CLOSE_S)
        text = message.text if isinstance(message, Failed) else f"it sent {type(message).__name__}"
        raise DeodarError(text)

    def end(self, patience_s: float) -> int:
        """Wait so long for the process, then kill it; its exit status."""
        try:
            status = self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self.outbox.put(None)
        self.channel.close()
        return status

    def _send(self) -> None:
        while (message := self.outbox.get()) is not None:
            try:
                self.channel.send(message)
            except OSError:  # it is gone; the reader notices
                return
            except WireError:
                logger.exception("a message was not sent")


class RemoteClient(MessageClient):
    """A supervised engine process. Close it, or the engine runs until this process ends.

    command: starts an engine; `--fd N` is added. stall_s: a loop silent for longer is not ready.
    Raises DeodarError if the first engine does not become ready.
    """

    def __init__(
        self, command: Sequence[str], *, stall_s: float = STALL_S, hang_s: float = HANG_S
    ) -> None:
        super().__init__()
        self._command = tuple(command)
        self._stall_s, self._hang_s = stall_s, hang_s
        self._closing = threading.Event()
        self._restarts = 0
        self._steps_before = 0
        self._stats = EngineStats()
        self._turned = time.monotonic()
        self._child = _Child(command)
        try:
            self._info = self._child.wait_until_ready()
        except BaseException:
            self._child.end(0.0)
            raise
        self._turned = time.monotonic()
        self._thread = threading.Thread(target=self._supervise, name="deodar-engine", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls, folder: Path, options: EngineOptions | None = None, *, test_hooks: bool = False
    ) -> RemoteClient:
        """Start an engine process for the checkpoint in `folder` and wait until it is ready."""
        return cls(engine_command(folder, options or EngineOptions(), test_hooks))

    def post(self, message: ToEngine) -> None:
        """Hand a message to the engine without waiting."""
        self._child.outbox.put(message)

    def health(self) -> bool:
        """Whether the engine can take requests: connected, and its loop turns."""
        return self._up and time.monotonic() - self._turned < self._stall_s

    def info(self) -> EngineInfo:
        """What the newest engine said of itself."""
        return self._info

    def stats(self) -> EngineStats:
        """Newest gauges; `steps` goes on counting over restarts."""
        return replace(
            self._stats,
            steps=self._steps_before + self._stats.steps,
            ready=self.health(),
            restarts=self._restarts,
            silent_s=time.monotonic() - self._turned,
        )

    def close(self) -> None:
        """Stop the engine after its current step; running requests end with reason "abort"."""
        self._closing.set()
        self.post(Stop())
        self._thread.join(CLOSE_S)
        self._child.end(0.0 if self._thread.is_alive() else 1.0)
        self._thread.join()
        self.go_down(not_ready())

    def _supervise(self) -> None:
        """Read until the engine ends; start the next one unless closing."""
        while True:
            try:
                self._read()
            except EOFError:
                pass
            except WireError:
                logger.exception("the engine sent something unreadable")
            if self._closing.is_set():
                return
            self.go_down(
                died("the engine stopped while it worked on this request; it is being restarted")
            )
            logger.error("the engine process ended with status %d", self._child.end(1.0))
            if not self._restart():
                return

    def _read(self) -> None:
        while True:
            message = self._child.channel.receive(timeout_s=1.0)
            if isinstance(message, Beat):
                if message.stats.turns != self._stats.turns:
                    self._turned = time.monotonic()
                self._stats = message.stats
            elif message is not None:
                self.dispatch(message)
            if time.monotonic() - self._turned > self._hang_s:
                logger.error("the step loop has not turned for %.0f s, killing it", self._hang_s)
                self._child.process.kill()
                raise EOFError

    def _restart(self) -> bool:
        """Start engines until one is ready, with growing pauses; False if closed meanwhile."""
        pause = 0.0
        self._steps_before += self._stats.steps
        self._stats = EngineStats()
        while not self._closing.wait(pause):
            try:
                child = _Child(self._command)
                self._child = child
                self._info = child.wait_until_ready()
            except (DeodarError, OSError) as error:
                pause = min(2 * pause or 1.0, LONGEST_PAUSE_S)
                logger.error("the engine could not be restarted: %s; next in %.0f s", error, pause)
                continue
            self._restarts += 1
            self._turned = time.monotonic()
            self.come_up()
            logger.warning("the engine is ready again, process %d", self._info.pid)
            return True
        return False
