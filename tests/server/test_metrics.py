"""The metrics page: totals equal the usages (case D16), names, and the identities of api 5.3."""

import pytest
from fake_engine import steps_of, token_ids
from metrics_page import change, samples

HELLO = [{"role": "user", "content": "6 + 6?"}]


def page(place):
    response = place.http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return samples(response.text)


def create(place, **fields):
    return place.client.chat.completions.create(model="seedling", messages=HELLO, **fields)


def usage_of(place, kind):
    """The usage of the same request, sent in another way each time."""
    if kind == "body":
        return create(place).usage
    if kind == "silent stream":
        chunks = list(create(place, stream=True))
        assert all(chunk.usage is None for chunk in chunks)
        return None
    options = {"include_usage": True, "continuous_usage_stats": kind == "running usage"}
    chunks = list(create(place, stream=True, stream_options=options))
    (last,) = (chunk for chunk in chunks if not chunk.choices)
    running = [chunk.usage for chunk in chunks if chunk.usage is not None]
    counts = [usage.completion_tokens for usage in running]
    assert counts == sorted(counts)
    assert counts[-1] == last.usage.completion_tokens
    return last.usage


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("cached", [0, 5])
def test_case_d16_the_same_numbers_in_stream_body_and_metrics(place, size, cached):
    place.script("Let me see.</think>It is 12.<｜end▁of▁sentence｜>", size)
    place.engine.cached_tokens = cached
    usages, changes = [], []
    for kind in ("body", "stream", "running usage", "silent stream"):
        before = page(place)
        usages.append(usage_of(place, kind))
        changes.append(change(before, page(place)))
    usage = usages[0]
    assert usages == [usage, usage, usage, None]
    assert usage.prompt_tokens_details.cached_tokens == cached
    steps = -(-usage.completion_tokens // size)
    for grown in changes:
        assert grown.pop("deodar_generation_tokens_total") == usage.completion_tokens
        assert grown.pop("deodar_prompt_tokens_total") == usage.prompt_tokens
        assert grown.pop("deodar_cached_prompt_tokens_total", 0) == cached
        reasoning = usage.completion_tokens_details.reasoning_tokens
        assert grown.pop("deodar_reasoning_tokens_total") == reasoning
        assert grown.pop("deodar_requests_ended_total/stop") == 1
        assert grown.pop("deodar_inter_token_seconds_count", 0) == steps - 1
        for name in ("request_seconds", "time_to_first_token_seconds", "request_decode_seconds"):
            assert grown.pop(f"deodar_{name}_count") == 1
        assert grown.pop("vllm:generation_tokens_total") == usage.completion_tokens
        assert grown.pop("vllm:prefix_cache_queries_total") == usage.prompt_tokens
        assert grown.pop("vllm:prefix_cache_hits_total", 0) == cached
        assert grown.pop("vllm:request_success_total/stop") == 1


def test_aborted_answers_count_under_their_own_label(place):
    ids = token_ids(place.tokenizer, "abc")
    place.engine.script = lambda request: [*steps_of(ids), "wait"]
    before = page(place)
    stream = create(place, stream=True)
    got = 0
    for chunk in stream:
        got += bool(getattr(chunk.choices[0].delta, "reasoning_content", None))
        if got == 3:
            stream.close()
            break
    place.wait_until(lambda: "deodar_requests_ended_total/abort" in change(before, page(place)))
    grown = change(before, page(place))
    assert grown["deodar_requests_ended_total/abort"] == 1
    assert grown["deodar_client_disconnects_total"] == 1
    assert grown["deodar_generation_tokens_total"] == 3
    assert "deodar_requests_ended_total/stop" not in grown


def test_an_answer_that_stops_inside_a_step_counts_what_was_read(place):
    ids = token_ids(place.tokenizer, "x</think>one STOP two")
    place.engine.script = lambda request: [tuple(ids)]
    before = page(place)
    usage = create(place, stop="STOP").usage
    grown = change(before, page(place))
    assert usage.completion_tokens == len(ids) - len(" two")
    assert grown["deodar_generation_tokens_total"] == usage.completion_tokens


def test_failures_and_refusals(place):
    place.engine.script = lambda request: [(65,), "error"]
    before = page(place)
    assert place.post({"messages": HELLO}).status_code == 500
    assert place.post({"messages": HELLO, "temperature": 9}).status_code == 400
    grown = change(before, page(place))
    assert grown["deodar_requests_ended_total/error"] == 1
    assert grown["deodar_prompt_tokens_total"] > 0
    assert sum(v for k, v in grown.items() if k.startswith("deodar_requests_ended")) == 1


def test_names_that_dashboards_use_are_there_and_answered_while_unhealthy(place):
    place.engine.healthy = False
    found = page(place)
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prompt_tokens_total",
        "generation_tokens_total",
        "request_success_total",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "num_preemptions_total",
        "time_to_first_token_seconds_bucket",
        "inter_token_latency_seconds_bucket",
        "request_time_per_output_token_seconds_bucket",
        "e2e_request_latency_seconds_bucket",
        "request_queue_time_seconds_bucket",
        "request_prefill_time_seconds_bucket",
        "request_decode_time_seconds_bucket",
        "request_prompt_tokens_bucket",
        "request_generation_tokens_bucket",
        "cache_config_info",
        "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
    ):
        assert f"vllm:{name}" in found, name
    assert found["deodar_engine_ready"] == {(): 0.0}
    assert {reason for ((_, reason),) in found["vllm:request_success_total"]} == {
        "stop",
        "length",
        "abort",
        "error",
    }
    own = {name for name in found if not name.startswith("vllm:")}
    assert all(name.startswith("deodar_") and ":" not in name for name in own)
    assert not any(name.endswith("_created") for name in found)
