"""Whatever a body holds, it is either prepared or refused with a status: never a 500."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from deodar.engine.ledger import Ledger
from deodar.errors import RequestError
from deodar.scheduler.admission import check_request
from deodar.server.chat import prepare
from deodar.server.completions import prepare as prepare_raw
from deodar.server.fields import IGNORED, REFUSED
from deodar.server.schema import COMPLETION_HONOURED, HONOURED
from deodar.server.service import Service
from deodar.server.settings import ServerSettings

WORDS = st.sampled_from(
    ["role", "user", "assistant", "tool", "system", "developer", "latest_reminder", "content"]
    + ["text", "type", "image_url", "tool_calls", "id", "function", "name", "arguments", "prefix"]
    + ["tool_call_id", "reasoning", "enabled", "disabled", "none", "auto", "required", "schema"]
    + ["json_schema", "max", "title", "action", "<think>", "｜DSML｜", "{}", "x"]
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 200)
    | st.sampled_from([2**63, 2**64, 10**30, -(10**30), 0.5, 1e308, -0.0])
    | WORDS
    | st.text(max_size=5)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=8,
)
CALL = st.fixed_dictionaries(
    {
        "id": st.sampled_from(["a", "b"]),
        "function": st.fixed_dictionaries({"name": WORDS}, optional={"arguments": VALUES}),
    },
    optional={"type": VALUES},
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system", "developer"])},
    optional={
        "content": VALUES,
        "tool_calls": st.lists(CALL, max_size=2),
        "tool_call_id": st.sampled_from(["a", "b"]) | VALUES,
        "reasoning_content": VALUES,
        "prefix": VALUES,
    },
)
TOOL = st.fixed_dictionaries(
    {"type": st.just("function")},
    optional={"function": st.fixed_dictionaries({"name": WORDS}, optional={"parameters": VALUES})},
)
FIELDS = sorted(HONOURED | set(IGNORED) | set(REFUSED))
BODIES = st.builds(
    lambda base, extra: {**base, **extra},
    st.fixed_dictionaries(
        {"messages": st.lists(MESSAGE, max_size=4)}, optional={"tools": st.lists(TOOL, max_size=2)}
    ),
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3),
)


def outcome(tokenizer, raw):
    """The prepared request, or the status of the refusal."""
    settings = ServerSettings(model_names=("m",), context=3000)
    service = Service(None, tokenizer, settings, Ledger(), None, 0)
    try:
        return prepare(service, raw).request
    except RequestError as refused:
        return refused.status


@settings(max_examples=500, deadline=None)
@given(BODIES)
def test_any_body_is_prepared_or_refused(small_tokenizer, body):
    got = outcome(small_tokenizer, json.dumps(body).encode())
    if isinstance(got, int):
        assert 400 <= got < 500
        return
    assert 0 < len(got.prompt_ids) < 3000
    assert 1 <= got.sampling.max_tokens <= 3000 - len(got.prompt_ids)
    assert got.sampling.seed is None or 0 <= got.sampling.seed < 2**63


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_refused(small_tokenizer, raw):
    assert outcome(small_tokenizer, raw) == 400


RAW_FIELDS = sorted(COMPLETION_HONOURED | set(IGNORED) | set(REFUSED))
IDS = st.lists(st.integers(-1, 300), max_size=4)
PROMPTS = st.text(max_size=20) | IDS | st.lists(IDS | st.text(max_size=5), max_size=3) | VALUES


@settings(max_examples=300, deadline=None)
@given(PROMPTS, st.dictionaries(st.sampled_from(RAW_FIELDS), VALUES, max_size=3))
def test_any_raw_body_is_prepared_or_refused(small_tokenizer, prompt, extra):
    settings = ServerSettings(model_names=("m",), context=300)
    service = Service(None, small_tokenizer, settings, Ledger(), None, 0)
    body = {"prompt": prompt, **extra}
    try:
        prepared, status = prepare_raw(service, json.dumps(body).encode()), 200
    except RequestError as refused:
        prepared, status = None, refused.status
    if prepared is None:
        assert 400 <= status < 500
        return
    assert prepared.runs
    for run in prepared.runs:
        assert 0 < len(run.request.prompt_ids) < 300
        assert all(0 <= t < small_tokenizer.vocab_size for t in run.request.prompt_ids)
        check_request(run.request, context=300, vocab_size=small_tokenizer.vocab_size)
