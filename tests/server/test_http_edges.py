"""Bad input and the small routes: the right status, the named field, and no 500."""

import json
import re
from pathlib import Path

import httpx
import openai
import pytest

from deodar.server.fields import IGNORED, REFUSED
from deodar.server.schema import HONOURED

HELLO = [{"role": "user", "content": "hi"}]
PATH = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

# Every request field of spec api 3.2 and the others that clients of this route are known to send.
KNOWN = set(
    """
model messages max_tokens max_completion_tokens temperature top_p top_k min_p presence_penalty
frequency_penalty repetition_penalty seed n stop stop_token_ids ignore_eos min_tokens
include_stop_str_in_output skip_special_tokens spaces_between_special_tokens stop_regex
no_stop_trim logit_bias logprobs top_logprobs prompt_logprobs return_tokens_as_token_ids
return_token_ids echo allowed_token_ids bad_words logprob_token_ids input_ids return_hidden_states
return_meta_info return_cached_tokens_details return_routed_experts stream stream_options
stream_interval tools tool_choice parallel_tool_calls response_format structured_outputs guided_json
guided_regex guided_choice guided_grammar regex ebnf json_schema reasoning_effort thinking
include_reasoning separate_reasoning stream_reasoning thinking_token_budget chat_template_kwargs
chat_template add_generation_prompt continue_final_message add_special_tokens documents
mm_processor_kwargs priority cache_salt extra_key request_id rid session_id prompt_cache_key
kv_transfer_params bootstrap_host bootstrap_port bootstrap_room routed_dp_rank
truncate_prompt_tokens truncation_side task lora_path custom_logit_processor vllm_xargs
use_beam_search best_of repetition_detection user metadata store service_tier safety_identifier
verbosity prediction modalities audio functions function_call web_search_options
guided_decoding_backend name
""".split()  # noqa: SIM905
)


def test_every_known_field_is_honoured_ignored_or_refused():
    tables = [set(HONOURED), set(IGNORED), set(REFUSED)]
    assert set().union(*tables) == KNOWN
    assert sum(map(len, tables)) == len(KNOWN)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_fields_are_named_and_neutral_values_pass(place, name):
    response = place.post({"messages": HELLO, name: {"asks": "for something"}})
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["param"], error["type"]) == (name, "invalid_request_error")
    assert name in error["message"]
    for value in REFUSED[name].neutral:
        assert place.post({"messages": HELLO, name: value}).status_code == 200


def test_a_neutral_value_is_of_the_right_type(place):
    assert place.post({"messages": HELLO, "n": True}).status_code == 400
    assert place.post({"messages": HELLO, "n": 1.0}).status_code == 200
    assert place.post({"messages": HELLO, "logprobs": 0}).status_code == 400
    assert place.post({"messages": HELLO, "n": 2}).json()["error"]["param"] == "n"


@pytest.mark.parametrize("name", [*sorted(IGNORED), "never_heard_of"])
def test_ignored_and_unknown_fields_do_not_change_the_request(place, name):
    assert place.post({"messages": HELLO}).status_code == 200
    assert place.post({"messages": HELLO, name: {"any": 1}}).status_code == 200
    plain, other = place.engine.requests
    assert (plain.prompt_ids, plain.sampling) == (other.prompt_ids, other.sampling)


