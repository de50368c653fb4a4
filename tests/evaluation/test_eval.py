"""`deodar eval` on the tiny checkpoint: scores and continuations equal the reference's."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import torch

from deodar.checkpoint.loader import Checkpoint
from deodar.cli.main import main
from deodar.evaluation import suites, tasks, tool_tasks
from deodar.evaluation.subject import Subject, conversation
from deodar.evaluation.words import words
from deodar.model.reference import Reference
from deodar.text.chat import render

IDS = [0, *(3 + (7 * i) % 400 for i in range(90))]


def test_scores_equal_the_reference(subject: Subject, tiny_path: Path) -> None:
    reference = Reference(Checkpoint.open(tiny_path), "kv")
    result = reference.forward(IDS, reference.new_state())
    want = torch.log_softmax(result.logits.double(), -1)[:-1]
    logs, hits = subject.score(IDS)
    picked = want[torch.arange(len(IDS) - 1), torch.tensor(IDS[1:])].numpy()
    assert np.abs(logs - picked).max() < 5e-4
    assert (hits == (want.argmax(-1).numpy() == np.array(IDS[1:]))).all()
    tail, _ = subject.score(IDS, first=50)
    assert np.array_equal(tail, logs[49:])


def test_hidden_memory_equals_the_reference(subject: Subject, tiny_path: Path) -> None:
    reference = Reference(Checkpoint.open(tiny_path), "kv")
    result = reference.forward(IDS, reference.new_state(), hide_memory=True)
    want = torch.log_softmax(result.logits.double(), -1)[:-1]
    hidden, _ = subject.score(IDS, hide_memory=True)
    picked = want[torch.arange(len(IDS) - 1), torch.tensor(IDS[1:])].numpy()
    assert np.abs(hidden - picked).max() < 5e-4
    assert np.abs(hidden - subject.score(IDS)[0]).max() > 1e-3


def test_greedy_is_the_same_alone_and_in_company(subject: Subject) -> None:
    prompts = [IDS[:20], IDS[:33], IDS[:47]]
    together = subject.greedy(prompts, 12)
    assert together == [subject.greedy([p], 12)[0] for p in prompts]
    _, hits = subject.score([*prompts[0], *together[0]], first=len(prompts[0]))
    assert hits.all()


def test_drafts_replay_the_run(subject: Subject, tiny_path: Path) -> None:
    prompt = IDS[:40]
    output = subject.greedy([prompt], 30)[0]
    accepted = subject.accepted_drafts(prompt, output)
    block = subject.config.dspark_block_size
    assert all(0 <= a <= block for a in accepted)
    assert len(output) - block - 1 <= sum(accepted) + len(accepted) <= len(output)
    reference = Reference(Checkpoint.open(tiny_path), "kv")
    state = reference.new_state()
    reference.forward(prompt, state)
    first = reference.draft(state, output[0]).tokens.tolist()
    matched = 0
    while matched < block and first[matched] == output[1 + matched]:
        matched += 1
    assert accepted[0] == matched
    taps = subject.model.taps(0, len(prompt) - 1)
    np.testing.assert_allclose(taps, state.taps.numpy()[-len(taps) :], atol=2e-4)


def test_answers_are_parsed_as_the_server_does(subject: Subject) -> None:
    task = tool_tasks.tool_call(random.Random(5), words(held_out=True), 1)
    prompt = subject.prompt(task, thinking=False)
    special, encode = subject.tokenizer.special, subject.tokenizer.encode_text
    dsml = [special["｜DSML｜"]]
    ids = [*encode("\n\n<"), *dsml, *encode(" calls>\n<"), *dsml, *encode(' invoke name="f">\n<')]
    ids += [*dsml, *encode(' parameter name="a" string="false">7</'), *dsml, *encode(" parameter>")]
    ids += [*encode("\n</"), *dsml, *encode(" invoke>\n</"), *dsml, *encode(" calls>")]
    cut = subject.answer(prompt, ids)
    whole = subject.answer(prompt, [*ids, subject.tokenizer.eos_id])
    assert [(n, json.loads(a)) for n, a in whole.calls] == [("f", {"a": 7})]
    assert whole.finished
    assert not cut.finished


def test_retrieval_asks_at_its_distances(subject: Subject) -> None:
    ids, asked = suites.retrieval_conversation(subject.tokenizer, random.Random(2))
    decode = subject.tokenizer.decode
    assert sorted({d for d, _, _ in asked}) == list(suites.DISTANCES)
    text = decode(ids)
    for distance, first, last in asked:
        value = decode(ids[first:last]).strip()
        key = decode(ids[:first]).rsplit("The value of ", 1)[1].removesuffix(" is")
        assert text.count(f"\n{key}: {value}\n") + text.startswith(f"{key}: ") == 1
        before = text.index(f"{key}: {value}") + len(f"{key}: {value}")
        written = len(subject.tokenizer.encode_text(text[:before]))
        assert abs(first - written - distance) < 60


def test_prompts_are_the_servers(subject: Subject) -> None:
    task = tool_tasks.json_schema(random.Random(1), words(held_out=True))
    shown = render(conversation(task, thinking=True)).text
    assert "## Response Format:" in shown
    assert task.turns[0].content in shown
    assert task.expected.content not in shown


def test_held_out_text_ships() -> None:
    for kind in ("prose", "code"):
        documents = suites.held_out_text(kind)
        assert len(documents) > 4
        assert 120_000 < sum(len(d.encode()) for d in documents) < 170_000


def test_command_writes_numbers(tiny_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "numbers.json"
    code = main(
        [
            "eval",
            "--model",
            str(tiny_path),
            "--quick",
            "--threads",
            "1",
            "--only",
            "sums",
            "--out",
            str(out),
        ]
    )
    assert code == 0
    numbers = json.loads(out.read_text())
    assert numbers["sums"]["tasks"] == 16
    assert 0 <= numbers["sums"]["right"] <= 1


def test_command_refuses_unknown_suites(tiny_path: Path, capsys) -> None:
    assert main(["eval", "--model", str(tiny_path), "--only", "poetry"]) == 2
    assert "poetry" in capsys.readouterr().err


def test_training_renders_like_the_server() -> None:
    """The trainer's pieces and the server's renderer give one text and the same special spans."""
    import synth

    rng, side = random.Random(9), words(held_out=False)
    for number in range(150):
        task = synth.chat_task(rng, side)
        thinking = number % 2 == 0
        prompt = render(conversation(task, thinking=thinking))
        text, spans = "", []
        for piece in synth.render(task, thinking, 75):
            if piece.special:
                spans.append((len(text), len(text) + len(piece.text)))
            text += piece.text
        assert text.startswith(prompt.text)
        assert [s for s in spans if s[1] <= len(prompt.text)] == prompt.special_spans


def test_two_digit_sums_are_two_digit() -> None:
    side = words(held_out=True)
    for seed in range(50):
        content = tasks.two_digit_sum(random.Random(seed), side).turns[0].content
        assert len(content) == len("What is 12 + 34?")
