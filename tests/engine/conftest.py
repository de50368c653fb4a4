"""The tiny checkpoint of model.md 8, written once per session."""

from __future__ import annotations

from pathlib import Path

import pytest

from deodar.checkpoint.loader import Checkpoint
from deodar.checkpoint.tiny import make_tiny


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("engine") / "tiny"
    make_tiny(path)
    return path


@pytest.fixture(scope="session")
def tiny(tiny_path: Path) -> Checkpoint:
    return Checkpoint.open(tiny_path)