BAD = [
    ({"messages": HELLO, "max_tokens": 0}, "max_tokens"),
    ({"messages": HELLO, "max_tokens": -5}, "max_tokens"),
    ({"messages": HELLO, "max_tokens": 2001}, "max_tokens"),
    ({"messages": HELLO, "max_completion_tokens": -1}, "max_completion_tokens"),
    ({"messages": HELLO, "max_tokens": "5"}, "max_tokens"),
    ({"messages": HELLO, "max_tokens": True}, "max_tokens"),
    ({"messages": HELLO, "max_tokens": 1.5}, "max_tokens"),
    ({"messages": HELLO, "temperature": -0.1}, "temperature"),
    ({"messages": HELLO, "temperature": 2.1}, "temperature"),
    ({"messages": HELLO, "temperature": "hot"}, "temperature"),
    ({"messages": HELLO, "top_p": 0}, "top_p"),
    ({"messages": HELLO, "top_p": 1.1}, "top_p"),
    ({"messages": HELLO, "top_k": -2}, "top_k"),
    ({"messages": HELLO, "min_p": 2}, "min_p"),
    ({"messages": HELLO, "seed": 2**63}, "seed"),
    ({"messages": HELLO, "seed": 2**70}, "seed"),
    ({"messages": HELLO, "seed": "x"}, "seed"),
    ({"messages": HELLO, "stop": ["a"] * 17}, "stop"),
    ({"messages": HELLO, "stop": ""}, "stop"),
    ({"messages": HELLO, "stop": [1]}, "stop[0]"),
    ({"messages": HELLO, "stop_token_ids": [10**6]}, "stop_token_ids"),
    ({"messages": HELLO, "stream_options": {"include_usage": True}}, "stream_options"),
    ({"messages": HELLO, "request_id": "a\r\nb"}, "request_id"),
    ({"messages": HELLO, "thinking": {"type": "sometimes"}}, "thinking.type"),
    ({"messages": HELLO, "thinking": {}}, "thinking"),
    ({"messages": HELLO, "reasoning_effort": 0}, "reasoning_effort"),
    ({"messages": HELLO, "reasoning_effort": 101}, "reasoning_effort"),
    ({"messages": HELLO, "reasoning_effort": 37.5}, "reasoning_effort"),
    ({"messages": HELLO, "reasoning_effort": "huge"}, "reasoning_effort"),
    ({"messages": HELLO, "reasoning_effort": True}, "reasoning_effort"),
    (
        {"messages": HELLO, "chat_template_kwargs": {"reasoning_effort": "huge"}},
        "chat_template_kwargs.reasoning_effort",
    ),
    ({"messages": HELLO, "task": "sing"}, "task"),
    ({"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
    ({"messages": HELLO, "tool_choice": "perhaps", "tools": [TOOL]}, "tool_choice"),
    ({"messages": HELLO, "tool_choice": "required", "tools": [TOOL]}, "tool_choice"),
    (
        {
            "messages": HELLO,
            "thinking": {"type": "disabled"},
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
        },
        "tool_choice",
    ),
    (
        {
            "messages": HELLO,
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "g"}},
        },
        "tool_choice",
    ),
    ({"messages": HELLO, "tools": [{"type": "function"}]}, "tools[0].function"),
    ({"messages": HELLO, "tools": [{"type": "custom"}]}, "tools[0].type"),
    (
        {"messages": HELLO, "tools": [{"type": "function", "function": {"name": "a b"}}]},
        "tools[0].function.name",
    ),
    (
        {"messages": HELLO, "tools": [{"function": {"name": "f", "strict": True}}]},
        "tools[0].function.strict",
    ),
    ({"messages": HELLO, "response_format": {"type": "json_object"}}, "response_format"),
    ({"messages": HELLO, "response_format": {"type": "xml"}}, "response_format.type"),
    (
        {"messages": HELLO, "response_format": {"type": "json_schema"}},
        "response_format.json_schema.schema",
    ),
    ({"messages": HELLO, "continue_final_message": True}, "continue_final_message"),
    ({}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": {}}, "messages"),
    ({"messages": [1]}, "messages[0]"),
    ({"messages": [{"content": "x"}]}, "messages[0]"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
        "messages[0].content[0]",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0]",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content",
    ),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "q"}]}, "messages"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]},
        "messages[0].tool_calls[0].id",
    ),
]


@pytest.mark.parametrize(("body", "param"), BAD, ids=lambda value: json.dumps(value)[:60])
def test_bad_values_are_a_400_that_names_the_field(place, body, param):
    response = place.post(body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert param.split(".")[0].split("[")[0] in error["message"]
    assert place.engine.requests == []


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b"{", 400, "invalid_json"),
        (b"[]", 400, "invalid_json"),
        (b'"x"', 400, "invalid_json"),
        (b"\xff\xfe", 400, "invalid_json"),
        (b'{"messages": NaN}', 400, "invalid_json"),
        (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", 400, "invalid_json"),
        (b"[" * 50_000, 400, "invalid_json"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400, "invalid_json"),
        (b"x" * 100_001, 413, "request_too_large"),
    ],
)
def test_bodies_that_are_no_json_object(place, content, status, code):
    response = place.http.post(PATH, content=content, headers={"content-type": "application/json"})
    assert response.status_code == status
    assert response.json()["error"]["code"] == code


def test_a_large_body_without_a_length_is_refused_too(place):
    chunks = (b"x" * 10_000 for _ in range(20))
    response = place.http.post(PATH, content=chunks, headers={"content-type": "application/json"})
    assert response.status_code == 413


