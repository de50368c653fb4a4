"""The engine process: one engine behind a Unix stream socket (design D10).

Started by `remote.RemoteClient` as `python -m deodar.engine.process`, with the socket as a file
descriptor that it inherits. Three threads: the main one turns the step loop, one reads commands,
one writes messages and beats. What must hold: beats tell how often the loop has turned, so that a
loop that hangs is seen; the process ends when the socket does, whoever closed it.
"""

from __future__ import annotations

import argparse
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from deodar.engine.loop import Engine
from deodar.engine.options import EngineOptions
from deodar.engine.wire import Beat, Channel, Failed, FromEngine, Ready, Stop, ToEngine
from deodar.engine.worker import Worker, current_stats
from deodar.env import processor_count
from deodar.errors import DeodarError, WireError
from deodar.kernels.cpu import jit

BEAT_S = 0.2
logger = logging.getLogger("deodar.engine")


def serve_engine(connection: socket.socket, open_engine: Callable[[], Engine]) -> int:
    """Load the engine, say so, and run it until `Stop` or the end of the socket; exit status."""
    channel: Channel[ToEngine] = Channel(connection, ToEngine)
    outbox: queue.SimpleQueue[FromEngine | None] = queue.SimpleQueue()
    inbox: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
    started = threading.Event()
    threading.Thread(target=_read, args=(channel, inbox, started), daemon=True).start()
    try:
        engine = open_engine()
        engine.warm_up()
    except DeodarError as error:
        channel.send(Failed(str(error)))
        return 2
    worker = Worker(engine, outbox.put, inbox)
    started.set()
    channel.send(Ready(engine.info))
    writer = threading.Thread(target=_write, args=(channel, outbox, worker), daemon=True)
    writer.start()
    try:
        worker.run()
    finally:
        outbox.put(None)
        writer.join(timeout=5)
        channel.close()
    return 0


def _read(
    channel: Channel[ToEngine], inbox: queue.SimpleQueue[ToEngine], started: threading.Event
) -> None:
    try:
        while True:
            command = channel.receive()
            assert command is not None
            inbox.put(command)
    except EOFError:
        if not started.is_set():  # nobody is waiting any more: do not load to the end
            os._exit(0)
    except WireError:
        logger.exception("the API process sent something unreadable")
    inbox.put(Stop())


def _write(
    channel: Channel[ToEngine], outbox: queue.SimpleQueue[FromEngine | None], worker: Worker
) -> None:
    due = 0.0
    while True:
        try:
            message = outbox.get(timeout=BEAT_S)
        except queue.Empty:
            message = Beat(current_stats(worker))
        if message is None:
            return
        try:
            channel.send(message)
            if time.monotonic() >= due:
                channel.send(Beat(current_stats(worker)))
                due = time.monotonic() + BEAT_S
        except OSError:  # the API process is gone; the reader ends the loop
            return


def main(argv: list[str]) -> int:
    """Arguments come from `remote.engine_command`."""
    parser = argparse.ArgumentParser(prog="deodar engine")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--options", default="{}")
    parser.add_argument("--test-hooks", action="store_true")
    args = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM):  # the API process decides when it is over
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")

    def open_engine() -> Engine:
        if not jit.kept():
            logger.info("compiling kernels for this processor, once: about 20 s")
        return Engine.open(
            args.folder,
            msgspec.json.decode(args.options, type=EngineOptions),
            threads=processor_count(),
            test_hooks=args.test_hooks,
        )

    return serve_engine(socket.socket(fileno=args.fd), open_engine)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
