"""Which rows each layer must run so that the answer is exact (model 4.2, design D5).

Called by the cache manager at admission; the engine reads the result chunk by chunk. Pure functions
over integers. Information flows back window - 1 tokens per layer, so from the last row wanted one
recursion finds the first row of every layer; what a snapshot or the cached memory already holds
ends it early. All cases of design D5 are this recursion with other borders:

    layer   0 ..................... hit ................................. prompt
    last                                                              [##]  rows wanted
    ...     decoder trapezoid                                  [#########]
    writer                                            [##################]  the layer of ratio 1
    ...     encoder              [.....halo....[#########################]  all rows from the hit on
    0                 [.....halo...............[#########################]

cold: no floor and no hit. halo: a hit, no snapshot. encoder: the encoder's layers start no earlier
than the snapshot. full: no layer does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from deodar.config import ModelConfig
from deodar.types import SnapshotKind

Kind = Literal["full", "encoder", "halo", "cold"]
Trim = Literal["exact", "bounded", "off"]
Replay = Literal["exact", "bounded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """What the arithmetic needs of a model: depth, window, and who writes memory.

    writers: (layer, ratio) of every KV source, increasing; the decoder starts at the last one,
    because every layer from there on reads the prompt only through its memory.
    """

    num_layers: int
    window_tokens: int
    writers: tuple[tuple[int, int], ...]

    @classmethod
    def from_config(cls, config: ModelConfig) -> LayerPlan:
        return cls(
            num_layers=config.num_hidden_layers,
            window_tokens=config.sliding_window,
            writers=tuple((layer, config.ratio(layer)) for layer in config.kv_source_layer_ids),
        )

    @property
    def decoder_start(self) -> int:
        return self.writers[-1][0]

    @property
    def decoder_reach_tokens(self) -> int:
        """How far back the last row needs the decoder's input, itself included (2,541)."""
        return 1 + (self.window_tokens - 1) * (self.num_layers - self.decoder_start)


@dataclass(frozen=True, slots=True)
class Saved:
    """A snapshot that a prompt could start from: its layers' rings are exact at `position`."""

    kind: SnapshotKind
    position: int
    snapshot_id: int = -1

    def covers(self, plan: LayerPlan, layer: int) -> bool:
        return self.kind == "full" or layer < plan.decoder_start


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The switches `--decoder-trim` and `--replay`; everything but "bounded" is exact."""

    trim: Trim = "exact"
    replay: Replay = "exact"

    @property
    def exact(self) -> bool:
        return "bounded" not in (self.trim, self.replay)


EXACT = Rules()


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows up to `stop`, exclusive: layer l runs layer_starts[l] .. stop - 1 (none if equal)."""

    stop: int
    layer_starts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """How a prompt of `prompt_tokens` starts, and every row it runs.

    position: where the snapshot is, 0 without one. hit_tokens: memory entries of these tokens are
    read from the cache and never written. first_row: the first token to feed; layer 0 makes window
    keys from it on, also below its own first row. keep: full snapshots to take on the way, besides
    the one at the prompt's end. Chunks may be cut anywhere but must be cut at every segment's stop.
    """

    kind: Kind
    position: int
    hit_tokens: int
    prompt_tokens: int
    first_row: int
    segments: tuple[Segment, ...]
    keep: tuple[int, ...] = ()
    snapshot_id: int | None = None
    exact: bool = True

    @property
    def layer_starts(self) -> tuple[int, ...]:
        """First row of every layer; with `keep` empty, all rows from there on are run."""
        return self.segments[0].layer_starts

    @property
    def replayed_tokens(self) -> int:
        """Tokens of the hit that are fed again."""
        return max(0, self.hit_tokens - self.first_row)

    @property
    def layer_rows(self) -> int:
        return sum(s.stop - start for s in self.segments for start in s.layer_starts)

    def chunk_starts(self, start: int, stop: int) -> tuple[int, ...]:
        """First row of every layer within the chunk start .. stop - 1; `stop` where it has none.

        Raises ValueError for a chunk that crosses a segment's end.
        """
        for segment in self.segments:
            if start < segment.stop:
                if stop > segment.stop:
                    raise ValueError(f"chunk {start}..{stop} crosses the cut at {segment.stop}")
                return tuple(min(max(start, s), stop) for s in segment.layer_starts)
        raise ValueError(f"chunk starts at {start}, the prompt ends at {self.prompt_tokens}")


