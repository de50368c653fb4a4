"""The tiny checkpoint as a subject of `deodar eval`, and the training scripts on the path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from deodar.checkpoint.tiny import make_tiny
from deodar.evaluation.subject import Subject

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("eval") / "tiny"
    make_tiny(path, gpu_heads=False)
    return path


@pytest.fixture(scope="session")
def subject(tiny_path: Path) -> Subject:
    return Subject(tiny_path, threads=1)
