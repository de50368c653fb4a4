"""`deodar draft MODEL --ids ...`: what the draft head proposes after given token ids."""

from __future__ import annotations

import argparse

from deodar.checkpoint.loader import Checkpoint
from deodar.checkpoint.locate import resolve_model
from deodar.cli.model_argument import chosen_model
from deodar.cli.reference_args import add_reference_arguments, parse_chunks, parse_ids, parse_image
from deodar.model.reference import Reference

HELP = "print the draft head's proposals after given token ids"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_reference_arguments(parser)
    parser.add_argument(
        "--next", type=int, help="token that follows the ids (default: the greedy one)"
    )


def run(args: argparse.Namespace) -> int:
    ids = parse_ids(args.ids)
    chunks = parse_chunks(args.chunks, len(ids))
    image = parse_image(args.image, len(ids))
    model = Reference(Checkpoint.open(resolve_model(chosen_model(args))), args.mode)
    state, start, logits = model.new_state(), 0, None
    for size in chunks:
        stop = start + size
        logits = model.forward(ids[start:stop], state, image[start:stop]).logits
        start = stop
    assert logits is not None
    following = int(logits[-1].argmax()) if args.next is None else args.next
    draft = model.draft(state, following)
    print(f"last position {state.length - 1}, next token {following}")
    print("drafts     ", " ".join(str(token) for token in draft.tokens.tolist()))
    print("confidence ", " ".join(f"{value:.5f}" for value in draft.confidence.tolist()))
    return 0
