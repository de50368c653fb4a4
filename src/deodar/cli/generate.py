"""`deodar generate`: continue a raw prompt and print the text as it comes.

Only the continuation goes to standard output; the last line on standard error tells the seed and
the speed. Conversations belong to `deodar chat`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import replace

from deodar.cli.engine_flags import add_engine_arguments, engine_options
from deodar.cli.model_argument import add_model_argument, chosen_model
from deodar.cli.open_model import open_model
from deodar.cli.sampling_arguments import add_sampling_arguments, requested_sampling
from deodar.engine.client import EngineClient
from deodar.errors import RequestError
from deodar.text.segments import Piece
from deodar.text.tokenizer import Detokenizer, Tokenizer
from deodar.types import GenerateRequest, TokenEvent

HELP = "continue a prompt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    parser.add_argument(
        "--prompt", required=True, metavar="TEXT", help="text to continue, - for standard input"
    )
    add_sampling_arguments(parser)
    parser.add_argument("--ignore-eos", action="store_true", help="go on after the end token")
    parser.add_argument("--context", type=int, metavar="TOKENS", help="prompt and text together")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    model = open_model(chosen_model(args), engine_options(args))
    try:
        sampling = requested_sampling(args, model.sampling)
        request = GenerateRequest(
            request_id="generate",
            prompt_ids=tuple(model.tokenizer.encode_raw(prompt)),
            sampling=replace(sampling, ignore_eos=args.ignore_eos),
            arrival=time.monotonic(),
        )
        return asyncio.run(_stream(model.engine, request, model.tokenizer))
    finally:
        model.engine.close()


async def _stream(engine: EngineClient, request: GenerateRequest, tokenizer: Tokenizer) -> int:
    detokenizer = Detokenizer(tokenizer)
    start = time.monotonic()
    first = None
    event: TokenEvent | None = None
    async for event in engine.submit(request):
        first = first or time.monotonic()
        shown = event.token_ids if event.stop_token_id is None else event.token_ids[:-1]
        _write(detokenizer.push(shown))
    _write(detokenizer.finish())
    sys.stdout.write("\n")
    sys.stdout.flush()
    assert event is not None
    assert first is not None
    if event.error is not None:
        raise RequestError(event.error, status=500)
    count, usage = event.usage.completion_tokens, event.usage
    pace = (time.monotonic() - first) / max(count - 1, 1)
    print(
        f"{usage.prompt_tokens} prompt tokens in {first - start:.2f} s, {count} tokens at "
        f"{pace * 1000:.2f} ms, {event.finish_reason}, seed {event.seed}",
        file=sys.stderr,
    )
    return 0


def _write(pieces: list[Piece]) -> None:
    for piece in pieces:
        sys.stdout.write(piece.text)
    sys.stdout.flush()
