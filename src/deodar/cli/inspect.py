"""`deodar inspect MODEL`: what a configuration calls for, or what a checkpoint on disk holds.

MODEL is a built-in configuration ("v4.1-flash", numbers only), "seedling" or a folder. For files
the table is printed only after the proof that every tensor is there once, of the right type and
shape, and nothing else; damage is one line and exit code 2.
"""

from __future__ import annotations

import argparse
from fractions import Fraction

from deodar.checkpoint.inventory import expected_tensors, totals
from deodar.checkpoint.loader import Checkpoint
from deodar.checkpoint.locate import resolve_model
from deodar.cli.model_argument import add_model_argument, chosen_model
from deodar.config import BUILTIN_CONFIGS, ModelConfig, builtin_config

HELP = "list what a checkpoint holds, with the proof that it is complete"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser, *BUILTIN_CONFIGS)


def run(args: argparse.Namespace) -> int:
    name = chosen_model(args)
    if name in BUILTIN_CONFIGS:
        config, proof = builtin_config(name), "built-in numbers, no files read"
    else:
        checkpoint = Checkpoint.open(resolve_model(name))
        config, proof = checkpoint.config, _proof(checkpoint)
    print("\n".join(_table(name, config, proof)))
    return 0


def _proof(checkpoint: Checkpoint) -> str:
    token_map = checkpoint.token_map()
    return (
        f"complete: each of {len(checkpoint.specs):,} expected tensors is present once with its "
        f"dtype and shape, in {len(checkpoint.files)} file(s), and no other; the Engram token map "
        f"has {len(token_map):,} entries on {int(token_map.max()) + 1:,} compressed ids"
    )


def _table(name: str, config: ModelConfig, proof: str) -> list[str]:
    lines = [name, proof, f"{'part':<10}{'tensors':>10}{'bytes':>20}{'parameters':>20}"]
    for row in totals(expected_tensors(config)):
        lines.append(f"{row.part:<10}{row.tensors:>10,}{row.num_bytes:>20,}{row.parameters:>20,}")
    lines += [
        f"layers: {config.num_hidden_layers} + {config.num_nextn_predict_layers} draft, "
        f"context {config.max_position_embeddings:,} tokens, vocabulary {config.vocab_size:,}",
        f"KV: {_number(config.kv_bytes_per_token)} B per token",
        f"windows: {config.window_bytes_per_sequence:,} B per sequence",
    ]
    return lines


def _number(value: Fraction) -> str:
    return f"{int(value):,}" if value.denominator == 1 else f"{float(value):,.1f}"
