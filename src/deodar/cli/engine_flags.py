"""Flags that every command with an engine has, and the options that they give."""

from __future__ import annotations

import argparse

from deodar.engine.options import EngineOptions


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """All but --context, which is each command's own."""
    parser.add_argument(
        "--decoder-trim",
        choices=("exact", "bounded", "off"),
        default="exact",
        help="decoder rows of a prompt that are skipped; bounded changes answers (exact)",
    )
    parser.add_argument(
        "--replay",
        choices=("exact", "bounded"),
        default="exact",
        help="how windows are rebuilt after a prefix hit; bounded changes answers (exact)",
    )
    parser.add_argument(
        "--sequences",
        "--max-num-seqs",
        type=int,
        default=EngineOptions().sequences,
        metavar="N",
        help=f"requests that run at once ({EngineOptions().sequences})",
    )
    parser.add_argument(
        "--plan-ahead", action="store_true", help="plan a step while the one before it runs"
    )
    parser.add_argument("--plan-log", metavar="FILE", help="write every step's plan to a file")


def engine_options(args: argparse.Namespace) -> EngineOptions:
    """The options of a command line; `resolve` checks them."""
    return EngineOptions(
        context=args.context,
        sequences=args.sequences,
        step_tokens=max(EngineOptions().step_tokens, 2 * args.sequences),
        decoder_trim=args.decoder_trim,
        replay=args.replay,
        ahead=args.plan_ahead,
        plan_log=args.plan_log,
    )
