"""The command itself: starts quickly, refuses politely, never shows a traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

from deodar import __version__
from deodar.cli.main import COMMANDS, main


def deodar(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deodar.cli.main", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_version_and_help() -> None:
    assert deodar("--version").stdout.strip() == f"deodar {__version__}"
    text = deodar("--help").stdout
    assert all(name in text for name in COMMANDS)


def test_no_command_and_an_unknown_one_exit_with_2() -> None:
    for words in ([], ["fly"]):
        result = deodar(*words)
        assert result.returncode == 2
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert name in capsys.readouterr().out


def test_the_upper_half_starts_without_torch() -> None:
    code = (
        "import sys, deodar.cli.main, deodar.types, deodar.config, deodar.text.chat, "
        "deodar.server.app, deodar.scheduler.scheduler, deodar.checkpoint.loader\n"
        "sys.exit(3 if 'torch' in sys.modules else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("command", ["inspect", "chat", "generate", "logits", "draft", "eval"])
def test_a_folder_that_is_no_checkpoint_is_one_line_and_exit_2(
    command: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("empty")
    extra = {"logits": ["--ids", "1,2", "--out", str(folder / "x.npz")], "draft": ["--ids", "1,2"]}
    extra["generate"] = ["--prompt", "hello"]
    for model in ([str(folder)], ["--model", str(folder)]):
        result = deodar(command, *model, *extra.get(command, []))
        assert result.returncode == 2, result.stderr
        assert str(folder) in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


def test_two_different_models_are_refused() -> None:
    result = deodar("inspect", "one", "--model", "two")
    assert result.returncode == 2
    assert result.stderr == (
        "deodar inspect: --model is 'two' and MODEL 'one', there must be one model\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["make-tiny", ""], "OUT is empty"),
        (["eval", "--threads", "0"], "--threads is 0"),
        (["bench", "decode", "--out", "/no/such/folder/x.json"], "its folder does not exist"),
    ],
)
def test_bad_values_are_refused_before_any_work(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err
