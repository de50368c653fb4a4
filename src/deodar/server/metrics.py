"""Prometheus series (spec api 5.3): what the ledger's records add up to, and the engine's gauges.

One observer of the ledger feeds all series under `deodar_`; the vLLM-named ones are the same
numbers under other names, made when the page is read. What must hold: prompt tokens = computed +
cached; generation tokens = the sum of all usages, aborted answers included; counters never go
backwards; the page is answered while the engine hangs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from deodar import __version__
from deodar.engine.client import EngineClient
from deodar.engine.ledger import Commit, Record

MetricsCompat = Literal["vllm", "none"]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABELS = ("model_name", "engine")

_FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKEN_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_PHASE_S = (
    0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_TOKENS = tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5)) + (1e6,)

_COUNTERS = {
    "prompt_tokens": "Prompt tokens of all requests, cached ones included",
    "cached_prompt_tokens": "Prompt tokens that no layer ran",
    "replayed_tokens": "Cached tokens that some layers ran again to fill their windows",
    "recomputed_tokens": "Tokens run again after a preemption",
    "generation_tokens": "Tokens of all answers, aborted ones included",
    "reasoning_tokens": "Tokens of reasoning among the generation tokens",
    "preemptions": "Times that a running request had to make room",
    "drafts": "Steps that checked drafted tokens",
    "drafted_tokens": "Tokens that were drafted and checked",
    "accepted_draft_tokens": "Drafted tokens that were accepted and read",
    "client_disconnects": "Answers whose client went away",
}
_SPANS = {
    "first_token": (
        "time_to_first_token_seconds",
        "Arrival to the first token sent",
        _FIRST_TOKEN_S,
    ),
    "queue": ("request_queue_seconds", "Arrival to first scheduling", _PHASE_S),
    "prefill": ("request_prefill_seconds", "First scheduling to first token", _PHASE_S),
    "decode": ("request_decode_seconds", "First to last token", _PHASE_S),
    "whole": ("request_seconds", "Arrival to the end", _PHASE_S),
}
_HISTOGRAMS = {
    "inter_token_seconds": ("Between steps of one answer", _TOKEN_S),
    "time_per_output_token_seconds": ("Between steps, divided by the step's tokens", _TOKEN_S),
    "request_prompt_tokens": ("Prompt tokens per request", _TOKENS),
    "request_generation_tokens": ("Generated tokens per request", _TOKENS),
}

# Our family -> the name that dashboards written for vLLM look for (without `vllm:`).
_VLLM = {
    "requests_running": "num_requests_running",
    "requests_waiting": "num_requests_waiting",
    "kv_used_ratio": "kv_cache_usage_perc",
    "kv_config": "cache_config",
    "prompt_tokens": "prompt_tokens",
    "generation_tokens": "generation_tokens",
    "requests_ended": "request_success",
    "cached_prompt_tokens": "prefix_cache_hits",
    "preemptions": "num_preemptions",
    "drafts": "spec_decode_num_drafts",
    "drafted_tokens": "spec_decode_num_draft_tokens",
    "accepted_draft_tokens": "spec_decode_num_accepted_tokens",
    "accepted_draft_tokens_by_position": "spec_decode_num_accepted_tokens_per_pos",
    "time_to_first_token_seconds": "time_to_first_token_seconds",
    "inter_token_seconds": "inter_token_latency_seconds",
    "time_per_output_token_seconds": "request_time_per_output_token_seconds",
    "request_seconds": "e2e_request_latency_seconds",
    "request_queue_seconds": "request_queue_time_seconds",
    "request_prefill_seconds": "request_prefill_time_seconds",
    "request_decode_seconds": "request_decode_time_seconds",
    "request_prompt_tokens": "request_prompt_tokens",
    "request_generation_tokens": "request_generation_tokens",
}


class Metrics:
    """All series of one served model; an observer of its ledger."""

    def __init__(self, engine: EngineClient, model_name: str, *, compat: MetricsCompat) -> None:
        labels = (model_name, "0")
        self._own = CollectorRegistry()
        self._counters = {
            name: Counter(f"deodar_{name}", text, LABELS, registry=self._own).labels(*labels)
            for name, text in _COUNTERS.items()
        }
        kinds = _HISTOGRAMS | {name: (text, b) for name, text, b in _SPANS.values()}
        self._histograms = {
            name: Histogram(
                f"deodar_{name}", text, LABELS, buckets=buckets, registry=self._own
            ).labels(*labels)
            for name, (text, buckets) in kinds.items()
        }
        ended = Counter(
            "deodar_requests_ended",
            "Answers that ended, by reason",
            (*LABELS, "finished_reason"),
            registry=self._own,
        )
        self._ended = {
            reason: ended.labels(*labels, reason) for reason in ("stop", "length", "abort", "error")
        }
        self._by_position = Counter(
            "deodar_accepted_draft_tokens_by_position",
            "Accepted drafted tokens, by place in the draft",
            (*LABELS, "position"),
            registry=self._own,
        )
        self._labels = labels
        self._own.register(_Gauges(engine, labels))
        self._page = CollectorRegistry()
        self._page.register(_Renamed(self._own, compat == "vllm"))

    def page(self) -> bytes:
        """The text format of everything."""
        return generate_latest(self._page)

    def disconnected(self) -> None:
        """A client went away before its answer ended."""
        self._counters["client_disconnects"].inc()

    # --- observer of the ledger ------------------------------------------------------------------

    def committed(self, record: Record, commit: Commit, reasoning: int) -> None:
        """Count the tokens of a step and the time since the one before."""
        count = self._counters
        count["generation_tokens"].inc(commit.tokens)
        count["reasoning_tokens"].inc(reasoning)
        if commit.drafted:
            count["drafts"].inc()
            count["drafted_tokens"].inc(commit.drafted)
            count["accepted_draft_tokens"].inc(commit.accepted)
            for position in range(commit.accepted):
                self._by_position.labels(*self._labels, str(position)).inc()
        if commit.tokens and len(record.commits) == 1:
            self._count_prompt(record)
        elif commit.tokens:
            gap = max(0.0, commit.time - record.commits[-2].time)
            self._histograms["inter_token_seconds"].observe(gap)
            self._histograms["time_per_output_token_seconds"].observe(gap / commit.tokens)

    def sent(self, record: Record) -> None:
        """The first token is out."""
        self._observe(record, "first_token")

    def ended(self, record: Record) -> None:
        """The record is complete."""
        assert record.reason is not None
        if not record.commits:
            self._count_prompt(record)
        reason = "stop" if record.reason == "tool_calls" else record.reason
        self._ended[reason].inc()
        for span in ("queue", "prefill", "decode", "whole"):
            self._observe(record, span)
        self._histograms["request_prompt_tokens"].observe(record.prompt_tokens)
        self._histograms["request_generation_tokens"].observe(len(record.token_ids))
        if record.engine is not None:
            self._counters["replayed_tokens"].inc(record.engine.replayed_tokens)
            self._counters["recomputed_tokens"].inc(record.engine.recomputed_tokens)
            self._counters["preemptions"].inc(record.engine.preemptions)

    def _count_prompt(self, record: Record) -> None:
        self._counters["prompt_tokens"].inc(record.prompt_tokens)
        self._counters["cached_prompt_tokens"].inc(record.cached_tokens)

    def _observe(self, record: Record, span: str) -> None:
        seconds = record.spans().get(span)
        if seconds is not None:
            self._histograms[_SPANS[span][0]].observe(max(0.0, seconds))


class _Gauges(Collector):
    """What the engine said last; read without asking it."""

    def __init__(self, engine: EngineClient, labels: tuple[str, str]) -> None:
        self._engine = engine
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        stats, info = self._engine.stats(), self._engine.info()
        used = stats.used_tokens / stats.total_tokens if stats.total_tokens else 0.0
        gauges = {
            "engine_ready": ("1 if requests can be answered", float(stats.ready)),
            "engine_silent_seconds": ("Since the step loop was last seen to turn", stats.silent_s),
            "requests_running": ("Requests that take part in steps", float(stats.running)),
            "requests_waiting": ("Requests that wait", float(stats.waiting)),
            "waiting_tokens": ("Prompt tokens of waiting requests", float(stats.waiting_tokens)),
            "kv_used_tokens": ("Tokens held in KV memory", float(stats.used_tokens)),
            "kv_total_tokens": ("Tokens that KV memory can hold", float(stats.total_tokens)),
            "snapshots": ("Saved states that are kept for reuse", float(stats.snapshots)),
            "kv_used_ratio": ("Share of KV memory in use, 0 to 1", used),
        }
        for name, (text, value) in gauges.items():
            gauge = GaugeMetricFamily(f"deodar_{name}", text, labels=LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        counts = {
            "engine_steps": ("Steps run", stats.steps),
            "engine_restarts": ("Restarts of the engine process", stats.restarts),
        }
        for name, (text, value) in counts.items():
            counter = CounterMetricFamily(f"deodar_{name}", text, labels=LABELS)
            counter.add_metric(self._labels, value)
            yield counter
        config = InfoMetricFamily("deodar_kv_config", "KV memory", labels=LABELS)
        pages = {"block_size": str(info.page_tokens), "num_gpu_blocks": str(info.total_pages)}
        config.add_metric(self._labels, pages | {"version": __version__})
        yield config


class _Renamed(Collector):
    """The own families, and the vLLM-named ones from the same samples."""

    def __init__(self, own: CollectorRegistry, vllm: bool) -> None:
        self._own = own
        self._vllm = vllm

    def collect(self) -> Iterator[Metric]:
        families = [_renamed(family, family.name) for family in self._own.collect()]
        yield from families
        if not self._vllm:
            return
        for family in families:
            name = _VLLM.get(family.name.removeprefix("deodar_"))
            if name is not None:
                yield _renamed(family, f"vllm:{name}")
            if family.name == "deodar_prompt_tokens":  # every prompt token is looked up
                yield _renamed(family, "vllm:prefix_cache_queries")

    def describe(self) -> Iterable[Metric]:
        return ()


def _renamed(family: Metric, name: str) -> Metric:
    """The same samples under another family name; time of creation is left out."""
    copy = Metric(name, family.documentation, family.type)
    for sample in family.samples:
        suffix = sample.name.removeprefix(family.name)
        if suffix != "_created":
            copy.add_sample(name + suffix, sample.labels, sample.value)
    return copy
