"""Chat over loopback with the openai package: whole, streamed, tools, stops, usage, the end."""

import json
import time

import openai
import pytest
from fake_engine import steps_of, token_ids
from openai import APIError

D = "｜DSML｜"
CALLS = (
    f'Reading.</think>Here:\n\n<{D} calls>\n<{D} invoke name="read_file">\n'
    f'<{D} parameter name="path" string="true">a.txt</{D} parameter>\n'
    f'<{D} parameter name="line" string="false">3</{D} parameter>\n</{D} invoke>\n'
    f'<{D} invoke name="list_jobs">\n\n</{D} invoke>\n</{D} calls><｜end▁of▁sentence｜>'
)
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("read_file", "list_jobs")
]
HELLO = [{"role": "user", "content": "6 + 6?"}]


def create(place, **fields):
    return place.client.chat.completions.create(model="seedling", **{"messages": HELLO, **fields})


def replay(place, **fields):
    """The chunks of a stream and the message that they add up to; checks the order rules."""
    chunks = list(create(place, stream=True, **fields))
    assert len({(c.id, c.created, c.model, c.object) for c in chunks}) == 1
    assert chunks[0].object == "chat.completion.chunk"
    assert chunks[0].choices[0].delta.role == "assistant"
    reasoning = content = ""
    calls, finish = [], None
    for chunk in chunks[1:]:
        if not chunk.choices:
            assert finish is not None
            continue
        assert finish is None
        choice = chunk.choices[0]
        delta = choice.delta
        assert delta.role is None
        thought = getattr(delta, "reasoning_content", None)
        assert sum(x is not None for x in (thought, delta.content, delta.tool_calls)) <= 1
        reasoning += thought or ""
        content += delta.content or ""
        for call in delta.tool_calls or []:
            if call.id is not None:
                assert call.index == len(calls)
                assert call.type == "function"
                assert call.function.arguments == ""
                calls.append([call.function.name, ""])
            assert call.index == len(calls) - 1
            calls[-1][1] += call.function.arguments
        finish = choice.finish_reason
    return chunks, (reasoning, content, calls, finish)


def message_of(answer):
    choice = answer.choices[0]
    message = choice.message
    calls = [[c.function.name, c.function.arguments] for c in message.tool_calls or []]
    reasoning = getattr(message, "reasoning_content", "")
    return reasoning, message.content, calls, choice.finish_reason


def test_a_whole_answer(place):
    answer = create(place)
    assert message_of(answer) == ("Let me see.", "It is 12.", [], "stop")
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "seedling"
    assert answer.choices[0].message.tool_calls is None
    prompt = len(place.engine.requests[0].prompt_ids)
    assert answer.usage.prompt_tokens == prompt
    assert answer.usage.completion_tokens == len("Let me see.It is 12.") + 2
    assert answer.usage.total_tokens == prompt + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.usage.completion_tokens_details.reasoning_tokens == len("Let me see.")


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_a_stream_adds_up_to_the_whole_answer(place, size, tools):
    place.script(CALLS if tools else "a</think>b c", size)
    fields = {"tools": tools} if tools else {}
    _, streamed = replay(place, **fields)
    assert streamed == message_of(create(place, **fields))


def test_thinking_off_gives_content_only(place):
    place.script("It is 12.<｜end▁of▁sentence｜>")
    answer = create(place, extra_body={"thinking": {"type": "disabled"}})
    assert message_of(answer) == ("", "It is 12.", [], "stop")
    ids = place.engine.requests[0].prompt_ids
    assert ids[-1] == place.tokenizer.special["</think>"]
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0


def test_tool_calls_and_their_round_trip(place):
    place.script(CALLS)
    answer = create(place, tools=TOOLS)
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert message.content == "Here:"
    assert [json.loads(c.function.arguments) for c in message.tool_calls] == [
        {"path": "a.txt", "line": 3},
        {},
    ]
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": call.function.name}
        for call in reversed(message.tool_calls)
    ]
    echoed = message.model_dump(exclude_none=True)
    create(place, tools=TOOLS, messages=[*HELLO, echoed, *results])
    first, second = (list(r.prompt_ids) for r in place.engine.requests)
    shown = place.tokenizer.decode(second, skip_special=False)
    assert "<tool_result>read_file</tool_result>\n\n<tool_result>list_jobs</tool_result>" in shown
    # The next prompt goes on exactly where the model stopped: prompt and answer are its prefix.
    said = token_ids(place.tokenizer, CALLS)
    assert second[: len(first) + len(said)] == first + said


