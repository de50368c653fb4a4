"""Check the training form against the golden numbers of model.md 8.3 and tiny_kv_golden.json.

Run on a CPU before any long run, and by tests/training: `python golden.py FOLDER` with the folder
of tiny_kv_golden.json (`tests/model`). It builds the tiny checkpoint of model.md 8 from its integer
generator, runs it through model.py and draft.py in fp32 with hard choice of entries, and stops at
the first difference. What must hold: an export loads back to the values training computed with.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from draft import DraftHead
from export import load_params, released_tensors
from model import Backbone, Mode, Trace, head_logits
from quant import Rounding, rows_fp8, weight_fp4, weight_fp8
from shape import Shape, load_shape

M64 = (1 << 64) - 1


def tiny_shape() -> Shape:
    """The configuration of model.md 8.1."""
    base = load_shape(Path(__file__).with_name("config.json"))
    return replace(
        base, vocab=512, hidden=256, layers=10, inter=64, heads=8, head_dim=64, rope_dim=16,
        q_lora=96, o_lora=64, o_groups=4, window=8, ratios=(0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0),
        kv_sources=(2, 4, 6), index_sources=(2, 4, 6, 8), index_heads=16, index_dim=32,
        index_topk=6, candidate_source=6, candidate_blocks=3, candidate_size=4, experts=16, top=3,
        yarn_original=32, engram_layers=(1, 4), engram_heads=2, engram_dim=32, engram_start=100,
        engram_classes=300, draft_block=5, noise=509, taps=(7, 8, 9), markov_rank=32,
        draft_experts=8, draft_top=2,
    )  # fmt: skip


def stream(name: str, n: int) -> np.ndarray:
    """h_0 .. h_{n-1} of model.md 8.2."""
    state = 0xCBF29CE484222325
    for byte in name.encode():
        state = ((state ^ byte) * 0x100000001B3) & M64
    with np.errstate(over="ignore"):
        z = np.uint64(state) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


POWERS = {
    "head.weight": -10, "embed.weight": -9, "attn_sink": -7, "_fn": -13, "_base": -7,
    "gate.weight": -9, "gate.bias": -10, "gate.bias_vl": -10, "compressor.wkv.weight": -10,
    "compressor.wgate.weight": -10, "weights_proj.weight": -10, "indexer.wk.weight": -9,
    "markov_head.embed.weight": -9, "markov_head.head.weight": -8, "proj.weight": -10,
}  # fmt: skip


def tiny_tensor(name: str, like: torch.Tensor, width: int) -> torch.Tensor:
    """One tensor of the tiny checkpoint; width is the logical column count of its matrix."""
    h = stream(name, like.numel())
    byte = (h >> np.uint64(56)).astype(np.int64)
    if name.endswith(".scale"):
        if "engram.embed" in name:
            value = 120 + byte % 3
        else:
            divisor = 3 if ".experts." in name and "shared" not in name else 100
            value = 127 + round(math.log2(width**-0.5 / divisor)) - 1 + byte % 3
        raw = torch.from_numpy(value.astype(np.uint8))
        return raw.reshape(like.shape).view(torch.float8_e8m0fnu)
    if like.dtype == torch.float8_e4m3fn:
        byte = np.where((byte & 0x7F) == 0x7F, byte ^ 1, byte)
        return torch.from_numpy(byte.astype(np.uint8)).reshape(like.shape).view(like.dtype)
    if like.dtype == torch.int8:
        return torch.from_numpy(byte.astype(np.uint8)).reshape(like.shape).view(torch.int8)
    if "norm" in name or name.endswith(("q_weight", "k_weight")):
        value = 1 + ((h >> np.uint64(59)).astype(np.float64) - 16) / 128
    elif name.endswith("_scale"):
        value = (byte - 128) * 2.0**-9 + 0.5
    else:
        match = max((k for k in POWERS if name.endswith(k)), key=len)
        value = (byte - 128) * 2.0 ** POWERS[match]
    return torch.from_numpy(np.asarray(value, dtype=np.float32)).reshape(like.shape)


def build_tiny() -> tuple[Backbone, DraftHead, dict[str, torch.Tensor]]:
    """The tiny model in fp32 on the CPU, and its released tensors."""
    s = tiny_shape()
    net = Backbone(s, np.arange(512) % 300, "cpu", torch.float32)
    draft = DraftHead(net)
    like = released_tensors(net.top, net.layers, draft.top, draft.blocks)
    made = {}
    for name, t in like.items():
        width = t.shape[-1] * (32 if name.endswith(".scale") else 1)
        made[name] = tiny_tensor(name, t, width)
    load_params(made.__getitem__, made.__contains__, s, net.top, net.layers, draft.top,
                draft.blocks)  # fmt: skip
    return net, draft, made


def logits_of(net: Backbone, ids: list[int], mode: Mode) -> tuple[torch.Tensor, Trace]:
    """Logits of every position and the trace; the training form wants an even length."""
    with torch.no_grad():
        trace = net.forward(even(ids), mode)
        return head_logits(trace.x, trace.pre, net.top)[: len(ids)], trace


def even(ids: list[int]) -> torch.Tensor:
    """[1, T] with T even; what is added at the end changes nothing before it."""
    return torch.tensor([ids + [0] * (len(ids) % 2)])


def expect(what: str, got: object, want: object, tolerance: float = 2e-4) -> None:
    """Print one comparison; exit if it fails."""
    a, b = np.asarray(got, dtype=np.float64), np.asarray(want, dtype=np.float64)
    bad = float(np.abs(a - b).max())
    print(f"{what:44s} largest difference {bad:.2e}")
    if not bad <= tolerance:
        print("got ", np.round(a, 5).tolist(), "\nwant", b.tolist())
        sys.exit(1)


def check_export() -> None:
    """What is loaded from an export equals the rounding that training computes."""
    s = tiny_shape()
    net = Backbone(s, np.arange(512) % 300, "cpu", torch.float32)
    draft = DraftHead(net)
    p = net.layers[1]
    want = {
        "wq_b": weight_fp8(p["wq_b"]), "e_table": rows_fp8(p["e_table"]),
        "w1": torch.cat([weight_fp4(p["w1"][:-1]), weight_fp8(p["w1"][-1])[None]]),
        "gate": p["gate"].bfloat16().float(), "sink": p["sink"],
    }  # fmt: skip
    made = released_tensors(net.top, net.layers, draft.top, draft.blocks)
    load_params(made.__getitem__, made.__contains__, s, net.top, net.layers, draft.top,
                draft.blocks)  # fmt: skip
    for name, value in want.items():
        expect(f"exported {name}", net.layers[1][name], value, 0)


PROMPT = [443, 143, 348, 397, 231, 50, 420, 428, 372, 492, 256, 136, 153, 301, 244, 101, 354, 145,
          105, 59, 505, 180, 97, 148, 265, 341, 340, 379, 75, 214, 372, 338, 145, 126, 139, 350,
          59, 24, 141, 375]  # fmt: skip


def main() -> None:
    """Compare everything; print one line per comparison."""
    torch.set_num_threads(1)
    check_export()
    net, draft, made = build_tiny()
    expect("embed.weight", made["embed.weight"][0, :3], [0.0078125, 0.220703125, 0.1640625])
    z, trace = logits_of(net, PROMPT[:24], Mode(sparse=True))
    want = {
        0: [-0.60211, 0.40501, 0.68612, 2.98108, -2.90456, 1.20621, 1.03151, -1.73877],
        10: [1.503, -0.21084, -0.2657, 0.33105, 0.29378, -1.28732, 1.14573, -0.03727],
        23: [-2.48268, 0.39615, 1.14579, -0.72608, -1.03021, 0.74945, -1.41505, -0.68864],
    }
    for i, row in want.items():
        expect(f"golden logits[{i}]", z[i, :8], row)
    want_argmax = [61, 131, 313, 63, 119, 161, 489, 64, 216, 84, 84, 416, 470, 291, 260, 183, 453,
                   55, 382, 41, 69, 40, 269, 349]  # fmt: skip
    expect("golden argmax", z.argmax(-1), want_argmax, 0)
    expect("tap[23]", trace.taps[0][23, :4], [6.43113, -3.00306, -3.15624, 5.29251], 1e-3)
    _, trace = logits_of(net, PROMPT, Mode(sparse=True))
    chosen = {2: [0, 1, 8, 12, 13, 15], 4: [7, 8, 11, 12, 16, 19], 6: [4, 11, 12, 19, 23, 33],
              8: [12, 13, 14, 15, 33, 34]}  # fmt: skip
    for layer, entries in chosen.items():
        expect(f"choice of layer {layer} at 39",
               trace.choices[layer][0, 39].nonzero()[:, 0], entries, 0)  # fmt: skip
    ids = PROMPT[:24] + [349]
    # golden drafts along the continuation: p = 24, y = 255
    _, trace = logits_of(net, ids, Mode(sparse=True))
    d, c = draft.greedy(even(ids), trace.taps, torch.tensor([24]), Rounding(),
                        torch.tensor([255]))  # fmt: skip
    expect("golden drafts", d[0], [393, 388, 434, 388, 434], 0)
    expect("golden confidence", c[0], [3.03035, -1.22879, 0.47241, 2.5544, 4.94941], 1e-3)
    stored = Rounding(keys=True)
    path = Path(sys.argv[1]) / "tiny_kv_golden.json"
    for case in json.loads(path.read_text())["cases"]:
        z, trace = logits_of(net, case["ids"], Mode(stored, sparse=True))
        for i, row in case["logits_first8"].items():
            expect(f"kv {case['name']} logits[{i}]", z[int(i), :8], row)
        expect("kv argmax", z.argmax(-1), case["argmax"], 0)
        at = torch.tensor([len(case["ids"]) - 1])
        d, c = draft.greedy(even(case["ids"]), trace.taps, at, stored,
                            torch.tensor([case["next"]]))  # fmt: skip
        expect("kv drafts", d[0], case["drafts"], 0)
        expect("kv confidence", c[0], case["confidence"], 1e-3)
    print("all equal")


if __name__ == "__main__":
    main()