def choose_resume(
    plan: LayerPlan,
    *,
    prompt_tokens: int,
    hit_tokens: int = 0,
    first_logit_row: int | None = None,
    saved: Iterable[Saved] = (),
    keep: tuple[int, ...] = (),
    rules: Rules = EXACT,
) -> Resume:
    """The way that runs the fewest layer-rows; on ties without a snapshot, then the later one.

    hit_tokens: matched tokens, fewer than the prompt has. saved: snapshots within the hit; those
    that cannot be used exactly are passed over. first_logit_row: the first prompt row whose logits
    are wanted, by default the last. keep: positions inside the prompt where a full snapshot is
    wanted as well (branch promotion). Raises ValueError for positions outside the prompt.
    """
    last = prompt_tokens - 1
    logits = last if first_logit_row is None else first_logit_row
    if not 0 <= logits <= last:
        raise ValueError(f"first_logit_row is {logits}, must be from 0 to {last}")
    if not 0 <= hit_tokens <= last:
        raise ValueError(f"hit_tokens is {hit_tokens}, must be from 0 to {last}")
    task = _Task(plan, prompt_tokens, logits, rules)
    if rules.replay == "bounded":
        useful = hit_tokens if hit_tokens > plan.window_tokens else 0
        found = task.resume(useful, None, ())
        assert found is not None
        return found
    tries: list[Saved | None] = [s for s in saved if 0 < s.position <= hit_tokens]
    ways = [task.resume(hit_tokens, s, keep) for s in (*tries, None)]
    usable = [way for way in ways if way is not None]
    return min(usable, key=lambda w: (w.layer_rows, w.snapshot_id is not None, -w.position))


@dataclass(frozen=True, slots=True)
class _Task:
    plan: LayerPlan
    prompt_tokens: int
    first_logit_row: int
    rules: Rules

    def resume(self, hit: int, saved: Saved | None, keep: Sequence[int]) -> Resume | None:
        """One way to start, or None where the snapshot cannot serve it."""
        logits, end = self.first_logit_row, self.prompt_tokens
        if self.rules.trim == "off":
            # Every layer runs every row, so only a full snapshot can save any.
            if saved is not None and saved.kind == "encoder":
                return None
            logits = min(logits, saved.position if saved else 0)
        floor = saved.position if saved else 0
        cuts = sorted(p for p in keep if floor < p < end)
        wanted = [_first_rows(self.plan, p, p, p, saved, self.rules) for p in cuts]
        wanted.append(_first_rows(self.plan, logits, end, hit, saved, self.rules))
        usable = [starts for starts in wanted if starts is not None]
        if len(usable) < len(wanted):
            return None
        segments = _segments((*cuts, end), [rows[1:] for rows in usable])
        way = Resume(
            kind=saved.kind if saved else "halo",
            position=floor,
            hit_tokens=hit,
            prompt_tokens=end,
            first_row=min(rows[0] for rows in usable),
            segments=segments,
            keep=tuple(cuts),
            snapshot_id=saved.snapshot_id if saved else None,
            exact=self.rules.exact,
        )
        encoder = way.layer_starts[: self.plan.decoder_start]
        return way if saved or any(encoder) else replace(way, kind="cold")


def _segments(stops: Sequence[int], wanted: Sequence[tuple[int, ...]]) -> tuple[Segment, ...]:
    """Rows wanted for each stop and for any later one, cut at the stops."""
    segments: list[Segment] = []
    begin = 0
    for i, stop in enumerate(stops):
        earliest = [min(starts) for starts in zip(*wanted[i:], strict=True)]
        segments.append(Segment(stop, tuple(min(max(begin, s), stop) for s in earliest)))
        begin = stop
    return tuple(segments)


def _first_rows(
    plan: LayerPlan, out_from: int, rings_at: int, hit: int, saved: Saved | None, rules: Rules
) -> tuple[int, ...] | None:
    """The first token to feed, then the first output row of every layer.

    None if `saved` lies above a row that is needed.

    Wanted are: the last layer's rows from `out_from` on, window keys of every layer for the whole
    window before `rings_at`, and memory entries of all tokens from `hit` on.
    """
    window, ratios = plan.window_tokens, dict(plan.writers)
    starts = [0] * plan.num_layers
    need = out_from
    for layer in reversed(range(plan.num_layers)):
        decoder = layer >= plan.decoder_start
        bounded = (rules.trim if decoder else rules.replay) == "bounded"
        if bounded:
            # One window of rows in every layer; their own windows are cut short below it.
            border = rings_at if decoder else hit
            need = max(0, min(need, border - window))
        floor = saved.position if saved is not None and saved.covers(plan, layer) else None
        if floor is not None and need < floor:
            if not bounded:
                return None
            need = floor
        starts[layer] = need
        keys = need if bounded else min(need - (window - 1), rings_at - window)
        entries = rings_at
        if layer in ratios:
            # A pair that is open at the hit is made again, from its first token on.
            entries = hit - hit % ratios[layer]
        if floor is not None:
            # Below the snapshot its rings and its unpaired rows are there.
            keys, entries = max(keys, floor), max(entries, floor)
        need = max(0, min(keys, entries))
    return (need, *starts)


def encoder_exact_from(plan: LayerPlan, resume: Resume) -> int:
    """The first position > 0 at which a run of `resume` may keep an encoder snapshot."""
    # Layer 0 has keys from the first token fed on, layer l from the first row of layer l - 1; where
    # that is later than the snapshot, the rows between are missing until a window has passed.
    latest = max((resume.first_row, *resume.layer_starts[: max(0, plan.decoder_start - 1)]))
    return resume.position + 1 if latest <= resume.position else latest + plan.window_tokens


def rows_without_trim(plan: LayerPlan, tokens: int) -> int:
    """Layer-rows of running everything: what shares and savings are measured against."""
    return plan.num_layers * tokens
