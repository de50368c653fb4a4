"""From what a user types to a checkpoint folder. Called by every command that takes a model."""

from __future__ import annotations

from pathlib import Path

from deodar.errors import CheckpointError

SEEDLING = "seedling"


def resolve_model(name_or_path: str) -> Path:
    """Folder of "seedling" (shipped with the package) or of a path.

    Raises CheckpointError naming what is known if there is no such thing.
    """
    if name_or_path == SEEDLING:
        folder = Path(__file__).parent.parent / SEEDLING
        if not (folder / "config.json").exists():
            raise CheckpointError(f"this installation holds no {SEEDLING}")
        return folder
    try:
        path = Path(name_or_path).expanduser()
        exists, is_folder = bool(name_or_path) and path.exists(), path.is_dir()
    except (OSError, RuntimeError, ValueError):  # too long, unknown ~user, a null byte
        exists = is_folder = False
    if not exists:
        shown = name_or_path if len(name_or_path) <= 200 else name_or_path[:200] + "..."
        raise CheckpointError(f"no model {shown!r}: neither a known name ({SEEDLING}) nor a folder")
    if not is_folder:
        raise CheckpointError(f"{name_or_path!r} is a file, must be a folder with a checkpoint")
    return path
