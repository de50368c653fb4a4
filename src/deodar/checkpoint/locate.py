"""From what a user types to a checkpoint folder. Called by every command that takes a model."""

from __future__ import annotations

from pathlib import Path

import deodar
from deodar.errors import CheckpointError

SEEDLING = "seedling"


def resolve_model(name_or_path: str) -> Path:
    """Folder of "seedling" (shipped with the package) or of a path.

    Raises CheckpointError naming what is known if there is no such thing.
    """
    if name_or_path == SEEDLING:
        folder = Path(deodar.__file__).parent / SEEDLING
        if not (folder / "config.json").exists():
            raise CheckpointError(f"this installation holds no {SEEDLING}")
        return folder
    path = Path(name_or_path).expanduser()
    if not path.exists():
        raise CheckpointError(
            f"no model {name_or_path!r}: neither a known name ({SEEDLING}) nor a folder"
        )
    if not path.is_dir():
        raise CheckpointError(f"{name_or_path!r} is a file, must be a folder with a checkpoint")
    return path
