"""Opens a checkpoint folder and proves that it holds exactly the model its config describes.

Called by the model rooms, `deodar inspect` and the tests. After `Checkpoint.open` every expected
tensor is present once with the right type and shape, and nothing else is there. Files are memory
mapped: opening reads headers only, and the big Engram tables are read row by row.
"""

from __future__ import annotations

import mmap
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deodar.checkpoint import formats
from deodar.checkpoint.engram import load_token_map
from deodar.checkpoint.header import Entry, read_header
from deodar.checkpoint.inventory import IGNORED, TensorSpec, expected_tensors
from deodar.checkpoint.jsonfile import read_object
from deodar.config import ModelConfig
from deodar.errors import CheckpointError, ConfigError

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
_SHOWN = 4
_NUMPY = {"F8_E4M3": "u1", "F8_E8M0": "u1", "I8": "i1", "BF16": "<u2", "F32": "<f4"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    file: str
    entry: Entry


class Checkpoint:
    """A proven checkpoint. Make one with `Checkpoint.open`; arrays stay valid while it lives.

    path: the folder. config: its ModelConfig. specs: the expected tensors by bare name.
    """

    def __init__(
        self, path: Path, config: ModelConfig, specs: dict[str, TensorSpec],
        stored: Mapping[str, _Stored],
    ) -> None:  # fmt: skip
        self.path = path
        self.config = config
        self.specs = specs
        self._stored = stored
        self._maps = {name: _map(path / name) for name in {s.file for s in stored.values()}}

    @classmethod
    def open(cls, path: Path | str) -> Checkpoint:
        """Prove and map the checkpoint in a folder.

        Raises ConfigError (config.json contradicts itself) or CheckpointError (missing, damaged,
        unexpected or wrongly shaped tensors, files that the index promises but are not there).
        """
        folder = Path(path)
        if not folder.is_dir():
            raise CheckpointError(f"{folder} is not a folder with a checkpoint")
        config = read_config(folder)
        specs = expected_tensors(config)
        stored = _collect(folder)
        _prove_coverage(specs, stored)
        return cls(folder, config, specs, {name: stored[name] for name in specs})

    def names(self) -> tuple[str, ...]:
        """Bare names of all tensors, in the order of the specification."""
        return tuple(self.specs)

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files that hold the tensors."""
        return tuple(sorted(self._maps))

    def raw(self, name: str) -> NDArray[np.generic]:
        """Stored numbers as a read-only view of the file.

        uint8 for fp8 and scales, int8 for packed fp4, uint16 for bf16 bits, float32 as it is.
        Copied only where a file has the tensor at an unaligned byte.
        """
        spec, stored = self._find(name), self._stored[name]
        dtype = np.dtype(_NUMPY[spec.dtype])
        count = (stored.entry.end - stored.entry.start) // dtype.itemsize
        mapped = self._maps[stored.file]
        array = np.frombuffer(mapped, dtype=dtype, count=count, offset=stored.entry.start)
        if not array.flags.aligned:
            array = array.copy()
        return array.reshape(spec.shape)

    def dense(self, name: str) -> NDArray[np.float32]:
        """Logical values of `X.weight` (or any unscaled tensor) as a fresh float32 array.

        Quantised matrices are multiplied by their scales (2.1); fp4 gives [R, C] from [R, C/2].
        Raises CheckpointError if a value is NaN or infinite.
        """
        spec, raw = self._find(name), self.raw(name)
        values: NDArray[np.float32]
        if spec.kind == "scale":
            values = formats.E8M0[raw.view(np.uint8)]
        elif spec.kind == "dense":
            bits = spec.dtype == "BF16"
            values = formats.decode_bf16(raw.view(np.uint16)) if bits else raw.astype(np.float32)
        else:
            scale = self.raw(spec.scale_name).view(np.uint8)
            decode = {"fp8": formats.decode_tiles, "fp4": formats.decode_fp4}.get(
                spec.kind, formats.decode_rows
            )
            values = decode(raw.view(np.uint8), scale)
        if not np.isfinite(values).all():
            raise CheckpointError(f"{name} holds a value that is NaN or infinite")
        return values

    def engram_rows(self, layer: int, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Rows of the Engram table of backbone layer `layer`: int64 [...] to float32 [..., dim].

        Reads only these rows from the map. Rows must be inside the table (the hash keeps them so).
        """
        weight = self.raw(f"layers.{layer}.engram.embed.weight").view(np.uint8)
        scale = self.raw(f"layers.{layer}.engram.embed.scale").view(np.uint8)
        return formats.decode_rows(weight[rows], scale[rows])

    def token_map(self) -> NDArray[np.int64]:
        """Compressed id of every token id, int64 [vocab_size] (3.10a)."""
        return load_token_map(self.path, self.config)

    def _find(self, name: str) -> TensorSpec:
        if name not in self.specs:
            raise CheckpointError(f"this model has no tensor named {name!r}")
        return self.specs[name]


def read_config(folder: Path) -> ModelConfig:
    """config.json of a folder; errors begin with the file's name."""
    try:
        return ModelConfig.from_dict(read_object(folder / "config.json"))
    except ConfigError as error:
        raise ConfigError(f"config.json: {error}") from None


def read_generation_config(folder: Path) -> dict[str, object]:
    """generation_config.json of a folder, {} where there is none."""
    path = folder / "generation_config.json"
    return read_object(path) if path.exists() else {}


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path.name} cannot be mapped: {error}") from None


