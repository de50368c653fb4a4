"""`deodar bench`: decode, what one decode step costs, against the reference and the floor; plan,
what the scheduler costs per step.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from deodar.checkpoint.loader import read_config
from deodar.checkpoint.locate import resolve_model
from deodar.cli.model_argument import add_model_argument, chosen_model
from deodar.config import BUILTIN_CONFIGS, builtin_config
from deodar.errors import ConfigError

HELP = "measure speed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=["decode", "plan"],
        help="decode: milliseconds per step, one row; plan: of the scheduler, without a model",
    )
    add_model_argument(parser)
    parser.add_argument("--prompt-tokens", type=int, default=512, metavar="N", help="context (512)")
    parser.add_argument("--steps", type=int, default=40, metavar="N", help="steps a turn (40)")
    parser.add_argument(
        "--sequences", type=int, default=64, metavar="N", help="that run at once, for plan (64)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the numbers as JSON")


def run(args: argparse.Namespace) -> int:
    for name, value in (("--prompt-tokens", args.prompt_tokens), ("--steps", args.steps)):
        if value < 1:
            raise ConfigError(f"{name} is {value}, it must be at least 1")
    if args.out is not None and not args.out.absolute().parent.is_dir():
        raise ConfigError(f"--out is {args.out}, its folder does not exist")
    if args.what == "plan":
        return _plan(args)
    folder = resolve_model(chosen_model(args))
    from deodar.bench.decode import bench_decode  # torch

    result = bench_decode(
        folder, prompt_tokens=args.prompt_tokens, steps=args.steps, report=_progress
    )
    fast, slow = result.compiled, result.reference
    print(
        f"{result.model} after {result.prompt_tokens} tokens, one thread, {result.machine}\n"
        f"medians of {result.steps} steps in turns   wall ms   processor ms\n"
        f"  compiled                        {fast.wall_ms:10.3f} {fast.processor_ms:14.3f}\n"
        f"  reference                       {slow.wall_ms:10.3f} {slow.processor_ms:14.3f}\n"
        f"  ratio                           {slow.wall_ms / fast.wall_ms:10.1f}"
        f" {result.ratio:14.1f}\n"
        f"torch operations of the reference per layer: {result.operations_per_layer:.0f} on "
        f"average, {result.operations_per_layer_most} at most\n"
        f"bytes read per step: {result.active_bytes:,}\n"
        f"floor: {result.floor_memory_ms:.3f} ms at {result.bandwidth_memory:.1f} GB/s (memory), "
        f"{result.floor_same_ms:.3f} ms at {result.bandwidth_same:.1f} GB/s (an array of that size)"
    )
    if args.out is not None:
        try:
            args.out.write_text(json.dumps(result.as_dict(), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {args.out}: {error.strerror or error}") from None
    return 0


def _plan(args: argparse.Namespace) -> int:
    from deodar.bench.plan_cost import bench_plan

    name = args.model_flag or args.model or "v4.1-flash"
    known = name in BUILTIN_CONFIGS
    config = builtin_config(name) if known else read_config(resolve_model(name))
    print(f"plan and commit, {args.sequences} sequences of {args.prompt_tokens} tokens, {name}")
    for loop in ("plain", "ahead"):
        cost = bench_plan(
            config,
            sequences=args.sequences,
            prompt_tokens=args.prompt_tokens,
            steps=args.steps,
            ahead=loop == "ahead",
        )
        print(
            f"  {loop:<6} loop: plan {cost.plan_ms:.3f} ms, commit {cost.commit_ms:.3f} ms, "
            f"together {cost.both_ms:.3f} ms (99 % within {cost.both_p99_ms:.3f} ms)"
        )
    return 0


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
