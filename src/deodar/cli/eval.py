"""`deodar eval`: measure what a checkpoint can do and print the table."""

from __future__ import annotations

import argparse
from pathlib import Path

from deodar.checkpoint.locate import SEEDLING
from deodar.evaluation.run import run_eval
from deodar.evaluation.suites import SUITES

HELP = "measure what a checkpoint can do"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default=SEEDLING, help=f"folder or known name (default {SEEDLING})"
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the cases")
    parser.add_argument(
        "--only", nargs="+", metavar="SUITE", help=f"some of: {', '.join(SUITES)} (default: all)"
    )
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write the numbers here")


def run(args: argparse.Namespace) -> int:
    return run_eval(args)
