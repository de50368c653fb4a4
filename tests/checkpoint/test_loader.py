"""Opening checkpoints: values of model.md 8.2, the coverage proof, and the damage matrix.

Every damage must give one line, exit code 2 and no traceback through the command; the same cases go
through `Checkpoint.open` in-process.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from safetensors import safe_open

from deodar.checkpoint.inventory import expected_tensors
from deodar.checkpoint.loader import INDEX_FILE, SINGLE_FILE, Checkpoint, read_generation_config
from deodar.checkpoint.tiny import TINY, TINY_GPU_HEADS, hashes, make_tiny, prompt_ids, tiny_tensors
from deodar.checkpoint.writer import write_checkpoint
from deodar.cli.main import main
from deodar.config import VisionConfig
from deodar.errors import CheckpointError, DeodarError

SHARD = "model-00001-of-00001.safetensors"


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path) -> Checkpoint:
    return Checkpoint.open(tiny_folder)


def test_generator_checks_of_8_2(tiny: Checkpoint) -> None:
    assert [hex(int(h)) for h in hashes("embed.weight", 3)] == [
        "0x847c3095632f2542", "0xf1e1a69c1637ae02", "0xd462bd75c50ab9dc",
    ]  # fmt: skip
    assert tiny.dense("embed.weight")[0, :6].tolist() == [
        0.0078125, 0.220703125, 0.1640625, 0.12890625, 0.228515625, -0.130859375,
    ]  # fmt: skip
    assert tiny.dense("layers.0.attn.wq_a.weight")[0, :6].tolist() == [
        -0.0010986328125, -4.57763671875e-05, 0.001953125, 0.001708984375, 0.001708984375,
        -5.245208740234375e-06,
    ]  # fmt: skip
    assert tiny.dense("layers.0.ffn.experts.0.w1.weight")[0, :6].tolist() == [
        -0.0, -0.046875, -0.0078125, 0.00390625, -0.0, -0.0234375,
    ]  # fmt: skip
    assert tiny.dense("layers.2.attn.compressor.wgate.weight")[0, :6].tolist() == [
        -0.0439453125, -0.0615234375, -0.09765625, 0.0810546875, -0.0283203125, -0.0830078125,
    ]  # fmt: skip
    assert tiny.dense("layers.0.hc_attn_scale").tolist() == [0.595703125, 0.54296875, 0.267578125]
    assert prompt_ids(40)[:4] == (443, 143, 348, 397)
    assert prompt_ids(40)[-3:] == (24, 141, 375)


def test_shapes_and_types(tiny: Checkpoint) -> None:
    assert tiny.config == TINY
    assert len(tiny.names()) == 1542
    raw = {
        "layers.0.attn.wq_a.weight": np.uint8, "layers.0.attn.wq_a.scale": np.uint8,
        "layers.0.ffn.experts.3.w2.weight": np.int8, "embed.weight": np.uint16,
        "layers.0.hc_attn_fn": np.float32,
    }  # fmt: skip
    for name, dtype in raw.items():
        array = tiny.raw(name)
        assert array.dtype == dtype
        assert array.shape == tiny.specs[name].shape
        assert not array.flags.writeable
    assert tiny.dense("layers.0.ffn.experts.3.w2.weight").shape == (256, 64)
    assert tiny.dense("layers.0.attn.wq_a.weight").flags.writeable
    with pytest.raises(CheckpointError, match=r"no tensor named 'layers\.0\.attn\.wq_a'"):
        tiny.dense("layers.0.attn.wq_a")


def test_engram_rows_are_rows_of_the_table(tiny: Checkpoint) -> None:
    table = tiny.dense("layers.4.engram.embed.weight")
    rows = np.array([[0, 863], [17, 17]])
    np.testing.assert_array_equal(tiny.engram_rows(4, rows), table[rows])


def test_library_reads_the_same_bytes(tiny: Checkpoint) -> None:
    with safe_open(tiny.path / SHARD, framework="numpy") as library:
        assert set(library.keys()) == set(tiny.names())
        for name in ("layers.0.hc_attn_fn", "layers.9.ffn.experts.15.w1.weight"):
            np.testing.assert_array_equal(library.get_tensor(name), tiny.raw(name))


def test_same_bytes_every_time(tiny_folder: Path, tmp_path: Path) -> None:
    make_tiny(tmp_path)
    for path in tiny_folder.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_gpu_heads(tmp_path: Path) -> None:
    make_tiny(tmp_path, gpu_heads=True)
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.config == TINY_GPU_HEADS
    assert len(checkpoint.files) == 2
    assert all((tmp_path / file).stat().st_size < 14_000_000 for file in checkpoint.files)
    c = checkpoint.config
    sizes = (c.head_dim, c.qk_rope_head_dim, c.index_n_heads, c.index_head_dim)
    assert sizes == (512, 64, 32, 128)
    assert (c.candidate_block_size, c.sliding_window) == (8, 128)


def test_single_file_and_model_prefix(tiny_copy: Path) -> None:
    (tiny_copy / SHARD).rename(tiny_copy / SINGLE_FILE)
    (tiny_copy / INDEX_FILE).unlink()
    _edit_header(tiny_copy / SINGLE_FILE, lambda h: {_prefixed(n): v for n, v in h.items()})
    assert Checkpoint.open(tiny_copy).dense("norm.weight").shape == (256,)


def _prefixed(name: str) -> str:
    return name if name == "__metadata__" else "model." + name


def test_scales_stored_as_u8(tiny_copy: Path) -> None:
    def retype(header: dict[str, Any]) -> dict[str, Any]:
        for entry in header.values():
            if entry.get("dtype") == "F8_E8M0":
                entry["dtype"] = "U8"
        return header

    _edit_header(tiny_copy / SHARD, retype)
    assert len(Checkpoint.open(tiny_copy).names()) == 1542


def test_draft_copies_of_embed_and_head_are_ignored(tiny_copy: Path) -> None:
    _append(tiny_copy, "mtp.0.embed.weight", "BF16", [512, 256])
    _append(tiny_copy, "mtp.2.head.weight", "BF16", [512, 256])
    assert "mtp.0.embed.weight" not in Checkpoint.open(tiny_copy).names()


def test_unaligned_tensors_are_readable(tiny_copy: Path) -> None:
    shift = "mtp.0.embed.weight"
    _append(tiny_copy, shift, "U8", [3], first=True)
    checkpoint = Checkpoint.open(tiny_copy)
    raw = checkpoint.raw("layers.0.hc_attn_scale")
    assert raw.flags.aligned
    assert raw.tolist() == [0.595703125, 0.54296875, 0.267578125]


def test_nan_in_a_tensor_is_named(tiny_copy: Path) -> None:
    entries = _header(tiny_copy / SHARD)[0]
    start = entries["layers.3.attn.wo_b.scale"]["data_offsets"][0]
    content = bytearray((tiny_copy / SHARD).read_bytes())
    content[8 + int.from_bytes(content[:8], "little") + start] = 255
    (tiny_copy / SHARD).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"layers\.3\.attn\.wo_b\.weight holds a value"):
        Checkpoint.open(tiny_copy).dense("layers.3.attn.wo_b.weight")


def test_vision_tensors_are_listed_and_size_checked(tmp_path: Path) -> None:
    tower = VisionConfig(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=32
    )
    config = replace(TINY, vision=tower)
    vision = {n: s for n, s in expected_tensors(config).items() if s.part == "vision"}
    assert len(vision) == 2 + 2 * 8 + 1 + 4 + 3
    tensors = {**tiny_tensors(TINY), **{n: np.zeros(s.shape) for n, s in vision.items()}}
    write_checkpoint(tmp_path, config, tensors, shard_bytes=2**30)
    assert "aligner.w1.weight" in Checkpoint.open(tmp_path).names()
    _set("vision.blocks.1.mlp.w1.weight", shape=[32, 128])(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"mlp\.w1\.weight is \[32, 128\], must be \[64, 64\]"
    ):
        Checkpoint.open(tmp_path)
    write_checkpoint(tmp_path, TINY, dict(tiny_tensors(TINY)))
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    with pytest.raises(CheckpointError, match=r"26 tensors missing: vision\.patch_embed"):
        Checkpoint.open(tmp_path)


def test_generation_config(tiny_copy: Path) -> None:
    assert read_generation_config(tiny_copy)["eos_token_id"] == 1
    (tiny_copy / "generation_config.json").unlink()
    assert read_generation_config(tiny_copy) == {}


# --- damage --------------------------------------------------------------------------------------


def _header(path: Path) -> tuple[dict[str, Any], bytes]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _edit_header(path: Path, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    header, data = _header(path)
    text = json.dumps(edit(header)).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def _append(folder: Path, name: str, dtype: str, shape: list[int], *, first: bool = False) -> None:
    """Add a tensor of zeros to the shard and the index, at the end or the beginning of the data."""
    path = folder / SHARD
    header, data = _header(path)
    size = int(np.prod(shape)) * (2 if dtype == "BF16" else 1)
    if first:
        for entry in header.values():
            if "data_offsets" in entry:
                entry["data_offsets"] = [offset + size for offset in entry["data_offsets"]]
    begin = 0 if first else len(data)
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + size]}
    text = json.dumps(header).encode()
    data = bytes(size) + data if first else data + bytes(size)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    _edit_index(folder, lambda weights: weights.update({name: SHARD}))


def _edit_index(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    index = json.loads((folder / INDEX_FILE).read_text())
    edit(index["weight_map"])
    (folder / INDEX_FILE).write_text(json.dumps(index))


def _edit_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["text_config"].update(values)
    (folder / "config.json").write_text(json.dumps(config))


def _set(name: str, **values: object) -> Callable[[Path], None]:
    """Change fields of one tensor's header entry."""

    def edit(header: dict[str, Any]) -> dict[str, Any]:
        header[name].update(values)
        return header

    return lambda folder: _edit_header(folder / SHARD, edit)


