"""`deodar make-tiny OUT [--gpu-heads]`: write the deterministic tiny checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path

from deodar.checkpoint.loader import Checkpoint
from deodar.checkpoint.tiny import make_tiny
from deodar.errors import CheckpointError

HELP = "write the deterministic tiny checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="folder to write (made if absent)")
    parser.add_argument(
        "--gpu-heads", action="store_true", help="real head sizes (512, rope 64, index 32 x 128)"
    )


def run(args: argparse.Namespace) -> int:
    if not args.out:  # an unset variable must not fill the current folder
        raise CheckpointError("OUT is empty, it must name a folder")
    try:
        make_tiny(Path(args.out), gpu_heads=args.gpu_heads)
    except OSError as error:
        raise CheckpointError(f"cannot write {args.out}: {error.strerror or error}") from None
    checkpoint = Checkpoint.open(args.out)
    num_bytes = sum(spec.num_bytes for spec in checkpoint.specs.values())
    print(f"{args.out}: {len(checkpoint.specs):,} tensors, {num_bytes:,} bytes")
    return 0
