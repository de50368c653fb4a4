"""Runs the suites over a checkpoint and lays their numbers out as a table.

Called by `deodar eval`, which shows and keeps them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from deodar.evaluation.subject import Subject
from deodar.evaluation.suites import SUITES, Advance

Results = dict[str, Any]
Watch = Callable[[str, int], Advance]


def run_suites(
    subject: Subject, names: Sequence[str], *, quick: bool, watch: Watch
) -> Iterator[Results]:
    """The numbers so far after every suite of `names`, by suite, with the `seconds` they took.

    quick: about a tenth of the cases. watch: called with a title and the number of steps when a
    suite begins; what it returns is called with the steps that have been done.
    """
    started = time.monotonic()
    results: Results = {}
    for name in names:
        title, suite, few, many = SUITES[name]
        results[name] = suite(subject, quick, watch(title, few if quick else many))
        results["seconds"] = round(time.monotonic() - started, 1)
        yield results


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
