"""`deodar bench decode`: it measures what it says, on the tiny checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deodar.checkpoint.loader import Checkpoint
from deodar.checkpoint.tiny import make_tiny
from deodar.cli.main import main
from deodar.model.cpu import CpuModel
from deodar.model.cpu_weights import build_weights


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "tiny"
    make_tiny(path)
    return path


def test_it_prints_and_writes_one_consistent_result(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    arguments = ["bench", "decode", str(tiny_path), "--prompt-tokens", "30", "--steps", "3"]
    assert main([*arguments, "--out", str(out)]) == 0
    result = json.loads(out.read_text(encoding="utf-8"))
    assert result["steps"] == 15
    ratio = result["reference"]["processor_ms"] / result["compiled"]["processor_ms"]
    assert result["ratio"] == pytest.approx(ratio)
    assert result["floor_memory_ms"] == pytest.approx(
        result["active_bytes"] / result["bandwidth_memory"] / 1e6
    )
    assert f"{result['active_bytes']:,}" in capsys.readouterr().out
    assert 0 < result["operations_per_layer"] <= result["operations_per_layer_most"] <= 600


def test_active_bytes_count_what_the_layout_holds(tiny_path: Path) -> None:
    """The packed matrices without idle experts, the head, one embedding row, the mixes."""
    checkpoint = Checkpoint.open(tiny_path)
    model = CpuModel(checkpoint, slots=1, context=64, max_rows=8)
    config = model.config
    packed = build_weights(checkpoint, 64).narrow.size
    idle = config.n_routed_experts - config.num_experts_per_tok
    experts = (
        config.num_hidden_layers * idle * 3 * config.hidden_size * config.moe_intermediate_size
    )
    narrow = packed - experts
    memory_keys = len(config.kv_source_layer_ids) * config.head_dim * config.index_head_dim
    head = config.hidden_size * (config.vocab_size + 1)
    mixes = 2 * config.num_hidden_layers * 4 * config.hidden_size * 32
    assert model.active_bytes(0) == 2 * (narrow - memory_keys + head) + 4 * mixes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--steps", "0"], "--steps is 0"), (["--steps", "200"], "the model has 512")],
)
def test_bad_arguments_are_one_line(
    tiny_path: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "decode", str(tiny_path), *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
