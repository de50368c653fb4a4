"""`deodar eval`: run the suites over a checkpoint, print the table, write the numbers.

Called by the command line. What must hold: the file is complete JSON after every suite, so a run
that is stopped leaves what it had.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from deodar.checkpoint.locate import resolve_model
from deodar.errors import RequestError
from deodar.evaluation.subject import Subject
from deodar.evaluation.suites import SUITES

Results = dict[str, Any]


def run_eval(args: argparse.Namespace) -> int:
    """Evaluate `args.model`; `quick`, `only` (suites), `threads`, `out` (path or None)."""
    names = args.only or list(SUITES)
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        raise RequestError(f"--only names {unknown[0]!r}, must be among {', '.join(SUITES)}")
    if args.threads < 1:
        raise RequestError(f"--threads is {args.threads}, it must be at least 1")
    console = Console()
    folder = resolve_model(args.model)
    started = time.monotonic()
    subject = Subject(folder, threads=args.threads)
    results: Results = {"model": args.model, "numerics": "kv", "quick": args.quick}
    columns = (TextColumn("{task.description:<18}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for name in names:
            title, suite, few, many = SUITES[name]
            bar = progress.add_task(title, total=few if args.quick else many)
            results[name] = suite(subject, args.quick, partial(progress.advance, bar))
            progress.update(bar, completed=few if args.quick else many)
            results["seconds"] = round(time.monotonic() - started, 1)
            if args.out is not None:
                write(args.out, results)
    table = Table("measure", "value", "of", title=f"{args.model} ({results['seconds']} s)")
    for row in rows(results):
        table.add_row(*row)
    console.print(table)
    return 0


def write(path: Path, results: Results) -> None:
    """Write the numbers; RequestError if the place cannot be written."""
    try:
        path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror or error}") from None


def rows(results: Results) -> list[tuple[str, str, str]]:
    """The table's lines: what, value, number of cases."""
    out: list[tuple[str, str, str]] = []
    for kind, numbers in results.get("bits", {}).items():
        out.append(
            (f"bits per byte, {kind}", f"{numbers['bits_per_byte']:.3f}", f"{numbers['bytes']:,} B")
        )
    for distance, numbers in results.get("retrieval", {}).items():
        shown = f"{numbers['memory']:.1%}, zeroed {numbers['zeroed']:.1%}"
        out.append((f"retrieval at {int(distance):,} tokens", shown, str(numbers["questions"])))
    for name, title in (("tools", "tool calls"), ("json", "JSON answers")):
        if name in results:
            numbers = results[name]
            shown = f"valid {numbers['valid']:.1%}, equal {numbers['equal']:.1%}"
            out.append((title, shown, str(numbers["tasks"])))
    if "sums" in results:
        out.append(
            ("two-digit sums", f"{results['sums']['right']:.1%}", str(results["sums"]["tasks"]))
        )
    for name in ("copy", "facts"):
        if "copying" in results:
            numbers = results["copying"]
            out.append((f"exact: {name}", f"{numbers[name]:.1%}", str(numbers[f"{name}_tasks"])))
    for domain, numbers in results.get("drafts", {}).items():
        shown = f"{numbers['accepted_per_step']:.2f}"
        out.append((f"accepted drafts per step, {domain}", shown, f"{numbers['steps']} steps"))
    return out