def test_a_history_without_reasoning_or_with_the_other_name_is_accepted(place):
    for extra in ({}, {"reasoning": "x"}, {"reasoning_content": None}, {"reasoning_content": ""}):
        create(place, messages=[*HELLO, {"role": "assistant", "content": "a", **extra}, *HELLO])


def test_tools_hidden_by_none_and_no_markup_shown(place):
    place.script(CALLS)
    answer = create(place, tools=TOOLS, tool_choice="none")
    assert message_of(answer) == ("Reading.", "Here:", [], "stop")
    shown = place.tokenizer.decode(place.engine.requests[0].prompt_ids)
    assert "## Tools" not in shown


def test_one_call_only_without_parallel_calls(place):
    place.script(CALLS)
    place.engine.delay_s = 0.001
    answer = create(place, tools=TOOLS, parallel_tool_calls=False)
    assert [call[0] for call in message_of(answer)[2]] == ["read_file"]
    assert answer.choices[0].finish_reason == "tool_calls"
    assert place.engine.aborted == [answer.id]


def test_a_required_call_in_chat_mode_opens_the_block(place):
    place.script(
        f'<{D} invoke name="list_jobs">\n\n</{D} invoke>\n</{D} calls><｜end▁of▁sentence｜>'
    )
    answer = create(
        place, tools=TOOLS, tool_choice="required", extra_body={"thinking": {"type": "disabled"}}
    )
    assert message_of(answer) == ("", "", [["list_jobs", "{}"]], "tool_calls")


@pytest.mark.parametrize("stream", [False, True])
def test_the_length_limit(place, stream):
    fields = {"max_completion_tokens": 5, "max_tokens": 900}
    got = replay(place, **fields)[1] if stream else message_of(create(place, **fields))
    assert got == ("Let m", "", [], "length")
    assert place.engine.requests[0].sampling.max_tokens == 5


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_answer_and_the_engine(place, stream):
    place.script("is </think>It is 12.<｜end▁of▁sentence｜>")
    place.engine.delay_s = 0.001
    fields = {"stop": ["is ", "zzz"]}
    got = replay(place, **fields)[1] if stream else message_of(create(place, **fields))
    assert got == ("is ", "It ", [], "stop")
    assert len(place.engine.aborted) == 1


def test_what_stopped_is_told(place):
    answer = create(place, stop="12")
    assert answer.choices[0].stop_reason == "12"
    token = place.tokenizer.encode_text("1")[0]
    answer = create(place, extra_body={"stop_token_ids": [token]})
    assert answer.choices[0].stop_reason == token
    assert create(place).choices[0].stop_reason is None


def test_the_stop_text_can_be_included(place):
    answer = create(place, stop="12", extra_body={"include_stop_str_in_output": True})
    assert answer.choices[0].message.content == "It is 12"


def test_a_stop_string_does_not_count_tokens_that_were_not_read(place):
    place.script("</think>abcdef<｜end▁of▁sentence｜>", size=1000)
    assert create(place, stop="c").usage.completion_tokens == 4


def test_the_seed_is_used_and_returned(place):
    assert create(place, seed=42).seed == 42
    assert place.engine.requests[-1].sampling.seed == 42
    assert create(place).seed == 7
    assert create(place, seed=-1).seed == 2**63 - 1
    chunks, _ = replay(place, seed=42)
    assert chunks[-1].seed == 42


def test_sampling_fields_reach_the_engine(place):
    create(
        place, temperature=0, top_p=0.5, extra_body={"top_k": -1, "min_p": 0.1, "ignore_eos": True}
    )
    sampling = place.engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0, 0.5, 0)
    assert (sampling.min_p, sampling.ignore_eos) == (0.1, True)


def test_null_means_absent(place):
    names = ["temperature", "stop", "tools", "n", "logprobs", "max_tokens", "seed", "thinking", "x"]
    response = place.post({"messages": HELLO, **dict.fromkeys(names)})
    assert response.status_code == 200
    assert response.json()["model"] == "seedling"


def test_usage_chunk_only_if_asked(place):
    chunks, _ = replay(place)
    assert all(chunk.usage is None for chunk in chunks)
    chunks, _ = replay(place, stream_options={"include_usage": True})
    assert chunks[-1].choices == []
    assert chunks[-1].usage == create(place).usage
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_running_usage_only_grows(place):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks, _ = replay(place, stream_options=options)
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert chunks[-1].usage == create(place).usage


