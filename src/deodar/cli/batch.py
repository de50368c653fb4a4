"""`deodar batch`: run a file of requests in the OpenAI batch format, without a server.

Each line of the input is {"custom_id", "method": "POST", "url", "body"}; each line of the output
{"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}, in the order of the
input. The bodies are those of the HTTP routes, which answer them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from deodar.cli.engine_flags import add_engine_arguments, engine_options
from deodar.cli.model_argument import add_model_argument, chosen_model
from deodar.cli.open_model import open_model
from deodar.errors import ConfigError
from deodar.server.batch import run_batch
from deodar.server.service import Service
from deodar.server.settings import ServerSettings

HELP = "answer a file of requests (OpenAI batch format)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE.jsonl", help="requests, one a line")
    add_model_argument(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT.jsonl", help="answers (standard output)"
    )
    parser.add_argument("--context", type=int, metavar="TOKENS", help="prompt and answer together")
    parser.add_argument(
        "--concurrency", type=int, default=64, metavar="N", help="requests at once (64)"
    )
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if args.concurrency < 1:
        raise ConfigError(f"--concurrency is {args.concurrency}, it must be at least 1")
    try:
        lines = args.file.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read {args.file}: {error.strerror}") from None
    name = chosen_model(args)
    with _output(args.output) as out:
        model = open_model(name, engine_options(args))
        try:
            settings = ServerSettings(
                model_names=(Path(name).name or "model",),
                context=model.context,
                sampling=model.sampling,
            )
            service = Service.of(model.engine, model.tokenizer, settings)
            failed = asyncio.run(_write_all(service, lines, args.concurrency, out))
        finally:
            model.engine.close()
    return 1 if failed else 0


async def _write_all(service: Service, lines: list[bytes], concurrency: int, out: IO[bytes]) -> int:
    """Write the answers as they come in order; how many are errors."""
    failed = finished = 0
    async for line, good in run_batch(service, lines, concurrency):
        out.write(line + b"\n")
        out.flush()
        finished += 1
        failed += not good
        if sys.stderr.isatty():
            print(f"\r{finished} answers, {failed} errors", end="", file=sys.stderr, flush=True)
    end = "\n" if sys.stderr.isatty() else ""
    print(f"{end}{finished} answers, {failed} errors", file=sys.stderr)
    return failed


@contextlib.contextmanager
def _output(path: Path | None) -> Iterator[IO[bytes]]:
    if path is None:
        yield sys.stdout.buffer
        return
    try:
        out = path.open("wb")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    with out:
        yield out
