"""`deodar logits MODEL --ids ...`: what the reference computes, written to an .npz file."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from torch import Tensor

from deodar.checkpoint.loader import Checkpoint
from deodar.checkpoint.locate import resolve_model
from deodar.cli.model_argument import chosen_model
from deodar.cli.reference_args import add_reference_arguments, parse_chunks, parse_ids, parse_image
from deodar.errors import RequestError
from deodar.model.reference import ForwardResult, Reference, joined

HELP = "write float32 logits, chosen entries and taps of given token ids"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_reference_arguments(parser)
    parser.add_argument("--top", type=int, default=8, help="tokens to print (default 8)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.npz")


def run(args: argparse.Namespace) -> int:
    ids = parse_ids(args.ids)
    chunks = parse_chunks(args.chunks, len(ids))
    image = parse_image(args.image, len(ids))
    if args.top < 1:
        raise RequestError(f"--top is {args.top}, must be at least 1")
    model = Reference(Checkpoint.open(resolve_model(chosen_model(args))), args.mode)
    state, results, start = model.new_state(), [], 0
    for size in chunks:
        stop = start + size
        results.append(model.forward(ids[start:stop], state, image[start:stop]))
        start = stop
    result = joined(results)
    arrays = _arrays(result)
    try:
        with args.out.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise RequestError(f"cannot write {args.out}: {error.strerror or error}") from None
    _print_top(result.logits[-1], len(ids) - 1, args.top)
    print(f"{args.out}: {', '.join(f'{k} {list(v.shape)}' for k, v in arrays.items())}")
    return 0


def _arrays(result: ForwardResult) -> dict[str, np.ndarray]:
    """logits, taps, chosen_layer{l}, candidate_blocks, engram_rows_layer{l}."""
    arrays = {"logits": result.logits.numpy(), "taps": result.taps.numpy()}
    for layer, chosen in result.chosen.items():
        arrays[f"chosen_layer{layer}"] = chosen.numpy()
    if result.candidates is not None:
        arrays["candidate_blocks"] = result.candidates.numpy()
    for layer, rows in result.engram_rows.items():
        arrays[f"engram_rows_layer{layer}"] = rows
    return arrays


def _print_top(logits: Tensor, position: int, count: int) -> None:
    order = logits.sort(descending=True, stable=True)
    print(f"position {position}: argmax {int(order.indices[0])}")
    for token, value in zip(order.indices[:count].tolist(), order.values.tolist(), strict=False):
        print(f"  {token:>6}  {value:.5f}")
