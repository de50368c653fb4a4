"""The oracle of exact resume: information flow, row by row, on small plans.

A row's output is exact when it was run, its input is exact, every window key it sees is exact and
every memory entry it could choose is exact. Written from sections 3.6, 3.8 and 4 of the model
specification, with no arithmetic shared with `deodar.cache.resume`.
"""

from __future__ import annotations

from dataclasses import dataclass

from deodar.cache.resume import LayerPlan, Resume, Saved


@dataclass(frozen=True)
class Flow:
    """Which outputs, keys and entries are exact after a run."""

    outputs: list[list[bool]]
    keys: list[list[bool]]
    entries: dict[int, list[bool]]


def ran_rows(resume: Resume, layer: int) -> set[int]:
    rows: set[int] = set()
    for segment in resume.segments:
        rows.update(range(segment.layer_starts[layer], segment.stop))
    return rows


def simulate(plan: LayerPlan, resume: Resume, saved: Saved | None) -> Flow:
    n, hit, window = resume.prompt_tokens, resume.hit_tokens, plan.window_tokens
    ratios = dict(plan.writers)
    inputs = [p >= resume.first_row for p in range(n)]
    outputs: list[list[bool]] = []
    keys: list[list[bool]] = []
    entries: dict[int, list[bool]] = {}
    source: int | None = None
    for layer in range(plan.num_layers):
        covered = saved is not None and saved.covers(plan, layer)
        place = saved.position if covered and saved else 0
        # A snapshot taken at P + 1 and used at P holds one row less than a whole window.
        stored = range(max(0, place - (window - 1)), place)
        keys.append([inputs[p] or p in stored for p in range(n)])
        if layer in ratios:
            source, r = layer, ratios[layer]
            made = [inputs[p] or (covered and p == place - 1) for p in range(n)]
            entries[layer] = [
                (j + 1) * r <= hit or all(made[j * r : (j + 1) * r]) for j in range(n // r)
            ]
        rows = ran_rows(resume, layer)
        out = []
        for p in range(n):
            ok = p in rows and inputs[p] and all(keys[layer][max(0, p - window + 1) : p + 1])
            if ok and source is not None:
                ok = all(entries[source][: (p + 1) // ratios[source]])
            out.append(ok)
        outputs.append(out)
        inputs = out
    return Flow(outputs, keys, entries)


def is_exact(plan: LayerPlan, resume: Resume, saved: Saved | None, first_logit_row: int) -> bool:
    """Logits from first_logit_row on, all entries, and rings at the end and at every kept point."""
    flow, n = simulate(plan, resume, saved), resume.prompt_tokens
    places = (*resume.keep, n)
    rings = all(all(keys[max(0, p - plan.window_tokens) : p]) for keys in flow.keys for p in places)
    memory = all(all(entries) for entries in flow.entries.values())
    return rings and memory and all(flow.outputs[-1][first_logit_row:])
