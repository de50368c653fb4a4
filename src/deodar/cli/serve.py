"""`deodar serve`: load a model and answer over HTTP until a signal comes.

Two processes (design D10): this one speaks HTTP and never loads torch, the engine is its child.
Says where it listens, with a ready-made `curl` line, once requests are really answered. The first
signal stops taking requests and lets running answers end; the second cuts them off. Exit code 0.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from deodar import env
from deodar.cli.engine_flags import add_engine_arguments, engine_options
from deodar.cli.model_argument import add_model_argument, chosen_model
from deodar.cli.open_model import open_model, start_process, start_process_with_hooks
from deodar.errors import ConfigError
from deodar.server.app import create_app
from deodar.server.conversation import effort_number
from deodar.server.settings import ServerSettings
from deodar.text.chat import DEFAULT_EFFORT

HELP = "answer over HTTP (OpenAI-compatible)"
DRAIN_S = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on (8000)")
    parser.add_argument(
        "--served-model-name", nargs="+", metavar="NAME", help="public names of the model"
    )
    parser.add_argument(
        "--context",
        "--max-model-len",
        "--context-length",
        type=int,
        metavar="TOKENS",
        help="prompt and answer together (what the model was made for)",
    )
    parser.add_argument(
        "--default-thinking", choices=("on", "off"), default="on", help="if a request says nothing"
    )
    parser.add_argument(
        "--default-effort",
        default=str(DEFAULT_EFFORT),
        metavar="EFFORT",
        help=f"a word or 1 to 100 ({DEFAULT_EFFORT})",
    )
    parser.add_argument(
        "--admin-api-key",
        metavar="KEY",
        default=env.admin_api_key(),
        help="asked for by routes that change state (DEODAR_ADMIN_API_KEY; none: loopback only)",
    )
    parser.add_argument(
        "--metrics-compat",
        choices=("vllm", "none"),
        default="vllm",
        help="also show /metrics under another engine's names (vllm)",
    )
    parser.add_argument(
        "--test-hooks", action="store_true", help="offer /test/fault and /test/script"
    )
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    name = chosen_model(args)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    effort = args.default_effort
    number = effort_number(int(effort) if effort.isdecimal() else effort, "--default-effort")
    with listening_socket(args.host, args.port) as listener:
        start = start_process_with_hooks if args.test_hooks else start_process
        model = open_model(name, engine_options(args), start)
        try:
            settings = ServerSettings(
                model_names=tuple(args.served_model_name or [Path(name).name or "model"]),
                context=model.context,
                sampling=model.sampling,
                default_thinking=args.default_thinking == "on",
                default_effort=number,
                admin_key=args.admin_api_key,
                test_hooks=args.test_hooks,
                metrics_compat=args.metrics_compat,
            )
            app = create_app(model.engine, model.tokenizer, settings)
            config = uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=DRAIN_S,
            )
            server = _Server(config, greeting(listener, settings))
            try:
                asyncio.run(server.serve(sockets=[listener]))
            except OSError as error:  # another process was quicker
                raise ConfigError(f"cannot listen on {args.host}:{args.port}: {error}") from None
        finally:
            model.engine.close()
    return 0


def listening_socket(host: str, port: int) -> socket.socket:
    """A bound socket; ConfigError if the address is taken or none of this machine.

    It does not listen yet: until the model is loaded, clients are refused instead of left waiting.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port is {port}, it must be between 0 and 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigError(f"cannot listen on {host}:{port}: {error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, OverflowError) as error:
        listener.close()
        text = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {host}:{port}: {text}") from None
    return listener


def greeting(listener: socket.socket, settings: ServerSettings) -> str:
    """The last lines at start: address, model, context, defaults and a line to try."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{port}"
    body = {
        "model": settings.model_names[0],
        "stream": True,
        "seed": 0,
        "messages": [{"role": "user", "content": "Name three colours."}],
    }
    thinking = "on" if settings.default_thinking else "off"
    return (
        f"model {', '.join(settings.model_names)} · context {settings.context} tokens · "
        f"thinking {thinking} · effort {settings.default_effort}\n"
        f"listening on {url}\n"
        f"try: curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' "
        f"-d '{json.dumps(body)}'"
    )


class _Server(uvicorn.Server):
    """uvicorn that greets when it is ready and exits with 0 after a signal."""

    def __init__(self, config: uvicorn.Config, text: str) -> None:
        super().__init__(config)
        self._text = text

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(self._text, flush=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn would raise the signal again after the drain and so end with a signal's code.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield
