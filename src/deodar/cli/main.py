"""Entry point of the `deodar` command.

Each command is a module of this room with `HELP`, `add_arguments(parser)` and `run(args) -> int`;
it is imported only when it is called, so `deodar --help` starts in milliseconds.
"""

from __future__ import annotations

import argparse
import importlib
import io
import sys
from collections.abc import Sequence

from deodar import __version__, env
from deodar.errors import DeodarError

COMMANDS: dict[str, str] = {
    "serve": "answer over HTTP (OpenAI-compatible)",
    "chat": "talk to the model in the terminal",
    "generate": "continue a prompt",
    "batch": "answer a file of requests (OpenAI batch format)",
    "logits": "write float32 logits, chosen entries and taps of given token ids",
    "draft": "print the draft head's proposals after given token ids",
    "inspect": "list what a checkpoint holds, with the proof that it is complete",
    "plan": "print the memory and the prefill work of an engine, without loading it",
    "make-tiny": "write the deterministic tiny checkpoint",
    "eval": "measure what a checkpoint can do",
    "bench": "measure speed",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; expected errors are one line on stderr and exit code 2."""
    _accept_any_character()
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="deodar", description="Serve DeepSeek-V4.1-Flash.")
    parser.add_argument("--version", action="version", version=f"deodar {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((w for w in words if not w.startswith("-")), None)
    for name, help_line in COMMANDS.items():
        sub = commands.add_parser(name, help=help_line, description=help_line)
        if name == chosen:
            module = importlib.import_module(f"deodar.cli.{name.replace('-', '_')}")
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    args = parser.parse_args(words)
    try:
        return int(args.run(args))
    except DeodarError as error:
        print(f"deodar {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0
    except Exception as error:
        if env.show_traceback():
            raise
        print(f"deodar {args.command}: unexpected {type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _accept_any_character() -> None:
    """Replace what the terminal's encoding lacks: no answer or input may end a command."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