def test_the_content_type(place):
    body = json.dumps({"messages": HELLO}).encode()
    assert place.http.post(PATH, content=body).status_code == 200  # none at all
    form = {"content-type": "application/x-www-form-urlencoded"}
    response = place.http.post(PATH, content=body, headers=form)
    assert response.status_code == 415
    assert "application/json" in response.json()["error"]["message"]


def test_an_unknown_model_is_a_404(place):
    with pytest.raises(openai.NotFoundError) as refused:
        place.client.chat.completions.create(model="gpt-x", messages=HELLO)
    assert refused.value.code == "model_not_found"
    assert refused.value.param == "model"
    assert "seedling" in refused.value.message


def test_every_served_name_and_none_are_accepted(place):
    assert place.post({"messages": HELLO, "model": "alias"}).json()["model"] == "alias"
    assert place.post({"messages": HELLO, "model": ""}).json()["model"] == "seedling"


def test_a_prompt_longer_than_the_context_has_the_wording_that_clients_read(place):
    with pytest.raises(openai.BadRequestError) as refused:
        place.client.chat.completions.create(
            model="seedling", messages=[{"role": "user", "content": "x" * 5000}]
        )
    assert refused.value.code == "context_length_exceeded"
    assert "This model's maximum context length is 2000 tokens." in refused.value.message


def test_a_prompt_far_too_long_is_refused_before_it_is_tokenised(place, monkeypatch):
    monkeypatch.setattr(place.tokenizer.__class__, "encode_prompt", None)
    answer = place.post({"messages": [{"role": "user", "content": "x" * 95_000}]})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert (
        "This model's maximum context length is 2000 tokens." in answer.json()["error"]["message"]
    )


def test_the_answer_is_shortened_to_the_context(place):
    place.post({"messages": HELLO, "max_tokens": 1990})
    place.post({"messages": HELLO})
    for request in place.engine.requests:
        assert len(request.prompt_ids) + request.sampling.max_tokens == 2000


def test_an_engine_that_is_not_ready_is_a_503_to_try_again(place):
    place.engine.healthy = False
    for response in (place.post({"messages": HELLO}), place.http.get("/health")):
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
    place.engine.healthy = True
    assert place.http.get("/health").json() == {"status": "ok"}


def test_models(place):
    models = place.client.models.list().data
    assert [model.id for model in models] == ["seedling", "alias"]
    assert models[0].max_model_len == 2000
    assert place.client.models.retrieve("alias").id == "alias"
    with pytest.raises(openai.NotFoundError):
        place.client.models.retrieve("org/other")


def test_the_root_answers_probes(place):
    assert place.http.head("/").status_code == 200
    assert place.http.get("/").json()["name"] == "deodar"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/embeddings", 404),
        ("POST", "/v1/audio/speech", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", PATH, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
    ],
)
def test_unknown_paths_and_methods_are_json_errors(place, method, path, status):
    response = place.http.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["message"]
    assert response.headers["x-request-id"]
    if status == 405:
        assert response.headers["allow"]


def test_a_hostile_request_id_is_not_echoed(place):
    response = place.http.get("/health", headers={"x-request-id": "a" * 500})
    assert response.headers["x-request-id"].startswith("req-")


def test_hosted_only_tool_types_are_skipped(place):
    tools = [{"type": "web_search"}, {"type": "mcp", "server_url": "x"}]
    assert place.post({"messages": HELLO, "tools": tools}).status_code == 200
    assert "## Tools" not in place.tokenizer.decode(place.engine.requests[0].prompt_ids)


def test_two_hundred_requests_at_once_are_all_answered(place):
    import asyncio

    place.engine.delay_s = 0.001

    async def many():
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=place.url, limits=limits, timeout=30) as http:
            body = {"messages": HELLO}
            return await asyncio.gather(*(http.post(PATH, json=body) for _ in range(200)))

    contents = [r.json()["choices"][0]["message"]["content"] for r in asyncio.run(many())]
    assert contents == ["It is 12."] * 200


def test_the_document_lists_every_field():
    page = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text(encoding="utf-8")
    honoured = page.split("**Honoured**")[1].split("**Ignored**")[0]
    ignored = page.split("**Ignored**")[1].split("**Refused**")[0]
    refused = page.split("**Refused**")[1].split("Of the honoured fields")[0]
    assert set(re.findall(r"`(\w+)`", honoured)) == HONOURED
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", ignored, re.M)) == dict(IGNORED)
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", refused, re.M)
    assert dict(rows) == {name: refusal.reason for name, refusal in REFUSED.items()}
