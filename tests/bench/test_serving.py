"""`deodar bench streams|reuse|trim|plan` on the tiny checkpoint: they run and their numbers fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deodar.cache.resume import LayerPlan, choose_resume
from deodar.checkpoint.tiny import TINY, make_tiny
from deodar.cli.main import main


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "tiny"
    make_tiny(path)
    return path


def bench(what: str, folder: Path, out: Path, *words: str) -> dict[str, float]:
    assert main(["bench", what, str(folder), "--out", str(out), *words]) == 0
    return json.loads(out.read_text(encoding="utf-8"))


def test_streams(tiny_path: Path, tmp_path: Path) -> None:
    words = ("--prompt-tokens", "20", "--steps", "12", "--sequences", "4")
    found = bench("streams", tiny_path, tmp_path / "out.json", *words)
    assert found["ratio"] == pytest.approx(found["many_tokens_per_s"] / found["one_tokens_per_s"])
    assert found["many_floor_ms"] >= found["one_floor_ms"] > 0


def test_reuse(tiny_path: Path, tmp_path: Path) -> None:
    found = bench("reuse", tiny_path, tmp_path / "out.json", "--prompt-tokens", "300")
    assert found["next_turn_cached_tokens"] >= 300 + 20
    assert found["next_turn_rows_share"] < 0.3
    assert found["third_user_cached_tokens"] == 300
    plan = LayerPlan.from_config(TINY)
    assert found["third_user_cold_rows"] == choose_resume(plan, prompt_tokens=350).layer_rows


def test_trim(tiny_path: Path, tmp_path: Path) -> None:
    found = bench("trim", tiny_path, tmp_path / "out.json", "--prompt-tokens", "300")
    assert found["off_layer_rows"] == 300 * TINY.num_hidden_layers
    assert found["bounded_layer_rows"] < found["exact_layer_rows"] < found["off_layer_rows"]
