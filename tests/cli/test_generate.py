"""`deodar generate`: same seed same text, standard input, and edges with exit code 2."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from deodar import LLM, SamplingParams
from deodar.checkpoint.tiny import make_tiny
from deodar.cli.main import main


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("generate") / "tiny"
    make_tiny(path)
    return path


def test_it_streams_what_llm_generates(tiny_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["generate", str(tiny_path), "--prompt", "a cedar", "--max-tokens", "12"]
    assert main([*arguments, "--seed", "5", "--top-k", "40"]) == 0
    shown = capsys.readouterr()
    params = SamplingParams(seed=5, top_k=40, top_p=0.95, max_tokens=12)
    (expected,) = LLM(str(tiny_path)).generate("a cedar", params)
    # special tokens are shown: a raw continuation may well hold them
    text = LLM(str(tiny_path)).tokenizer.decode(expected.token_ids, skip_special=False)
    assert shown.out == text + "\n"
    assert "12 tokens" in shown.err
    assert "seed 5" in shown.err


def test_the_prompt_may_come_from_standard_input(
    tiny_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = ["--temperature", "0", "--max-tokens", "6"]
    assert main(["generate", str(tiny_path), "--prompt", "an oak", *greedy]) == 0
    typed = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("an oak"))
    assert main(["generate", str(tiny_path), "--prompt", "-", *greedy]) == 0
    assert capsys.readouterr().out == typed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-tokens", "-3"], "max_tokens is -3"),
        (["--temperature", "9"], "temperature is 9.0"),
        (["--top-p", "0"], "top_p is 0"),
        (["--context", "4"], "maximum context length is 4 tokens"),
        (["--context", "0"], "context is 0"),
    ],
)
def test_bad_arguments_are_one_line(
    tiny_path: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(tiny_path), "--prompt", "some words here", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_folder_that_is_no_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(tmp_path), "--prompt", "x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_poor_encoding_ends_neither_input_nor_output(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\xffb"), encoding="utf-8"))
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    many = ["--prompt", "-", "--max-tokens", "40", "--ignore-eos", "--seed", "1"]
    assert main(["generate", str(tiny_path), *many]) == 0
    assert b"?" in raw.getvalue()
