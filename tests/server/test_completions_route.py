"""Raw completions over loopback: prompts, streams, stops, legacy log-probabilities."""

import json
import math

import openai
import pytest
from fake_engine import steps_of, token_ids

PATH = "/v1/completions"
ANSWER = "It is 12.<｜end▁of▁sentence｜>"


def ask(place, **fields):
    return place.http.post(PATH, json={"prompt": "6 + 6?", **fields})


def create(place, **fields):
    return place.client.completions.create(model="seedling", **{"prompt": "6 + 6?", **fields})


@pytest.fixture(autouse=True)
def answer(place):
    place.script(ANSWER)


def streamed(place, count=1, **fields):
    """Per choice: the joined text, the finish reason and the log-probability lists."""
    texts, finishes = [""] * count, [None] * count
    lists = [{} for _ in range(count)]
    for chunk in create(place, stream=True, **fields):
        for choice in chunk.choices:
            assert finishes[choice.index] is None
            texts[choice.index] += choice.text
            finishes[choice.index] = choice.finish_reason
            for name, values in choice.logprobs or ():
                lists[choice.index].setdefault(name, []).extend(values)
    return texts, finishes, lists


def test_a_whole_answer(place):
    answer = create(place, max_tokens=50)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason, choice.logprobs) == ("It is 12.", "stop", None)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    (request,) = place.engine.requests
    assert request.prompt_ids == (place.tokenizer.bos_id, *token_ids(place.tokenizer, "6 + 6?"))
    assert answer.usage.prompt_tokens == 7
    assert answer.usage.completion_tokens == len("It is 12.") + 1
    assert choice.seed == 7


def test_sixteen_tokens_are_the_default(place):
    place.script("a" * 40)
    answer = create(place)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("a" * 16, "length")
    assert create(place, max_tokens=20).usage.completion_tokens == 20


@pytest.mark.parametrize("size", [1, 2, 50])
@pytest.mark.parametrize(
    "fields",
    [{}, {"stop": " 1"}, {"stop": " 1", "extra_body": {"no_stop_trim": True}}, {"echo": True}],
)
def test_streamed_and_whole_answers_are_the_same(place, size, fields):
    place.script("é 漢 1 🌲<｜end▁of▁sentence｜>", size)
    whole = create(place, max_tokens=50, **fields).choices[0]
    texts, finishes, _ = streamed(place, max_tokens=50, **fields)
    assert texts == [whole.text]
    assert finishes == [whole.finish_reason] == ["stop"]
    if "stop" in fields:
        assert whole.text == ("é 漢 1" if "extra_body" in fields else "é 漢")
        assert whole.stop_reason == " 1"
    else:
        assert whole.text == "6 + 6?" * ("echo" in fields) + "é 漢 1 🌲"


def test_several_prompts_are_several_choices(place):
    def script(request):
        return steps_of(token_ids(place.tokenizer, "x" * (len(request.prompt_ids) - 1)))

    place.engine.script = script
    prompts = ["a", "bbb", "cc"]
    answer = create(place, prompt=prompts)
    assert [(c.index, c.text) for c in answer.choices] == [(0, "x"), (1, "xxx"), (2, "xx")]
    assert answer.usage.completion_tokens == 6
    assert answer.usage.prompt_tokens == 9
    texts, finishes, _ = streamed(place, 3, prompt=prompts)
    assert texts == ["x", "xxx", "xx"]
    assert finishes == ["stop"] * 3


def test_token_ids_are_taken_as_they_are(place):
    for prompt, count in (([5, 6, 7], 1), ([[5], [6, 7]], 2), ([[5, 6, 7]], 1)):
        place.engine.requests.clear()
        assert len(create(place, prompt=prompt).choices) == count
        flat = [t for p in prompt for t in p] if isinstance(prompt[0], list) else prompt
        assert [t for r in place.engine.requests for t in r.prompt_ids] == flat


def test_special_tokens_of_raw_prompts_suffix_and_begin(place):
    special = place.tokenizer.special

    def ids_of(**fields):
        place.engine.requests.clear()
        create(place, **fields)
        return list(place.engine.requests[0].prompt_ids)

    bos, eos = place.tokenizer.bos_id, place.tokenizer.eos_id
    (a,), (b,) = token_ids(place.tokenizer, "a"), token_ids(place.tokenizer, "b")
    assert ids_of(prompt="a<｜end▁of▁sentence｜>b") == [bos, a, eos, b]
    assert ids_of(prompt="a", extra_body={"add_special_tokens": False}) == [a]
    assert ids_of(prompt="a", suffix="b") == [
        bos,
        special["<｜fim▁begin｜>"],
        a,
        special["<｜fim▁hole｜>"],
        b,
        special["<｜fim▁end｜>"],
    ]