def test_reasoning_can_be_left_out(place):
    fields = {"extra_body": {"include_reasoning": False}}
    assert message_of(create(place, **fields)) == ("", "It is 12.", [], "stop")
    assert replay(place, **fields)[1] == ("", "It is 12.", [], "stop")


def test_the_wire_format_of_a_stream(place):
    with place.http.stream(
        "POST", "/v1/chat/completions", json={"messages": HELLO, "stream": True}
    ) as response:
        body = response.read().decode()
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    events = body.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: {") for event in events[:-2])


def test_comments_keep_a_silent_stream_alive(place):
    ids = token_ids(place.tokenizer, "a</think>b<｜end▁of▁sentence｜>")

    def script(request):
        yield (ids[0],)
        place.engine.delay_s = 0.8
        yield from steps_of(ids[1:])[:1]
        place.engine.delay_s = 0.0
        yield from steps_of(ids[1:])[1:]

    place.engine.script = script
    with place.http.stream(
        "POST", "/v1/chat/completions", json={"messages": HELLO, "stream": True}
    ) as response:
        body = response.read().decode()
    assert 1 <= body.count(": keep-alive\n\n") <= 3
    assert body.endswith("data: [DONE]\n\n")
    place.engine.script = script
    place.engine.delay_s = 0.8  # also before the first token
    assert replay(place)[1] == ("a", "b", [], "stop")


def test_an_engine_error_is_a_500_that_is_not_retried(place):
    place.engine.script = lambda request: ["error"]
    with pytest.raises(openai.InternalServerError, match="the step failed") as failed:
        create(place)
    assert failed.value.response.headers["x-should-retry"] == "false"
    with pytest.raises(openai.InternalServerError):
        create(place, stream=True)


def test_an_error_inside_a_stream_raises_at_the_client_and_has_no_finish(place):
    ids = place.tokenizer.encode_text("abc")
    place.engine.script = lambda request: [*steps_of(ids), "error"]
    got = []

    def read():
        for chunk in create(place, stream=True):
            got.append(chunk.choices[0].finish_reason)

    with pytest.raises(APIError, match="the step failed"):
        read()
    assert got
    assert not any(got)
    with place.http.stream(
        "POST", "/v1/chat/completions", json={"messages": HELLO, "stream": True}
    ) as response:
        body = response.read().decode()
    assert body.endswith("}}\n\ndata: [DONE]\n\n")


def test_a_bug_shows_no_details(place):
    place.engine.script = lambda request: [ValueError("secret")]
    response = place.post({"messages": HELLO})
    assert response.status_code == 500
    assert "secret" not in response.text
    assert response.json()["error"]["message"] == "internal error"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_aborts_its_request(place, stream):
    ids = place.tokenizer.encode_text("abc")
    place.engine.script = lambda request: [(ids[0],), "wait", (ids[1],)]
    body = {"messages": HELLO, "stream": stream}
    if stream:
        with place.http.stream("POST", "/v1/chat/completions", json=body) as response:
            next(response.iter_bytes())
    else:
        with pytest.raises(Exception, match="timed out"):
            place.post(body, timeout=0.3)
    deadline = time.monotonic() + 5
    while not place.engine.aborted and time.monotonic() < deadline:
        time.sleep(0.01)
    assert place.engine.aborted == [place.engine.requests[0].request_id]


def test_request_ids_are_echoed_and_inner_ids_are_unique(place):
    for _ in range(2):
        response = place.post({"messages": HELLO}, headers={"x-request-id": "mine"})
        assert response.headers["x-request-id"] == "mine"
    assert len({r.request_id for r in place.engine.requests}) == 2
    response = place.post({"messages": HELLO, "request_id": "other"})
    assert response.headers["x-request-id"] == "other"
    assert place.post({"messages": HELLO}).headers["x-request-id"].startswith("req-")


def test_one_log_line_per_request_without_content(place, caplog):
    with caplog.at_level("INFO", logger="deodar.server"):
        place.post({"messages": [{"role": "user", "content": "my secret"}]})
        place.post({"messages": []})
    lines = [r.getMessage() for r in caplog.records if r.name == "deodar.server"]
    assert len(lines) == 2
    assert "status=200 finish=stop" in lines[0]
    assert "completion_tokens=22 reasoning_tokens=11" in lines[0]
    assert "status=400" in lines[1]
    assert "secret" not in "".join(lines)
