"""How every command is told its model: MODEL, or --model; the seedling if neither is given."""

from __future__ import annotations

import argparse

from deodar.checkpoint.locate import SEEDLING
from deodar.errors import ConfigError


def add_model_argument(parser: argparse.ArgumentParser, *known: str) -> None:
    """Add MODEL and its spellings as a flag, which other engines' users expect.

    known: further names that the command takes.
    """
    names = ", ".join((f"{SEEDLING} (default)", *known))
    parser.add_argument("model", nargs="?", metavar="MODEL", help=f"{names} or a checkpoint folder")
    parser.add_argument(
        "--model", "--model-path", dest="model_flag", metavar="MODEL", help="the same as MODEL"
    )


def chosen_model(args: argparse.Namespace) -> str:
    """The model that was asked for; ConfigError if two different ones were."""
    place: str | None = args.model
    flag: str | None = args.model_flag
    if place is not None and flag is not None and place != flag:
        raise ConfigError(f"--model is {flag!r} and MODEL {place!r}, there must be one model")
    if flag is not None:
        return flag
    return SEEDLING if place is None else place
