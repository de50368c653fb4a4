"""The values that travel between rooms. Imports nothing of the package at run time.

    GenerateRequest -> scheduler -> StepPlan -> engine -> StepOutput -> scheduler -> TokenEvent

All are frozen; token ids are plain ints; no tensors. What is made for every token of every sequence
is a struct, which is ten times as quick to make as a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort", "error"]
SnapshotKind = Literal["full", "encoder"]
OPEN_TOKEN = -1
"""Stands in a chunk for the token that the step before it has not drawn yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen (design D4). Ranges are checked where requests enter.

    temperature: 0 means arg-max, lowest id on ties. top_k: 0 is off. seed: None draws 63 random
    bits at submission. max_tokens: None means what is left of the context. top_logprobs: how many
    of the likeliest tokens are reported beside each drawn one; it does not change what is drawn.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """What the client asked, in token ids.

    arrival, deadline: monotonic clock in seconds; a request that has not ended at its deadline is
    ended. priority: lower runs first. cache_salt: only requests of one salt share what is cached.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    arrival: float = 0.0
    priority: int = 0
    cache_salt: str = ""
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Copy the entries of the first `tokens` tokens of page `source` to page `target`."""

    source: int
    target: int
    tokens: int


@dataclass(frozen=True, slots=True)
class SlotSave:
    """Copy the rings of `slot`, as they are after token `position` - 1, into a snapshot."""

    snapshot_id: int
    slot: int
    kind: SnapshotKind
    position: int


@dataclass(frozen=True, slots=True)
class SlotRestore:
    """Fill `slot` from a snapshot: its rings are valid for the tokens before `position`.

    A full snapshot taken at N is restored at N or at N - 1. What it does not hold is void.
    """

    slot: int
    snapshot_id: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One sequence's share of a step: run `token_ids` at positions start, start + 1, ...

    kind: "prefill" rows belong to the prompt, "decode" rows to generated text (design D3).
    slot: the state slot that the sequence holds. sampling: how to draw a token from the last row,
    its seed resolved, or None where nothing is drawn; output_index is the index of that token in
    the answer, the key of its noise (design D4). pages: the sequence's page table; page p holds
    tokens p * page_tokens and following. layer_starts: the first position that each layer runs,
    the end of the chunk where it runs none; None: every layer runs every row. hit_tokens: memory
    entries of tokens below it are in the pages already and are not written. save: the snapshot to
    take when the chunk has run.
    """

    request_id: str
    slot: int
    kind: Literal["prefill", "decode"]
    start: int
    token_ids: tuple[int, ...]
    sampling: SamplingParams | None = None
    output_index: int = 0
    pages: tuple[int, ...] = ()
    layer_starts: tuple[int, ...] | None = None
    hit_tokens: int = 0
    save: SlotSave | None = None

    @property
    def stop(self) -> int:
        """The position after the last row."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What one step runs: orders, in the order of the fields, and then the chunks.

    unloads: snapshots that give up their copy on the device and keep the one on the host. saves:
    slots whose owner has ended or was parked. spills, loads: snapshots to copy to and from
    the host. dropped: snapshots that are forgotten. page_copies, restores: for sequences that
    start. reset_slots get a new owner: what they held is void. Chunks of one sequence never share a
    step, and their order has no meaning for the result.
    """

    step_no: int
    unloads: tuple[int, ...] = ()
    saves: tuple[SlotSave, ...] = ()
    spills: tuple[int, ...] = ()
    loads: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    page_copies: tuple[PageCopy, ...] = ()
    restores: tuple[SlotRestore, ...] = ()
    reset_slots: tuple[int, ...] = ()
    chunks: tuple[Chunk, ...] = ()

    @property
    def is_idle(self) -> bool:
        """Nothing to run and nothing to copy."""
        orders = self.unloads or self.saves or self.spills or self.loads or self.dropped
        return not (self.chunks or orders or self.page_copies or self.restores)

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.token_ids) for chunk in self.chunks)


TopLogprobs = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One drawn token and its log-probability: log-softmax of the raw logits (design D4).

    top: the likeliest tokens with theirs, best first, as many as `SamplingParams.top_logprobs`.
    """

    token_id: int
    logprob: float
    top: TopLogprobs = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """What a step produced: the tokens of each chunk of the plan, and the chunks that raised.

    sampled: one entry per chunk, empty where nothing was sampled. failed: request id -> text for
    the client; what these chunks did is void and their requests end. void: requests whose state is
    no longer sure because a step broke off; they start again from their prompt.
    """

    step_no: int
    sampled: tuple[tuple[SampledToken, ...], ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    void: frozenset[str] = frozenset()


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine has spent on one request so far; all counts only grow.

    cached_tokens: prompt tokens that no layer ran. replayed_tokens: cached ones that some layers
    ran again to fill their windows. recomputed_tokens: run again after a preemption. drafts: steps
    that checked drafted tokens.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    replayed_tokens: int = 0
    recomputed_tokens: int = 0
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0


class TokenEvent(msgspec.Struct, frozen=True, kw_only=True):
    """News of one request. `finish_reason` is set on its last event and never before.

    error: text for the client when finish_reason is "error". scheduled: monotonic clock in seconds
    when the request first took part in a plan, None before that.
    """

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    usage: Usage
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None
    seed: int = 0
    top_logprobs: tuple[TopLogprobs, ...] = ()
    scheduled: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What an engine says of itself when it is ready."""

    pid: int
    context: int
    vocab_size: int
    slots: int
    step_tokens: int
    device: str
    numerics: str
    page_tokens: int = 0
    total_pages: int = 0
    decoder_trim: str = "exact"
    replay: str = "exact"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Gauges of an engine. The last three are filled in by the client that watches it.

    turns: rounds of the step loop, idle ones too. waiting_tokens: prompt tokens of the waiting
    requests. used_tokens, total_tokens: KV memory in tokens. snapshots: saved states that are kept.
    silent_s: seconds since the loop was last seen to turn.
    """

    turns: int = 0
    steps: int = 0
    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    used_tokens: int = 0
    total_tokens: int = 0
    snapshots: int = 0
    ready: bool = False
    restarts: int = 0
    silent_s: float = 0.0
