"""`deodar inspect`, `deodar make-tiny`, where models are found, and the tiny tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from deodar.checkpoint.locate import resolve_model
from deodar.checkpoint.tiny import TINY
from deodar.checkpoint.tiny_tokenizer import special_tokens
from deodar.cli.main import main
from deodar.errors import CheckpointError

# Every text of the chat specification (1.1).
SPECIALS = [
    *["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜System｜>"],
    *["<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜User｜>", "<｜Assistant｜>"],
    *["<|EOT|>", "<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>", "<｜action｜>"],
    *["<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜title｜>", "<｜read_url｜>"],
    *["<｜deepseek_image｜>", "<｜/polygon｜>", "<｜polygon｜>", "<｜/point｜>", "<｜point｜>"],
    *["<｜/box｜>", "<｜box｜>", "<｜/ref｜>", "<｜ref｜>"],
]


def test_inspect_released_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "v4.1-flash"]) == 0
    text = capsys.readouterr().out
    for words in (
        "96,085", "510,286,023,000", "763,205,315,794", "KV: 890 B per token",
        "windows: 2,703,360 B per sequence",
    ):  # fmt: skip
        assert words in text


def test_inspect_a_checkpoint(tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tiny_folder)]) == 0
    text = capsys.readouterr().out
    assert "complete: each of 1,542 expected tensors is present once" in text
    assert "12,313,780" in text
    assert "KV: 106 B per token" in text


@pytest.mark.parametrize(
    "model", ["nothing-like-this", "", "v5", "~nobody-here/x", "a" * 199 + "/" * 5000]
)
def test_inspect_unknown_models(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", model]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert repr(model)[:150] in error


def test_resolve_model(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is a file, must be a folder"):
        resolve_model(str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match=r"neither a known name \(seedling\) nor a folder"):
        resolve_model("other")


def test_make_tiny(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["make-tiny", str(tmp_path / "a" / "b")]) == 0
    assert "1,542 tensors, 12,313,780 bytes" in capsys.readouterr().out
    (tmp_path / "file").write_text("")
    assert main(["make-tiny", str(tmp_path / "file")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_tiny_tokenizer(tiny_folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 512
    assert len(SPECIALS) == 29
    for text in SPECIALS:
        ids = tokenizer.encode(text).ids
        assert len(ids) == 1
        assert ids[0] < 3 or 470 <= ids[0] <= 510
    assert tokenizer.encode("<｜System｜>").ids == [509]
    assert tokenizer.encode("<｜deepseek_image｜>").ids == [510]
    assert sorted(special_tokens(TINY)) == [0, 1, 2, *range(470, 511)]
    assert [tokenizer.token_to_id(text) for text in SPECIALS[:3]] == [0, 1, 2]


@pytest.mark.parametrize("text", ["plain words, 12 of them", "Zürich — 東京 🌲\r\n\t x", "\0\x7f"])
def test_tiny_tokenizer_keeps_any_text(tiny_folder: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_folder / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_every_id_of_the_tiny_tokenizer_decodes(tiny_folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_folder / "tokenizer.json"))
    texts = [tokenizer.id_to_token(token_id) for token_id in range(512)]
    assert len(set(texts)) == 512
    assert None not in texts