def _rename(old: str, new: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        _edit_header(folder / SHARD, lambda h: {new if n == old else n: v for n, v in h.items()})
        _edit_index(folder, lambda w: w.update({new: w.pop(old)}))

    return damage


def _truncate(folder: Path) -> None:
    path = folder / SHARD
    os.truncate(path, path.stat().st_size - 1000)


def _cut_header(folder: Path) -> None:
    os.truncate(folder / SHARD, 500)


def _overlap(folder: Path) -> None:
    def edit(header: dict[str, Any]) -> dict[str, Any]:
        names = [n for n in header if n.endswith("ffn.experts.0.w1.scale")]
        header[names[1]]["data_offsets"] = header[names[0]]["data_offsets"]
        return header

    _edit_header(folder / SHARD, edit)


def _two_files(folder: Path) -> None:
    shutil.copy(folder / SHARD, folder / "extra.safetensors")
    _edit_index(folder, lambda w: w.update({"norm.weight": "extra.safetensors"}))


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _other_size(folder: Path) -> None:
    _edit_config(folder, n_routed_experts=17)


def _write(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def _index_entry(name: str, file: object) -> Callable[[Path], None]:
    return lambda folder: _edit_index(folder, lambda w: w.update({name: file}))


def _no_shard(folder: Path) -> None:
    (folder / SHARD).unlink()


def _no_weights(folder: Path) -> None:
    (folder / SHARD).unlink()
    (folder / INDEX_FILE).unlink()


def _long_header(folder: Path) -> None:
    with (folder / SHARD).open("r+b") as file:
        file.write((2**40).to_bytes(8, "little"))


WQ_A = "layers.0.attn.wq_a"
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing shard": (_no_shard, f"shard {SHARD} is missing in"),
    "no weights": (_no_weights, "neither model.safetensors.index.json nor model.safetensors"),
    "truncated data": (_truncate, "truncated file"),
    "truncated header": (_cut_header, "larger than the file"),
    "long header": (_long_header, "header of 1099511627776 bytes is larger than the file"),
    "empty shard": (_write(SHARD, ""), "truncated: 0 bytes"),
    "overlap": (_overlap, "overlaps"),
    "wrong dtype": (_set(WQ_A + ".weight", dtype="I8"), "is I8, must be F8_E4M3"),
    "weights as bytes": (_set(WQ_A + ".weight", dtype="U8"), "is U8, must be F8_E4M3"),
    "unknown dtype": (_set(WQ_A + ".weight", dtype="F6"), "unknown dtype 'F6'"),
    "wrong shape": (_set(WQ_A + ".weight", shape=[256, 96]), "is [256, 96], must be [96, 256]"),
    "wrong scale shape": (_set(WQ_A + ".scale", shape=[8, 3]), "is [8, 3], must be [3, 8]"),
    "scale per tensor": (_set("layers.0.attn.wkv.scale", shape=[16, 1]), "must be [2, 8]"),
    "huge shape": (_set(WQ_A + ".weight", shape=[2**61, 4]), "data_offsets span"),
    "unknown tensor": (
        _rename("layers.0.attn.q_norm.weight", "layers.0.attn.qnorm.weight"),
        "1 tensor missing: layers.0.attn.q_norm.weight; "
        "1 tensor not of this model: layers.0.attn.qnorm.weight",
    ),
    "name twice": (
        _rename("layers.0.attn.q_norm.weight", "model.norm.weight"), "'norm.weight' is in both"
    ),
    "two files": (_two_files, "index does not say"),
    "index wrong file": (_index_entry("norm.weight", "gone.safetensors"), "is missing in"),
    "index unknown": (_index_entry("a.weight", SHARD), "does not hold a.weight, which the index"),
    "index path": (_index_entry("norm.weight", "../x.safetensors"), "must be a file name"),
    "index type": (_index_entry("norm.weight", 7), "must be a file name"),
    "index empty": (_write(INDEX_FILE, "{}"), '"weight_map" must be an object'),
    "index no JSON": (_write(INDEX_FILE, "{"), f"{INDEX_FILE}: not JSON"),
    "no config": (_no_config, "config.json is missing in"),
    "config no JSON": (_write("config.json", "\0"), "config.json: not JSON"),
    "config list": (_write("config.json", "[]"), "must hold a JSON object"),
    "config empty": (_write("config.json", "{}"), "config.json: vocab_size is missing"),
    "config other size": (_other_size, "60 tensors missing: layers.0.ffn.experts.16.w1.weight"),
    "sources": (lambda f: _edit_config(f, kv_source_layer_ids=[4, 2, 6]), "strictly increasing"),
    "ratios": (lambda f: _edit_config(f, compress_ratios=[0, 0]), "length of compress_ratios"),
    "tiles": (lambda f: _edit_config(f, hidden_size=250), "must be a multiple of 32"),
    "map size": (_write("engram_token_map.json", '{"map": [0, 1]}'), "has 2 entries, must be"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage(kind: str, tiny_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage, words = DAMAGE[kind]
    damage(tiny_copy)
    assert main(["inspect", str(tiny_copy)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("deodar inspect: ")
    assert output.err.count("\n") == 1
    assert words in output.err
    assert len(output.err) < 1500
    if kind != "map size":
        with pytest.raises(DeodarError):
            Checkpoint.open(tiny_copy)


def test_many_problems_are_one_short_line(tiny_copy: Path) -> None:
    _edit_config(tiny_copy, hidden_size=512)
    with pytest.raises(CheckpointError, match=r"wrong shape: .*, and \d+ more") as caught:
        Checkpoint.open(tiny_copy)
    assert len(str(caught.value)) < 600


def test_not_a_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a folder with a checkpoint"):
        Checkpoint.open(tmp_path / "nothing")


def test_any_cut_of_the_shard_is_an_error(tiny_copy: Path) -> None:
    path = tiny_copy / SHARD
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    for size in (0, 1, 7, 8, 9, header - 1, header, header + 1, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(CheckpointError):
            Checkpoint.open(tiny_copy)
    path.write_bytes(content + b"\0")
    with pytest.raises(CheckpointError, match="1 unnamed bytes after"):
        Checkpoint.open(tiny_copy)


def test_any_flipped_bytes_are_an_error_or_nothing(tiny_copy: Path) -> None:
    """Bytes of headers, index and config changed at random: never anything but a DeodarError."""
    rng = np.random.default_rng(5)
    failures = 0
    for name in (SHARD, INDEX_FILE, "config.json", "engram_token_map.json"):
        path = tiny_copy / name
        end = min(path.stat().st_size, 100_000)
        for _ in range(25):
            places = rng.integers(0, end, size=rng.integers(1, 4))
            with path.open("r+b") as file:
                old = [_swap(file, int(place), int(rng.integers(256))) for place in places]
                file.flush()
                try:
                    Checkpoint.open(tiny_copy).token_map()
                except DeodarError:
                    failures += 1
                for place, value in reversed(list(zip(places, old, strict=True))):
                    _swap(file, int(place), value)
    assert failures > 50
    assert Checkpoint.open(tiny_copy).config == TINY


def _swap(file: BinaryIO, place: int, value: int) -> int:
    file.seek(place)
    old = file.read(1)[0]
    file.seek(place)
    file.write(bytes([value]))
    return old


# --- writer --------------------------------------------------------------------------------------


def test_floats_come_back_as_their_own_rounding(tiny: Checkpoint, tmp_path: Path) -> None:
    """dense -> write -> dense is exact for values that are already on the grid, or nearly so."""
    floats = {n: tiny.dense(n) for n, s in tiny.specs.items() if s.kind != "scale"}
    write_checkpoint(tmp_path, TINY, floats, shard_bytes=3_000_000)
    again = Checkpoint.open(tmp_path)
    assert len(again.files) > 3
    assert all((tmp_path / file).stat().st_size < 3_000_000 for file in again.files)
    for name, values in floats.items():
        spec, found = tiny.specs[name], again.dense(name)
        if spec.kind == "dense":
            np.testing.assert_array_equal(found, values)
        else:
            limit = 2**-4 if spec.kind != "fp4" else 2**-2
            assert np.abs(found - values).max() <= limit * np.abs(values).max()
    # Once on the grid of their own scales, values stay.
    twice = {n: again.dense(n) for n in floats}
    write_checkpoint(tmp_path / "twice", TINY, twice)
    final = Checkpoint.open(tmp_path / "twice")
    for name in floats:
        np.testing.assert_array_equal(final.dense(name), again.dense(name))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("norm.weight"), "'norm.weight' is missing"),
        (lambda t: t.pop("layers.0.attn.wkv.scale"), "'layers.0.attn.wkv.scale' is missing"),
        (lambda t: t.update({"norm.bias": np.zeros(4)}), "cannot write 'norm.bias'"),
        (lambda t: t.update({"norm.weight": np.zeros(4)}), "norm.weight is [4], must be [256]"),
        (lambda t: t.update({"norm.weight": np.full(256, np.nan)}), "NaN or infinite"),
        (lambda t: t.update({"norm.weight": np.zeros(256, "i4")}), "numbers of type int32 for BF"),
        (lambda t: t.update({WQ_A + ".weight": np.zeros((96, 256))}), "give one form"),
    ],
)
def test_writer_refuses(
    change: Callable[[dict[str, Any]], Any], words: str, tmp_path: Path
) -> None:
    tensors: dict[str, Any] = dict(tiny_tensors(TINY))
    change(tensors)
    with pytest.raises(CheckpointError) as caught:
        write_checkpoint(tmp_path, TINY, tensors)
    assert words in str(caught.value)


def test_specs_are_the_written_names(tiny_folder: Path) -> None:
    weight_map = json.loads((tiny_folder / INDEX_FILE).read_text())["weight_map"]
    assert list(weight_map) == list(expected_tensors(TINY))
