"""The tiny checkpoint of model.md 8, written once per session, and references over it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from deodar.checkpoint.loader import Checkpoint
from deodar.checkpoint.tiny import make_tiny
from deodar.model.reference import Reference

HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny"
    make_tiny(path, gpu_heads=False)
    return path


@pytest.fixture(scope="session")
def tiny(tiny_path: Path) -> Checkpoint:
    return Checkpoint.open(tiny_path)


@pytest.fixture(scope="session")
def golden(tiny: Checkpoint) -> Reference:
    return Reference(tiny, "golden")


@pytest.fixture(scope="session")
def kv(tiny: Checkpoint) -> Reference:
    return Reference(tiny, "kv")


@pytest.fixture(scope="session")
def faithful(tiny: Checkpoint) -> Reference:
    return Reference(tiny, "faithful")


@pytest.fixture(scope="session")
def kv_cases() -> list[dict]:
    return json.loads((HERE / "tiny_kv_golden.json").read_text())["cases"]
