"""Arguments that `deodar logits` and `deodar draft` share: token ids, chunks, numerics."""

from __future__ import annotations

import argparse
from typing import get_args

from deodar.cli.model_argument import add_model_argument
from deodar.errors import RequestError
from deodar.model.numerics import NumericsName


def add_reference_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    parser.add_argument("--ids", required=True, help="token ids: 443,143,348")
    parser.add_argument(
        "--mode", choices=get_args(NumericsName), default="kv", help="numerics (default kv)"
    )
    parser.add_argument("--chunks", help="run in pieces of these sizes: 5,13,6 (default: at once)")
    parser.add_argument("--image", help="positions of an image span: 5-11 (default: none)")


def parse_ids(text: str) -> list[int]:
    """Token ids of `--ids`."""
    return _integers("--ids", text)


def parse_chunks(text: str | None, total: int) -> list[int]:
    """Sizes of `--chunks`; they must be positive and add up to the number of ids."""
    if text is None:
        return [total]
    sizes = _integers("--chunks", text)
    if min(sizes) < 1:
        raise RequestError(f"--chunks holds {min(sizes)}, every size must be at least 1")
    if sum(sizes) != total:
        raise RequestError(f"--chunks add up to {sum(sizes)}, must be the number of ids ({total})")
    return sizes


def parse_image(text: str | None, total: int) -> list[bool]:
    """`--image FIRST-LAST` as one flag per position."""
    if text is None:
        return [False] * total
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal()):
        raise RequestError(f"--image is {text!r}, must be FIRST-LAST")
    if not int(first) <= int(last) < total:
        raise RequestError(f"--image is {text}, must lie within 0-{total - 1}")
    return [int(first) <= position <= int(last) for position in range(total)]


def _integers(option: str, text: str) -> list[int]:
    values = []
    for part in text.split(","):
        try:
            values.append(int(part))
        except ValueError:
            raise RequestError(
                f"{option} holds {part.strip()!r}, must be integers separated by commas"
            ) from None
    return values
