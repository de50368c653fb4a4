"""The safetensors header reader: agrees with the library, and survives any bytes."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from deodar.checkpoint.header import parse_header, read_header
from deodar.errors import CheckpointError


def _file(header: object, data_bytes: int, *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    prefix = struct.pack("<Q", len(text) if length is None else length)
    return prefix + text + bytes(data_bytes)


def _parse(content: bytes) -> Any:
    return parse_header(io.BytesIO(content), len(content), "x.safetensors")


def _tensor(dtype: Any = "U8", shape: Any = (4,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(5, np.uint8)}
    save_file(arrays, tmp_path / "f.safetensors", metadata={"format": "pt"})
    entries = read_header(tmp_path / "f.safetensors")
    content = (tmp_path / "f.safetensors").read_bytes()
    assert entries["a"].dtype == "F32"
    assert entries["a"].shape == (2, 3)
    found = np.frombuffer(content[entries["a"].start : entries["a"].end], dtype=np.float32)
    assert found.tolist() == [0, 1, 2, 3, 4, 5]
    assert entries["b"].end - entries["b"].start == 5


def test_good_headers() -> None:
    assert _parse(_file({}, 0)) == {}
    # Header order is free, scalars and empty tensors are fine.
    two = {"b": _tensor(offsets=[4, 8]), "a": _tensor(), "e": _tensor(shape=[0], offsets=[8, 8])}
    assert list(_parse(_file(two, 8))) == ["a", "b", "e"]
    assert _parse(_file({"s": _tensor("F32", [])}, 4))["s"].shape == ()


DAMAGE: list[tuple[bytes, str]] = [
    (b"", "truncated: 0 bytes"),
    (b"\0\0\0", "truncated: 3 bytes"),
    (_file({}, 0, length=3), "larger than the file"),
    (_file({}, 0, length=2**63), "larger than the file"),
    (_file(b"", 0), "not JSON"),
    (_file(b"\xff\xfe", 0), "not JSON"),
    (_file(b"[]", 0), "must hold a JSON object, holds list"),
    (_file(b"{" * 5 + b"}", 0), "not JSON"),
    (_file(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", 0), "nested too deeply"),
    (_file(b'{"a":' + b"9" * 5000 + b"}", 0), "not JSON"),
    (_file(b'{"a":NaN}', 0), "NaN is no JSON number"),
    (_file(b'{"a":{"dtype":"U8","dtype":"I8"}}', 0), "'dtype' appears twice"),
    (_file(b'{"a":{},"a":{}}', 0), "'a' appears twice"),
    (_file({"__metadata__": 3}, 0), "__metadata__ must be an object"),
    (_file({"a": 3}, 0), "'a': must be an object"),
    (_file({"a": {}}, 0), "unknown dtype 'None'"),
    (_file({"a": _tensor("F4_E9")}, 4), "unknown dtype 'F4_E9'"),
    (_file({"a": _tensor(["U8"])}, 4), "unknown dtype"),
    (_file({"a": _tensor(shape=[-4])}, 4), "shape must be"),
    (_file({"a": _tensor(shape=[4.0])}, 4), "shape must be"),
    (_file({"a": _tensor(shape=[True] * 2)}, 4), "shape must be"),
    (_file({"a": _tensor(shape=[2**80, 0])}, 4), "shape must be"),
    (_file({"a": _tensor(shape=[1] * 9)}, 4), "at most 8 integers"),
    (_file({"a": _tensor(shape="4")}, 4), "shape must be"),
    (_file({"a": _tensor(shape=[2**40, 2**40])}, 4), "data_offsets span 4"),
    (_file({"a": _tensor(shape=[5])}, 4), "needs 5 bytes, data_offsets span 4"),
    (_file({"a": _tensor("F32")}, 4), "needs 16 bytes"),
    (_file({"a": _tensor(offsets=[0, 4, 8])}, 8), "data_offsets must be two"),
    (_file({"a": _tensor(offsets=[-4, 0])}, 8), "data_offsets must be two"),
    (_file({"a": _tensor(offsets=[4, 0])}, 8), "end (0) before they begin (4)"),
    (_file({"a": _tensor()}, 3), "truncated file: data end at byte 4, the file holds 3"),
    (_file({"a": _tensor(offsets=[2**61, 2**61 + 4])}, 4), "truncated file"),
    (_file({"a": _tensor(), "b": _tensor(offsets=[2, 6])}, 6), "'b' overlaps tensor 'a'"),
    (_file({"a": _tensor(), "b": _tensor()}, 4), "overlaps"),
    (_file({"a": _tensor(), "b": _tensor(offsets=[5, 9])}, 9), "1 unnamed bytes before tensor 'b'"),
    (_file({"a": _tensor()}, 6), "2 unnamed bytes after tensor 'a'"),
    (_file({}, 6), "6 unnamed bytes after the header"),
]


@pytest.mark.parametrize(("content", "words"), DAMAGE, ids=[words for _, words in DAMAGE])
def test_damage(content: bytes, words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        _parse(content)
    message = str(caught.value)
    assert message.startswith("x.safetensors")
    assert words in message
    assert "\n" not in message


GOOD = _file({"a": _tensor(), "b": _tensor("F32", [2, 3], [4, 28])}, 28)


def _check_safe(content: bytes) -> None:
    """Either one CheckpointError, or entries that lie inside the file and fill it."""
    try:
        entries = _parse(content)
    except CheckpointError:
        return
    spans = sorted((e.start, e.end) for e in entries.values())
    assert all(0 <= start <= end <= len(content) for start, end in spans)
    assert sum(end - start for start, end in spans) <= len(content)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_flipped_and_cut_bytes(data: st.DataObject) -> None:
    content = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 6))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.integers(0, 255))
    _check_safe(bytes(content[: data.draw(st.integers(0, len(content)))]))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80))
@example(b"\x02\0\0\0\0\0\0\0{}")
def test_any_bytes(content: bytes) -> None:
    _check_safe(content)
    _check_safe(struct.pack("<Q", len(content)) + content)


NUMBER = st.integers(-3, 40) | st.sampled_from([2**31, 2**63, 2**64, -(2**63), 1.5, None, "4"])


@settings(max_examples=400, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "c", "__metadata__"]),
        st.fixed_dictionaries(
            {
                "dtype": st.sampled_from(["U8", "F32", "BF16", "F8_E8M0", "X", 3]),
                "shape": st.lists(NUMBER, max_size=3),
                "data_offsets": st.lists(NUMBER, max_size=3),
            }
        ),
    ),
    st.integers(0, 60),
)
def test_any_header_of_the_right_form(header: dict[str, Any], data_bytes: int) -> None:
    _check_safe(_file(header, data_bytes))