def _collect(folder: Path) -> dict[str, _Stored]:
    """Every tensor of the folder by bare name; index and files must agree both ways."""
    index = _read_index(folder)
    stored: dict[str, _Stored] = {}
    promised: dict[str, set[str]] = defaultdict(set)
    for name, file in index.items():
        promised[file].add(name)
    for file in sorted(promised) or [SINGLE_FILE]:
        entries = read_header(folder / file)
        absent = [name for name in promised[file] if name not in entries]
        if absent:
            raise CheckpointError(f"{file} does not hold {_some(absent)}, which the index says")
        for name, entry in entries.items():
            bare = name.removeprefix("model.")
            if bare in stored:
                raise CheckpointError(f"{bare!r} is in both {stored[bare].file} and {file}")
            if index and index.get(name) != file:
                raise CheckpointError(f"{file} holds {name!r}, which the index does not say")
            stored[bare] = _Stored(file=file, entry=entry)
    return stored


def _read_index(folder: Path) -> dict[str, str]:
    """weight_map, or {} for a single file without index."""
    path = folder / INDEX_FILE
    if not path.exists():
        if not (folder / SINGLE_FILE).exists():
            raise CheckpointError(f"neither {INDEX_FILE} nor {SINGLE_FILE} is in {folder}")
        return {}
    weight_map = read_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f'{INDEX_FILE}: "weight_map" must be an object with names')
    for name, file in weight_map.items():
        plain = isinstance(file, str) and file and Path(file).name == file and "\0" not in file
        if not plain:
            raise CheckpointError(f"{INDEX_FILE}: {name!r} is in {file!r}, must be a file name")
    return weight_map


def _prove_coverage(specs: dict[str, TensorSpec], stored: Mapping[str, _Stored]) -> None:
    problems = []
    missing = [name for name in specs if name not in stored]
    if missing:
        problems.append(f"{_tensors(missing)} missing: {_some(missing)}")
    extra = [name for name in stored if name not in specs and not IGNORED.fullmatch(name)]
    if extra:
        problems.append(f"{_tensors(extra)} not of this model: {_some(extra)}")
    shared = [(spec, stored[name].entry) for name, spec in specs.items() if name in stored]
    for what, wrong in (
        ("dtype", [_diff(s, e.dtype, s.dtype) for s, e in shared if not _same_dtype(s, e)]),
        ("shape", [_diff(s, e.shape, s.shape) for s, e in shared if e.shape != s.shape]),
    ):
        if wrong:
            more = f", and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
            problems.append(f"wrong {what}: {', '.join(wrong[:_SHOWN])}{more}")
    if problems:
        raise CheckpointError("not this model: " + "; ".join(problems))


def _same_dtype(spec: TensorSpec, entry: Entry) -> bool:
    # Writers without the scale type store it as plain bytes (2.1).
    return entry.dtype == spec.dtype or (spec.dtype == "F8_E8M0" and entry.dtype == "U8")


def _diff(spec: TensorSpec, found: object, wanted: object) -> str:
    found, wanted = (list(v) if isinstance(v, tuple) else v for v in (found, wanted))
    return f"{spec.name} is {found}, must be {wanted}"


def _tensors(names: list[str]) -> str:
    return f"{len(names)} tensor{'s' if len(names) > 1 else ''}"


def _some(names: list[str]) -> str:
    shown = ", ".join(name[:200] for name in names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown}, and {len(names) - _SHOWN} more"