def test_special_tokens_of_the_answer_are_hidden_unless_asked_for(place):
    place.script("a<think>b<｜end▁of▁sentence｜>")
    assert create(place).choices[0].text == "ab"
    shown = create(place, extra_body={"skip_special_tokens": False}).choices[0]
    assert shown.text == "a<think>b"


@pytest.mark.parametrize("count", [0, 2])
def test_legacy_log_probabilities(place, count):
    place.script("a漢" + ANSWER)
    place.engine.top = ((1, -0.5), (2, -1.5))
    whole = create(place, max_tokens=40, logprobs=count).choices[0].logprobs
    (request,) = place.engine.requests
    assert request.sampling.top_logprobs == count
    kanji = [f"bytes:\\x{byte:02x}" for byte in "漢".encode()]
    eos = "<｜end▁of▁sentence｜>"
    assert whole.tokens == ["a", *kanji, *"It is 12.", eos]
    assert whole.token_logprobs == [-0.25] * len(whole.tokens)
    assert len(whole.text_offset) == len(whole.top_logprobs) == len(whole.tokens)
    assert whole.text_offset[0] == 0
    assert whole.top_logprobs[0]["a"] == -0.25
    assert len(whole.top_logprobs[0]) == count + 1
    _, _, (lists,) = streamed(place, max_tokens=40, logprobs=count)
    assert lists == {
        name: getattr(whole, name)
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    }
    named = create(place, logprobs=count, extra_body={"return_tokens_as_token_ids": True}).choices[
        0
    ]
    (a,) = token_ids(place.tokenizer, "a")
    assert named.logprobs.tokens[0] == f"token_id:{a}"


def test_offsets_point_into_the_text(place):
    place.script("ab漢c<｜end▁of▁sentence｜>")
    choice = create(place, logprobs=0).choices[0]
    offsets = dict(zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True))
    assert choice.text == "ab漢c"
    assert [choice.text[offsets[t]] for t in "abc"] == list("abc")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [300_000]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": "", "add_special_tokens": False}, "prompt"),
        ({"prompt": "x" * 2000}, "prompt"),
        ({"prompt": [1], "suffix": "x"}, "suffix"),
        ({"prompt": ["x"] * 1025}, "prompt"),
        ({"prompt": ["x", 1]}, "prompt"),
        ({"prompt": [[1], 1]}, "prompt"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": {"text": "x"}}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 0, "echo": True}, "echo"),
        ({"n": 2}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"temperature": 3}, "temperature"),
        ({"model": "other"}, "model"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_bad_requests_are_named(place, fields, param):
    answer = ask(place, **fields)
    error = answer.json()["error"]
    assert answer.status_code == (404 if "model" in fields else 400), error
    assert error["param"] == param
    assert not place.engine.requests
    if fields.get("prompt") == "x" * 2000:
        assert error["code"] == "context_length_exceeded"


def test_usage_of_a_stream(place):
    plain = list(create(place, stream=True))
    assert all(chunk.usage is None for chunk in plain)
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(create(place, stream=True, stream_options=options))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert chunks[-1].choices == []
    assert counts[-1] == len("It is 12.") + 1
    assert counts[-2] == counts[-1]


def test_the_failure_of_one_prompt_ends_the_request_and_the_others(place):
    def script(request):
        return ["error"] if len(request.prompt_ids) == 2 else [(65,), "wait"]

    place.engine.script = script
    answer = ask(place, prompt=["a", "bbb"])
    assert answer.status_code == 500
    assert place.engine.aborted == [place.engine.requests[1].request_id]
    with place.http.stream("POST", PATH, json={"prompt": ["a", "bbb"], "stream": True}) as response:
        text = response.read().decode()
    assert response.status_code == 500 or '"error"' in text


def test_an_error_after_the_first_byte_is_a_frame(place):
    place.engine.script = lambda request: [(65,), "error"]
    text = ask(place, stream=True).text
    frames = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert frames[-1] == "[DONE]"
    assert json.loads(frames[-2])["error"]["code"] == "internal_error"
    assert "finish_reason" not in frames[-2]


def test_a_client_that_leaves_ends_all_its_prompts(place):
    place.engine.script = lambda request: [(65,), "wait"]
    body = {"prompt": ["a", "b", "c"], "stream": True}
    with place.http.stream("POST", PATH, json=body) as response:
        lines = response.iter_lines()
        next(lines)
    place.wait_until(lambda: len(set(place.engine.aborted)) == 3)


def test_refusals_of_an_engine_that_is_not_ready(place):
    place.engine.healthy = False
    with pytest.raises(openai.InternalServerError) as caught:
        create(place)
    assert caught.value.status_code == 503


def test_the_numbers_are_finite(place):
    logprobs = create(place, logprobs=1).choices[0].logprobs
    assert all(math.isfinite(value) for value in logprobs.token_logprobs)
