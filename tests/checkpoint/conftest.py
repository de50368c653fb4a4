"""One tiny checkpoint a session, and fresh copies of it to damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from deodar.checkpoint.tiny import make_tiny


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    make_tiny(folder)
    return folder


@pytest.fixture
def tiny_copy(tiny_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "copy"))
