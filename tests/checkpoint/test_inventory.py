"""The expected tensors against every sum that model.md states."""

from __future__ import annotations

import pytest

from deodar.checkpoint.inventory import TensorSpec, expected_tensors, totals
from deodar.checkpoint.tiny import TINY
from deodar.config import V4_1_FLASH

SPECS = expected_tensors(V4_1_FLASH)


def _bytes(*prefixes: str, without: str = "\0") -> int:
    return sum(s.num_bytes for n, s in SPECS.items() if n.startswith(prefixes) and without not in n)


def test_released_totals() -> None:
    total = totals(SPECS)[-1]
    assert (total.part, total.tensors) == ("total", 96_085)
    assert total.num_bytes == 510_286_023_000
    assert total.parameters == 763_205_315_794


def test_released_parts() -> None:
    by_part = {row.part: row for row in totals(SPECS)}
    tables = sum(s.num_parameters for s in SPECS.values() if s.kind == "rows")
    assert by_part["experts"].parameters == 543_581_798_400
    assert tables == 196_613_849_600
    other = ("backbone", "engram", "global")
    assert sum(by_part[p].parameters for p in other) - tables == 8_299_036_784
    assert by_part["draft"].parameters == 14_225_362_530
    assert by_part["vision"].parameters == 485_268_480
    assert by_part["vision"].tensors == 266


@pytest.mark.parametrize(
    ("layer", "num_bytes"),
    [
        (0, 7_389_500_888), (3, 7_389_500_888), (2, 7_405_694_680), (14, 7_405_694_680),
        (20, 7_400_451_800), (24, 7_395_076_568), (36, 7_395_076_568),
    ],
)  # fmt: skip
def test_layer_bytes(layer: int, num_bytes: int) -> None:
    assert _bytes(f"layers.{layer}.", without="engram") == num_bytes


def test_block_draft_engram_and_expert_bytes() -> None:
    assert sum(n.startswith("layers.0.") for n in SPECS) == 2334
    assert _bytes("layers.5.ffn.experts.7.") == 18_800_640
    draft = [_bytes(f"mtp.{i}.") for i in range(3)]
    assert draft == [2_652_643_800, 2_573_913_560, 2_706_317_272]
    assert _bytes("layers.1.engram.") == 101_535_150_272
    assert _bytes("layers.14.engram.") == 101_537_925_968
    tables = ("layers.1.engram.embed.", "layers.14.engram.embed.")
    assert _bytes(*tables) == 202_758_032_400


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("layers.7.attn.wq_a.weight", "F8_E4M3", (1280, 5120)),
        ("layers.7.attn.wq_a.scale", "F8_E8M0", (40, 160)),
        ("layers.7.attn.wo_a.scale", "F8_E8M0", (256, 128)),
        ("layers.7.attn.attn_sink", "F32", (64,)),
        ("layers.7.hc_ffn_fn", "F32", (24, 20480)),
        ("layers.7.ffn.experts.383.w2.weight", "I8", (5120, 1152)),
        ("layers.7.ffn.experts.383.w2.scale", "F8_E8M0", (5120, 72)),
        ("layers.14.attn.compressor.wgate.weight", "BF16", (512, 5120)),
        ("layers.36.attn.indexer.wq_b.weight", "F8_E4M3", (4096, 1280)),
        ("layers.20.attn.indexer.wk.weight", "BF16", (128, 512)),
        ("layers.1.engram.embed.scale", "F8_E8M0", (384006168, 8)),
        ("layers.1.engram.wkv.scale", "F8_E8M0", (800, 192)),
        ("mtp.0.main_proj.weight", "F8_E4M3", (5120, 15360)),
        ("mtp.2.confidence_head.proj.weight", "BF16", (1, 5376)),
        ("mtp.1.ffn.gate.bias_vl", "F32", (128,)),
        ("vision.blocks.31.mlp.w1.weight", "BF16", (5632, 1024)),
        ("vision.patch_embed.proj.weight", "BF16", (1024, 588)),
        ("aligner.w1.weight", "BF16", (5120, 9216)),
    ],
)
def test_single_tensors(name: str, dtype: str, shape: tuple[int, ...]) -> None:
    spec: TensorSpec = SPECS[name]
    assert (spec.dtype, spec.shape) == (dtype, shape)


def test_what_is_not_there() -> None:
    for name in (
        "layers.20.attn.compressor.wgate.weight",  # ratio 1 has no gate
        "layers.24.attn.indexer.wk.weight",  # reads layer 20's keys
        "layers.24.attn.compressor.wkv.weight",
        "mtp.0.attn.indexer.wq_b.weight",
        "mtp.0.embed.weight",
    ):
        assert name not in SPECS


def test_tiny_is_what_section_8_says() -> None:
    total = totals(expected_tensors(TINY))[-1]
    assert total.tensors == 1542
    assert round(total.num_bytes / 1e6, 1) == 12.3
