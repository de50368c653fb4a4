"""`deodar eval`: measure what a checkpoint can do, with progress; print the table.

The file of `--out` is complete JSON after every suite, so a run that is stopped leaves what it had.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from deodar.checkpoint.locate import resolve_model
from deodar.cli.model_argument import add_model_argument, chosen_model
from deodar.errors import ConfigError
from deodar.evaluation.run import Results, rows, run_suites
from deodar.evaluation.subject import Subject
from deodar.evaluation.suites import SUITES, Advance

HELP = "measure what a checkpoint can do"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    parser.add_argument("--quick", action="store_true", help="a tenth of the cases")
    parser.add_argument(
        "--only", nargs="+", metavar="SUITE", help=f"some of: {', '.join(SUITES)} (default: all)"
    )
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default 2)")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="write the numbers here")


def run(args: argparse.Namespace) -> int:
    names = args.only or list(SUITES)
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        raise ConfigError(f"--only names {unknown[0]!r}, must be among {', '.join(SUITES)}")
    if args.threads < 1:
        raise ConfigError(f"--threads is {args.threads}, it must be at least 1")
    model, console = chosen_model(args), Console()
    subject = Subject(resolve_model(model), threads=args.threads)
    results: Results = {}
    columns = (TextColumn("{task.description:<18}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:

        def watch(title: str, total: int) -> Advance:
            return partial(progress.advance, progress.add_task(title, total=total))

        for so_far in run_suites(subject, names, quick=args.quick, watch=watch):
            for task in progress.tasks:
                progress.update(task.id, completed=task.total)
            results = {"model": model, "numerics": "kv", "quick": args.quick, **so_far}
            if args.out is not None:
                _write(args.out, results)
    table = Table("measure", "value", "of", title=f"{model} ({results['seconds']} s)")
    for row in rows(results):
        table.add_row(*row)
    console.print(table)
    return 0


def _write(path: Path, results: Results) -> None:
    try:
        path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None
