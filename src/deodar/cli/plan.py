"""`deodar plan MODEL`: what an engine would take, in bytes and in layer-rows; loads nothing.

With --memory it says how many tokens of prompts and answers fit, or refuses with the numbers and
the value to change. With --prompt-tokens it prints the prefill work of prompts of these lengths.
"""

from __future__ import annotations

import argparse
import re

from deodar.cache.geometry import Geometry
from deodar.cache.memory import MemoryPlan, plan_memory
from deodar.cache.resume import LayerPlan, Resume, Rules, Saved, choose_resume, rows_without_trim
from deodar.checkpoint.inventory import PARTS, expected_tensors, totals
from deodar.checkpoint.loader import read_config
from deodar.checkpoint.locate import resolve_model
from deodar.config import BUILTIN_CONFIGS, ModelConfig, builtin_config
from deodar.engine.options import DEFAULT_SEQUENCES, DEFAULT_SNAPSHOTS
from deodar.errors import ConfigError

HELP = "print the memory and the prefill work of an engine, without loading it"
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_HOST_PARTS = ("engram",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    known = ", ".join(BUILTIN_CONFIGS)
    parser.add_argument("model", metavar="MODEL", help=f"{known}, seedling or a folder")
    parser.add_argument("--context", type=int, metavar="TOKENS", help="prompt and answer together")
    parser.add_argument(
        "--sequences", type=int, default=DEFAULT_SEQUENCES, metavar="N", help="that run at once"
    )
    parser.add_argument("--memory", metavar="BYTES", help="of the device, for example 141GB")
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="that share weights")
    parser.add_argument(
        "--prompt-tokens", type=int, nargs="+", metavar="N", help="print their layer-rows"
    )


def run(args: argparse.Namespace) -> int:
    if args.model in BUILTIN_CONFIGS:
        config = builtin_config(args.model)
    else:
        config = read_config(resolve_model(args.model))
    if args.prompt_tokens:
        print("\n".join(rows_table(LayerPlan.from_config(config), args.prompt_tokens)))
        return 0
    limit = config.max_position_embeddings
    context = limit if args.context is None else args.context
    if not 2 <= context <= limit:
        raise ConfigError(f"--context is {context}, it must be from 2 to {limit}")
    for name, value in (("--sequences", args.sequences), ("--devices", args.devices)):
        if value < 1:
            raise ConfigError(f"{name} is {value}, it must be at least 1")
    memory = None if args.memory is None else parse_bytes(args.memory)
    print("\n".join(memory_table(config, context, args.sequences, memory, args.devices)))
    return 0


def parse_bytes(text: str) -> int:
    """ "141GB", "80 GiB", "5000000": bytes. ConfigError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    if found is None:
        raise ConfigError(f"--memory is {text!r}, it must be a number of bytes such as 141GB")
    unit = _UNITS[found[2].upper()]
    if found[3]:
        unit = 1024 ** list(_UNITS).index(found[2].upper())
    return int(float(found[1]) * unit)


def memory_table(
    config: ModelConfig, context: int, sequences: int, memory: int | None, devices: int
) -> list[str]:
    """One line per use of memory on one device. Raises ConfigError if they do not fit."""
    geometry = Geometry.from_config(config)
    parts = totals(expected_tensors(config))
    shared = sum(row.num_bytes for row in parts if row.part == "experts")
    rest = [part for part in PARTS if part not in ("experts", *_HOST_PARTS)]
    copied = sum(row.num_bytes for row in parts if row.part in rest)
    weights = -(-shared // devices) + copied
    plan = plan_memory(
        geometry,
        sequences=sequences,
        pool_tokens=sequences * geometry.pages_for(context) * geometry.page_tokens,
        snapshot_bytes=DEFAULT_SNAPSHOTS * geometry.full_snapshot_bytes,
        host_bytes=0,
    )
    fixed = weights + plan.slot_pool_bytes + plan.snapshot_bytes
    lines = [
        f"{'weights on each device':<34}{weights:>20,} B",
        f"{f'slots: {sequences} sequences':<34}{plan.slot_pool_bytes:>20,} B",
        f"{f'snapshots: {DEFAULT_SNAPSHOTS} full ones':<34}{plan.snapshot_bytes:>20,} B",
    ]
    if memory is not None:
        plan = _fitted(plan, fixed, memory, context)
    lines += [
        f"{f'pages: {plan.pages} of {geometry.page_tokens} tokens':<34}"
        f"{plan.page_pool_bytes:>20,} B",
        f"{'all':<34}{fixed + plan.page_pool_bytes:>20,} B",
        f"tokens that fit: {plan.pool_tokens:,}, that is {plan.pool_tokens // context:,} sequences "
        f"of the whole context of {context:,}",
        f"on the host: {sum(r.num_bytes for r in parts if r.part in _HOST_PARTS):,} B of n-gram "
        "tables",
    ]
    return lines


def _fitted(plan: MemoryPlan, fixed: int, memory: int, context: int) -> MemoryPlan:
    """The plan with as many pages as fit, no more than all sequences can use."""
    geometry = plan.geometry
    pages = (memory - fixed) // geometry.page_bytes
    needed = geometry.pages_for(context)
    if pages < needed:
        short = fixed + needed * geometry.page_bytes - memory
        raise ConfigError(
            f"weights, slots and snapshots take {fixed:,} B and one sequence of {context:,} tokens "
            f"{needed * geometry.page_bytes:,} B, {short:,} B more than the {memory:,} B of "
            "--memory; raise --memory or --devices, or lower --context or --sequences"
        )
    return plan_memory(
        geometry,
        sequences=plan.slots,
        pool_tokens=min(pages, plan.pages) * geometry.page_tokens,
        snapshot_bytes=plan.snapshot_bytes,
        host_bytes=plan.host_bytes,
    )


def rows_table(plan: LayerPlan, lengths: list[int]) -> list[str]:
    """Layer-rows of prefill for each prompt length, cold and after what others have left."""
    if min(lengths) < 1:
        raise ConfigError(f"--prompt-tokens is {min(lengths)}, it must be at least 1")
    lines = [f"{'prompt':>9} {'what is run':<34}{'layer-rows':>14}{'of all rows':>13}"]
    for length in lengths:
        whole = rows_without_trim(plan, length)
        share = plan.decoder_start / plan.num_layers
        lines.append(f"{length:>9,} {'every row':<34}{whole:>14,}{1:>13.1%}")
        lines.append(f"{length:>9,} {'encoder only':<34}{int(whole * share):>14,}{share:>13.1%}")
        for name, way in _ways(plan, length):
            rows = way.layer_rows
            lines.append(f"{length:>9,} {name:<34}{rows:>14,}{rows / whole:>13.1%}")
    return lines


def _ways(plan: LayerPlan, length: int) -> list[tuple[str, Resume]]:
    ways = [
        ("cold, decoder trim exact", choose_resume(plan, prompt_tokens=length)),
        (
            "cold, decoder trim bounded",
            choose_resume(plan, prompt_tokens=length, rules=Rules(trim="bounded")),
        ),
    ]
    if length > 50:
        hit = length - 50
        turn = choose_resume(plan, prompt_tokens=length, hit_tokens=hit, saved=[Saved("full", hit)])
        ways.append(("50 tokens after a known turn", turn))
        halo = choose_resume(plan, prompt_tokens=length, hit_tokens=hit)
        ways.append(("the same without a snapshot", halo))
    return ways
