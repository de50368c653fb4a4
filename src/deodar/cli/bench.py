"""`deodar bench`: what a decode step costs, what the scheduler costs per step, and what the engine
gains from company, from known prefixes and from the decoder's trim.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from deodar.checkpoint.loader import read_config
from deodar.checkpoint.locate import resolve_model
from deodar.cli.model_argument import add_model_argument, chosen_model
from deodar.config import BUILTIN_CONFIGS, builtin_config
from deodar.errors import ConfigError

HELP = "measure speed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=["decode", "plan", "streams", "reuse", "trim"],
        help="decode: milliseconds per step, one row; plan: of the scheduler, without a model; "
        "streams: one against several; reuse: a next turn and a shared prefix against cold; "
        "trim: a prompt with and without decoder rows",
    )
    add_model_argument(parser)
    parser.add_argument("--prompt-tokens", type=int, default=512, metavar="N", help="context (512)")
    parser.add_argument("--steps", type=int, default=40, metavar="N", help="steps a turn (40)")
    parser.add_argument(
        "--sequences", type=int, metavar="N", help="that run at once (plan: 64, streams: 16)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the numbers as JSON")


def run(args: argparse.Namespace) -> int:
    numbers = {"--prompt-tokens": args.prompt_tokens, "--steps": args.steps}
    for name, value in (numbers | {"--sequences": args.sequences}).items():
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}, it must be at least 1")
    if args.out is not None and not args.out.absolute().parent.is_dir():
        raise ConfigError(f"--out is {args.out}, its folder does not exist")
    if args.what == "plan":
        return _plan(args)
    if args.what != "decode":
        return _serving(args)
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
    _write(args.out, result.as_dict())
    return 0


def _write(out: Path | None, result: dict[str, Any]) -> None:
    if out is not None:
        try:
            out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {out}: {error.strerror or error}") from None


def _serving(args: argparse.Namespace) -> int:
    from deodar.bench import serving

    folder, tokens = resolve_model(chosen_model(args)), args.prompt_tokens
    if args.what == "streams":
        result = serving.bench_streams(
            folder,
            prompt_tokens=tokens,
            steps=args.steps,
            sequences=args.sequences or 16,
            report=_progress,
        )
    else:
        bench = serving.bench_reuse if args.what == "reuse" else serving.bench_trim
        result = bench(folder, prompt_tokens=tokens, report=_progress)
    for name, value in result.items():
        print(f"{name:<28} {value:.3f}" if isinstance(value, float) else f"{name:<28} {value}")
    _write(args.out, result)
    return 0


def _plan(args: argparse.Namespace) -> int:
    from deodar.bench.plan_cost import bench_plan

    name = args.model_flag or args.model or "v4.1-flash"
    sequences = args.sequences or 64
    known = name in BUILTIN_CONFIGS
    config = builtin_config(name) if known else read_config(resolve_model(name))
    print(f"plan and commit, {sequences} sequences of {args.prompt_tokens} tokens, {name}")
    result: dict[str, Any] = {"model": name, "sequences": sequences}
    for loop in ("plain", "ahead"):
        cost = bench_plan(
            config,
            sequences=sequences,
            prompt_tokens=args.prompt_tokens,
            steps=args.steps,
            ahead=loop == "ahead",
        )
        print(
            f"  {loop:<6} loop: plan {cost.plan_ms:.3f} ms, commit {cost.commit_ms:.3f} ms, "
            f"together {cost.both_ms:.3f} ms (99 % within {cost.both_p99_ms:.3f} ms)"
        )
        result[loop] = asdict(cost)
    _write(args.out, result)
    return 0


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
