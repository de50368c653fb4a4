"""The reference spends at most 500 torch operations a layer on a decode step (issue 2)."""

from __future__ import annotations

from pathlib import Path

from deodar.bench.reference_ops import count_operations
from deodar.checkpoint.loader import Checkpoint
from deodar.checkpoint.tiny import make_tiny, prompt_ids
from deodar.model.reference import Reference


def test_operations_per_layer(tmp_path: Path) -> None:
    make_tiny(tmp_path / "tiny")
    model = Reference(Checkpoint.open(tmp_path / "tiny"), "kv")
    ids = prompt_ids(40)
    count = count_operations(model, ids[:39], ids[39])
    assert len(count.per_layer) == 10
    assert min(count.per_layer) > 50
    assert count.mean <= 500
    assert count.mean < count.most < 600  # the tiny model runs 3 experts, the seedling 2
    assert count.per_layer[4] > count.per_layer[3]  # writer and indexer against a plain layer
    assert 0 < count.rest < 100
