"""Header of a safetensors file, checked before anything is read through it.

    [8 bytes: header length, little endian][JSON header][data ... to the end of the file]

Called by the loader. Afterwards every entry lies inside the file, has exactly the bytes its type
and shape call for, and the entries tile the data without gap or overlap, so no later read can leave
the file. Whatever the bytes are, the only exception is CheckpointError.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from deodar.checkpoint.jsonfile import parse_object
from deodar.errors import CheckpointError

MAX_HEADER_BYTES = 100_000_000
MAX_DIMS = 8
DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One stored tensor. start, end: byte positions from the beginning of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> dict[str, Entry]:
    """Entries of a safetensors file by name, in file order. Raises CheckpointError."""
    try:
        with path.open("rb") as file:
            return parse_header(file, path.stat().st_size, path.name)
    except FileNotFoundError:
        raise CheckpointError(f"shard {path.name} is missing in {path.parent}") from None
    except OSError as error:
        raise CheckpointError(f"{path.name}: {error.strerror or error}") from None


def parse_header(file: BinaryIO, file_size: int, name: str) -> dict[str, Entry]:
    """As `read_header` from an open file of `file_size` bytes; `name` begins the error texts."""
    prefix = file.read(8)
    if len(prefix) < 8:
        raise CheckpointError(f"{name}: truncated: {file_size} bytes, the header needs at least 8")
    length = int.from_bytes(prefix, "little")
    if length > file_size - 8:
        raise CheckpointError(
            f"{name}: header of {length} bytes is larger than the file ({file_size} bytes)"
        )
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(f"{name}: header of {length} bytes, limit is {MAX_HEADER_BYTES}")
    text = file.read(length)
    if len(text) != length:
        raise CheckpointError(f"{name}: truncated inside the header")
    raw = parse_object(text, f"{name} header")
    metadata = raw.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise CheckpointError(f"{name} header: __metadata__ must be an object")
    data_bytes = file_size - 8 - length
    entries = {
        tensor: _entry(value, f"{name}: tensor {tensor[:200]!r}", 8 + length, data_bytes)
        for tensor, value in raw.items()
    }
    ordered = dict(sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)))
    _check_tiling(ordered, name, 8 + length, file_size)
    return ordered


def _entry(value: object, where: str, base: int, data_bytes: int) -> Entry:
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: must be an object")
    dtype = value.get("dtype")
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise CheckpointError(f"{where}: unknown dtype {str(dtype)[:40]!r}")
    shape, offsets = _ints(value.get("shape")), _ints(value.get("data_offsets"))
    if shape is None or len(shape) > MAX_DIMS:
        raise CheckpointError(f"{where}: shape must be at most {MAX_DIMS} integers of at least 0")
    if offsets is None or len(offsets) != 2:
        raise CheckpointError(f"{where}: data_offsets must be two integers of at least 0")
    begin, end = offsets
    if begin > end:
        raise CheckpointError(f"{where}: data_offsets end ({end}) before they begin ({begin})")
    if end > data_bytes:
        raise CheckpointError(
            f"{where}: truncated file: data end at byte {end}, the file holds {data_bytes}"
        )
    needed = math.prod(shape) * DTYPE_BYTES[dtype]
    if needed != end - begin:
        raise CheckpointError(
            f"{where}: {dtype} of shape {shape} needs {needed} bytes, data_offsets span "
            f"{end - begin}"
        )
    return Entry(dtype=dtype, shape=tuple(shape), start=base + begin, end=base + end)


def _ints(value: object) -> list[int] | None:
    """A list of integers that fit the sizes files can have (JSON true is no integer)."""
    whole = isinstance(value, list) and all(type(v) is int and 0 <= v < 2**62 for v in value)
    return value if isinstance(value, list) and whole else None


def _check_tiling(entries: dict[str, Entry], name: str, base: int, file_size: int) -> None:
    position, before = base, "the header"
    for tensor, entry in entries.items():
        if entry.start < position:
            raise CheckpointError(f"{name}: tensor {tensor[:200]!r} overlaps {before}")
        if entry.start > position:
            gap = entry.start - position
            raise CheckpointError(f"{name}: {gap} unnamed bytes before tensor {tensor[:200]!r}")
        position, before = entry.end, f"tensor {tensor[:200]!r}"
    if position != file_size:
        raise CheckpointError(f"{name}: {file_size - position} unnamed bytes after {before}")
