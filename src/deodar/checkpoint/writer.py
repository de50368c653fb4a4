"""Writes a model of this structure in the released layout: shards, index, config.json.

Called by `deodar make-tiny`, the trainer's export and tests. What is written opens again with
`Checkpoint.open`. Same input, same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from deodar.checkpoint import formats
from deodar.checkpoint.inventory import ITEM_BYTES, TensorSpec, expected_tensors
from deodar.checkpoint.loader import INDEX_FILE
from deodar.config import ModelConfig
from deodar.errors import CheckpointError

Array = NDArray[np.generic]
_KIND = {"F8_E4M3": "u", "F8_E8M0": "u", "I8": "i", "BF16": "u", "F32": "f"}


def write_checkpoint(
    out: Path, config: ModelConfig, tensors: Mapping[str, Array], *, shard_bytes: int = 14_000_000
) -> None:
    """Write `tensors` (bare name to array) into the folder `out`, shards below `shard_bytes`.

    A float array is the logical matrix [R, C] and is coded as the layout asks: fp8 tiles, mxfp4 and
    Engram rows by each group's largest value with the scale rounded up to a power of two; its
    `.scale` must then be absent. An array of the stored integer type (uint8, int8 for fp4, uint16
    for bf16) is written as it is. A tensor larger than `shard_bytes` gets a shard of its own.
    Raises CheckpointError for a missing, unexpected, misshapen or non-finite tensor.
    """
    specs = expected_tensors(config)
    _check_names(specs, tensors)
    out.mkdir(parents=True, exist_ok=True)
    shards = _plan(specs, shard_bytes)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_shard(out / file, shard, tensors)
        weight_map.update({spec.name: file for spec in shard})
    total = sum(spec.num_bytes for spec in specs.values())
    write_json(out / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": weight_map})
    write_json(out / "config.json", config.to_dict())


def write_json(path: Path, value: object) -> None:
    """UTF-8 JSON with two blanks of indentation and a final newline."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _check_names(specs: dict[str, TensorSpec], tensors: Mapping[str, Array]) -> None:
    extra = [name for name in tensors if name not in specs]
    if extra:
        raise CheckpointError(f"cannot write {extra[0]!r}: this model has no such tensor")
    for name, spec in specs.items():
        if spec.kind != "scale" and name not in tensors:
            raise CheckpointError(f"cannot write the checkpoint: {name!r} is missing")


def _plan(specs: dict[str, TensorSpec], limit: int) -> list[list[TensorSpec]]:
    """Shards in the order of the specification; a weight and its scale stay together."""
    shards: list[list[TensorSpec]] = [[]]
    used = 0
    for spec in specs.values():
        if spec.kind == "scale":
            continue
        unit = [spec] if spec.kind == "dense" else [spec, specs[spec.scale_name]]
        # 160 bytes a name cover the longest header entry of this structure.
        size = sum(s.num_bytes + 160 for s in unit)
        if shards[-1] and used + size > limit:
            shards.append([])
            used = 0
        shards[-1] += unit
        used += size
    return shards


def _write_shard(path: Path, shard: list[TensorSpec], tensors: Mapping[str, Array]) -> None:
    arrays: dict[str, Array] = {}
    for spec in shard:
        if spec.kind != "scale":
            arrays.update(_stored(spec, tensors))
    # Wide numbers first, so that every tensor is aligned for its type.
    ordered = sorted(shard, key=lambda spec: -ITEM_BYTES[spec.dtype])
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for spec in ordered:
        _check_stored(spec, arrays[spec.name])
        end = position + spec.num_bytes
        header[spec.name] = {
            "dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [position, end],
        }  # fmt: skip
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for spec in ordered:
            file.write(arrays[spec.name].tobytes())


def _stored(spec: TensorSpec, tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Stored arrays of a weight and, where the layout has one, of its scale."""
    given = tensors[spec.name]
    is_float = given.dtype.kind == "f"
    if spec.kind == "dense":
        if is_float:
            _check_finite(spec, given)
        if is_float and spec.dtype == "BF16":
            return {spec.name: formats.encode_bf16(given.astype(np.float32))}
        return {spec.name: given.astype(np.float32) if is_float else given}
    if not is_float:
        if spec.scale_name not in tensors:
            raise CheckpointError(f"cannot write the checkpoint: {spec.scale_name!r} is missing")
        return {spec.name: given, spec.scale_name: tensors[spec.scale_name]}
    if spec.scale_name in tensors:
        raise CheckpointError(f"{spec.name} is float and {spec.scale_name} given: give one form")
    weight, scale = _encode(spec, given.astype(np.float32))
    return {spec.name: weight, spec.scale_name: scale}


def _encode(spec: TensorSpec, values: NDArray[np.float32]) -> tuple[Array, Array]:
    logical = (spec.shape[0], spec.shape[1] * (2 if spec.kind == "fp4" else 1))
    if values.shape != logical:
        raise CheckpointError(f"{spec.name} is {list(values.shape)}, must be {list(logical)}")
    _check_finite(spec, values)
    if spec.kind == "fp8":
        return formats.encode_tiles(values)
    if spec.kind == "fp4":
        return formats.encode_fp4(values)
    return formats.encode_rows(values)


def _check_finite(spec: TensorSpec, values: Array) -> None:
    if not np.isfinite(values).all():
        raise CheckpointError(f"{spec.name} holds a value that is NaN or infinite")


def _check_stored(spec: TensorSpec, array: Array) -> None:
    if array.shape != spec.shape:
        raise CheckpointError(f"{spec.name} is {list(array.shape)}, must be {list(spec.shape)}")
    if array.dtype.kind != _KIND[spec.dtype] or array.dtype.itemsize != ITEM_BYTES[spec.dtype]:
        if spec.dtype == "I8" and array.dtype == np.uint8:
            return
        raise CheckpointError(f"{spec.name} has numbers of type {array.dtype} for {spec.dtype}")
