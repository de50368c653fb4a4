"""Flags of `deodar chat` and `deodar generate` that say how tokens are drawn."""

from __future__ import annotations

import argparse
from dataclasses import replace

from deodar.scheduler.admission import check_sampling
from deodar.types import SamplingParams

_NAMES = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed")


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add them; each is None unless given."""
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    parser.add_argument("--top-p", type=float, metavar="P", help="keep the likeliest mass P")
    parser.add_argument("--top-k", type=int, metavar="K", help="keep the K likeliest, 0 is off")
    parser.add_argument("--min-p", type=float, metavar="P", help="drop below P of the likeliest")
    parser.add_argument("--seed", type=int, metavar="N", help="same seed, same text")


def requested_sampling(args: argparse.Namespace, defaults: SamplingParams) -> SamplingParams:
    """The model's defaults with what the command line sets; RequestError if out of range."""
    given = {name: getattr(args, name) for name in _NAMES if getattr(args, name) is not None}
    sampling = replace(defaults, **given)
    check_sampling(sampling)
    return sampling
