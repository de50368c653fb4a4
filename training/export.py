"""Training parameters to and from the released tensor names and formats (model.md 2).

Called by train.py at every phase end, by golden.py (load) and by check_export.py. What must hold:
loading what was written gives the rounded training values back exactly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from model import Params
from quant import decode_fp4, decode_fp8, fp4_codes, fp8_codes, row_codes
from safetensors import safe_open
from safetensors.torch import save_file
from shape import Shape
from torch import Tensor

FP8 = {
    "wq_a": "attn.wq_a", "wq_b": "attn.wq_b", "wkv": "attn.wkv", "wo_a": "attn.wo_a",
    "wo_b": "attn.wo_b", "i_wq_b": "attn.indexer.wq_b", "e_wkv": "engram.wkv",
}  # fmt: skip
BF16 = {
    "attn_norm": "attn_norm.weight", "ffn_norm": "ffn_norm.weight",
    "q_norm": "attn.q_norm.weight", "kv_norm": "attn.kv_norm.weight", "gate": "ffn.gate.weight",
    "c_wkv": "attn.compressor.wkv.weight", "c_wgate": "attn.compressor.wgate.weight",
    "c_norm": "attn.compressor.norm.weight", "i_wk": "attn.indexer.wk.weight",
    "i_norm": "attn.indexer.k_norm.weight", "i_proj": "attn.indexer.weights_proj.weight",
    "e_q": "engram.q_weight", "e_k": "engram.k_weight",
}  # fmt: skip
FP32 = {
    "sink": "attn.attn_sink", "hc_attn_fn": "hc_attn_fn", "hc_attn_base": "hc_attn_base",
    "hc_attn_scale": "hc_attn_scale", "hc_ffn_fn": "hc_ffn_fn", "hc_ffn_base": "hc_ffn_base",
    "hc_ffn_scale": "hc_ffn_scale",
}  # fmt: skip
GLOBAL = {"embed": "embed.weight", "head": "head.weight", "norm": "norm.weight"}
DRAFT = {
    "main_norm": "mtp.0.main_norm.weight", "norm": "mtp.2.norm.weight",
    "m_embed": "mtp.2.markov_head.embed.weight", "m_head": "mtp.2.markov_head.head.weight",
    "conf": "mtp.2.confidence_head.proj.weight",
}  # fmt: skip
Pair = tuple[str, Tensor]


def _fp8(name: str, w: Tensor) -> Iterator[Pair]:
    codes, scale = fp8_codes(w)
    yield f"{name}.weight", codes
    yield f"{name}.scale", scale.view(torch.float8_e8m0fnu)


def _block(prefix: str, p: Params) -> Iterator[Pair]:
    for key, name in FP32.items():
        value = p[key]
        if key.endswith("_fn"):  # training multiplied by the bf16 rounding of this matrix
            value = value.to(torch.bfloat16)
        yield f"{prefix}.{name}", value.float()
    for key, name in BF16.items():
        if key in p:
            yield f"{prefix}.{name}", p[key].to(torch.bfloat16)
    for key, name in FP8.items():
        if key in p:
            w = p[key].flatten(0, 1) if key == "wo_a" else p[key]
            yield from _fp8(f"{prefix}.{name}", w)
    bias = p["gate_bias"] - p["gate_bias"].mean()
    yield f"{prefix}.ffn.gate.bias", bias
    yield f"{prefix}.ffn.gate.bias_vl", bias.clone()
    for key in ("w1", "w2", "w3"):
        for e, w in enumerate(p[key][:-1]):
            codes, scale = fp4_codes(w)
            yield f"{prefix}.ffn.experts.{e}.{key}.weight", codes
            yield f"{prefix}.ffn.experts.{e}.{key}.scale", scale.view(torch.float8_e8m0fnu)
        yield from _fp8(f"{prefix}.ffn.shared_experts.{key}", p[key][-1])
    if "e_table" in p:
        codes, scale = row_codes(p["e_table"])
        yield f"{prefix}.engram.embed.weight", codes
        yield f"{prefix}.engram.embed.scale", scale.view(torch.float8_e8m0fnu)


def released_tensors(
    top: Params, layers: list[Params], draft_top: Params | None, draft: list[Params]
) -> dict[str, Tensor]:
    """All tensors of the checkpoint by released name, on the CPU."""
    out: dict[str, Tensor] = {}
    for key, name in GLOBAL.items():
        out[name] = top[key].to(torch.bfloat16)
    for i, p in enumerate(layers):
        out.update(_block(f"layers.{i}", p))
    for i, p in enumerate(draft):
        out.update(_block(f"mtp.{i}", p))
    if draft_top is not None:
        out.update(_fp8("mtp.0.main_proj", draft_top["main_proj"]))
        for key, name in DRAFT.items():
            out[name] = draft_top[key].to(torch.bfloat16)
    return {k: v.detach().cpu().contiguous() for k, v in out.items()}


def save_checkpoint(tensors: dict[str, Tensor], out: Path, limit: int = 14_500_000) -> list[str]:
    """Write shards of at most `limit` bytes and the index; returns the shard file names."""
    shards: list[dict[str, Tensor]] = [{}]
    used = 0
    for name, t in tensors.items():
        size = t.numel() * t.element_size()
        if used + size > limit:
            shards.append({})
            used = 0
        shards[-1][name] = t
        used += size
    out.mkdir(parents=True, exist_ok=True)
    where, files = {}, []
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, out / name, metadata={"format": "pt"})
        files.append(name)
        where |= dict.fromkeys(shard, name)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    return files


Get = Callable[[str], Tensor]


def _load_fp8(get: Get, name: str, rows: int = 32) -> Tensor:
    return decode_fp8(get(f"{name}.weight"), get(f"{name}.scale"), tile_rows=rows)


def _load_block(get: Get, has: Callable[[str], bool], prefix: str, p: Params, s: Shape) -> None:
    for names in (FP32, BF16):
        for key, name in names.items():
            if key in p:
                p[key] = get(f"{prefix}.{name}").float()
    for key, name in FP8.items():
        if key in p:
            p[key] = _load_fp8(get, f"{prefix}.{name}").reshape(p[key].shape)
    p["gate_bias"] = get(f"{prefix}.ffn.gate.bias").float()
    for key in ("w1", "w2", "w3"):
        root = f"{prefix}.ffn.experts"
        each = [
            decode_fp4(get(f"{root}.{e}.{key}.weight"), get(f"{root}.{e}.{key}.scale"))
            for e in range(p[key].shape[0] - 1)
        ]
        each.append(_load_fp8(get, f"{prefix}.ffn.shared_experts.{key}"))
        p[key] = torch.stack(each)
    if "e_table" in p:
        p["e_table"] = _load_fp8(get, f"{prefix}.engram.embed", 1)


def load_params(
    get: Get, has: Callable[[str], bool], s: Shape, top: Params, layers: list[Params],
    draft_top: Params | None, draft: list[Params],
) -> None:  # fmt: skip
    """Fill parameter dicts in place with dequantised values of released tensors."""
    for key, name in GLOBAL.items():
        top[key] = get(name).float()
    for i, p in enumerate(layers):
        _load_block(get, has, f"layers.{i}", p, s)
    for i, p in enumerate(draft):
        _load_block(get, has, f"mtp.{i}", p, s)
    if draft_top is not None:
        draft_top["main_proj"] = _load_fp8(get, "mtp.0.main_proj")
        for key, name in DRAFT.items():
            draft_top[key] = get(name).float()


def open_checkpoint(folder: Path) -> tuple[Get, Callable[[str], bool]]:
    """Reader functions over a checkpoint folder."""
    where = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    files = {f: safe_open(folder / f, "pt") for f in set(where.values())}
    return (lambda name: files[where[name]].get_tensor(name)), where.__contains__
