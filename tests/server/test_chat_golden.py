"""Every chat case of the golden file gives exactly this prompt; the other protocols come later."""

import json

import pytest
from golden_files import golden_cases

from deodar.server.conversation import conversation_of
from deodar.server.schema import ChatBody, typed_body
from deodar.text.chat import render
from deodar.text.segments import IMAGE

CASES = golden_cases("chat_golden.json")
CHAT = [case for case in CASES if case.get("protocol", "chat_completions") == "chat_completions"]
# Cases of protocols that are not served yet.
LATER = {
    "messages-plain",
    "messages-system-list-disabled",
    "messages-tool-loop",
    "messages-effort-max",
    "responses-plain",
    "responses-instructions-effort-none",
    "responses-developer-low",
    "responses-function-loop",
}


def test_the_file_is_complete():
    assert len(CASES) == 38
    assert {case["id"] for case in CASES} - {case["id"] for case in CHAT} == LATER


@pytest.mark.parametrize("case", CHAT, ids=lambda case: case["id"])
def test_golden_prompt_spans_and_ids(case, tokenizer):
    body = typed_body(json.loads(json.dumps(case["request"])), ChatBody)
    prompt = render(conversation_of(body))
    assert prompt.text == case["prompt"]
    if case["special_spans"] is not None:  # the source of the task cases does not tell them
        assert [list(span) for span in prompt.special_spans] == case["special_spans"]
    ids = tokenizer.encode_prompt(prompt)
    assert tokenizer.decode(ids, skip_special=False) == case["prompt"]
    specials = [prompt.text[a:b] for a, b in prompt.special_spans]
    assert [tokenizer.special_text(t) for t in ids if tokenizer.is_special(t)] == specials
    assert (IMAGE in specials) == (case["id"] == "image-then-text")
