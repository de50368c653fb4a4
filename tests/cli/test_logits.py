"""`deodar logits` and `deodar draft` on the tiny checkpoint, by the command's own entry point."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deodar.checkpoint.tiny import make_tiny, prompt_ids
from deodar.cli.main import main

IDS = ",".join(str(i) for i in prompt_ids(24))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("cli") / "tiny"
    make_tiny(path)
    return str(path)


@pytest.mark.parametrize("chunks", [[], ["--chunks", "5,13,6"]], ids=["whole", "chunks"])
def test_logits_file(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], chunks: list[str]
) -> None:
    out = tmp_path / "logits.npz"
    words = ["logits", tiny, "--ids", IDS, "--mode", "golden", "--top", "3", "--out", str(out)]
    assert main([*words, *chunks]) == 0
    assert "argmax 349" in capsys.readouterr().out
    arrays = np.load(out)
    assert arrays["logits"].shape == (24, 512)
    assert arrays["logits"].dtype == np.float32
    assert abs(arrays["logits"][23, 0] - -2.48268) < 2e-4
    assert abs(arrays["taps"][23, 0] - 6.43113) < 2e-4
    assert arrays["chosen_layer2"][20].tolist() == [3, 4, 6, 7, 8, 9]
    assert arrays["candidate_blocks"][20].tolist() == [2, 3, 5]
    assert arrays["engram_rows_layer1"][0].tolist() == [35, 194, 305, 419, 501, 544]


def test_image_positions(tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "image.npz"
    words = ["logits", tiny, "--ids", IDS, "--mode", "golden", "--image", "5-11", "--out", str(out)]
    assert main(words) == 0
    assert abs(np.load(out)["logits"][23, 0] - -2.46347) < 2e-4


def test_draft(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draft", tiny, "--ids", IDS + ",349", "--mode", "golden"]) == 0
    printed = capsys.readouterr().out
    assert "last position 24, next token 255" in printed
    assert "393 388 434 388 434" in printed
    assert main(["draft", tiny, "--ids", IDS + ",349", "--mode", "golden", "--next", "7"]) == 0
    assert "next token 7" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ids", "1,512"], "ids[1] is 512, must be from 0 to 511"),
        (["--ids", "1,x"], "--ids holds 'x'"),
        (["--ids", ""], "--ids holds ''"),
        (
            ["--ids", "1,2", "--chunks", "1,2"],
            "--chunks add up to 3, must be the number of ids (2)",
        ),
        (["--ids", "1,2", "--chunks", "3,-1"], "--chunks holds -1"),
        (["--ids", "1,2", "--image", "1-2"], "must lie within 0-1"),
        (["--ids", "1,2", "--image", "x"], "must be FIRST-LAST"),
        (["--ids", "1,2", "--top", "0"], "--top is 0"),
    ],
)
def test_bad_words_are_one_line(
    tiny: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    out = tmp_path / "x.npz"
    assert main(["logits", tiny, *words, "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_no_checkpoint_and_no_place_to_write(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logits", str(tmp_path), "--ids", "1", "--out", str(tmp_path / "x.npz")]) == 2
    assert main(["logits", tiny, "--ids", "1", "--out", str(tmp_path / "no" / "x.npz")]) == 2
    assert "cannot write" in capsys.readouterr().err
