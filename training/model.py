"""The model of model.md 3 in its training form: flat tokens, dense experts, one attention call.

Called by train.py, draft.py and evaluate.py. Every piece works on flat tokens [N, ...]; only
`attend` and the choice of entries know batch and length. Parameters are fp32 masters in plain
dicts; products run in the dtype of the stream. What must hold: with fp32 streams and hard choice
the logits equal the golden numbers of model.md 8.3 and tiny_kv_golden.json (golden.py checks it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from kernels import index_scores, sinkhorn
from quant import (
    EXACT,
    Rounding,
    entry_fp4,
    index_fp4,
    inputs_fp8,
    rows_fp8,
    weight_fp4,
    weight_fp8,
)
from shape import Shape
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

Params = dict[str, Tensor]
NORM_EPS = 1e-20
HC_EPS = 1e-6


# ---------------------------------------------------------------- small pieces


def rms(x: Tensor, weight: Tensor) -> Tensor:
    """3.0: fp32 inside, one rounding at the end."""
    v = x.float()
    return (weight * (v * torch.rsqrt(v.square().mean(-1, keepdim=True) + NORM_EPS))).to(x.dtype)


def product(x: Tensor, w: Tensor) -> Tensor:
    """x · Wᵀ in the dtype of x."""
    return x @ w.to(x.dtype).T


def product8(x: Tensor, w: Tensor, q: Rounding) -> Tensor:
    """The spec's Linear8: an fp8 matrix with a rounded input."""
    return product(inputs_fp8(x) if q.inputs else x, weight_fp8(w) if q.weights else w)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """3.4: adjacent pairs of the last 2·cos.shape[-1] dimensions; cos and sin broadcast."""
    width = 2 * cos.shape[-1]
    a, b = x[..., -width:].float().unflatten(-1, (-1, 2)).unbind(-1)
    tail = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([x[..., :-width], tail.to(x.dtype)], -1)


def mixes(x: Tensor, fn: Tensor, base: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """3.3: pre [N, 4], post [N, 4] and comb [N, 4, 4] in fp32 from the stream x [N, 4, D]."""
    c = x.shape[1]
    v = x.flatten(1)
    r = torch.rsqrt(v.float().square().mean(-1, keepdim=True) + NORM_EPS)
    m = product(v, fn).float() * r
    pre = torch.sigmoid(m[:, :c] * scale[0] + base[:c]) + HC_EPS
    post = 2 * torch.sigmoid(m[:, c : 2 * c] * scale[1] + base[c : 2 * c])
    comb = sinkhorn((m[:, 2 * c :] * scale[2] + base[2 * c :]).unflatten(1, (c, c)))
    return pre, post, comb


def collapse(x: Tensor, pre: Tensor) -> Tensor:
    """The weighted sum of the copies, [N, D]."""
    total = pre[:, 0, None] * x[:, 0].float()
    for c in range(1, x.shape[1]):
        total = total + pre[:, c, None] * x[:, c].float()
    return total.to(x.dtype)


def write_back(x: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """3.3: copy j becomes post[j]·y + sum over i of comb[i, j]·x[i]."""
    out = post[:, :, None] * y.float()[:, None]
    for i in range(x.shape[1]):
        out = out + comb[:, i, :, None] * x[:, i, None].float()
    return out.to(x.dtype)


class Routing(NamedTuple):
    """How a router chooses (3.9)."""

    top: int
    scale: float
    limit: float


def experts(x: Tensor, p: Params, route: Routing, q: Rounding) -> tuple[Tensor, Tensor]:
    """3.9 as one dense SwiGLU over all experts and the shared one; also tokens per expert."""
    z = x.float() @ p["gate"].to(x.dtype).float().T
    s = torch.sqrt(F.softplus(z))
    left = s.detach() + p["gate_bias"]
    chosen = torch.zeros_like(left, dtype=torch.bool)
    for _ in range(route.top):
        best = left >= left.amax(-1, keepdim=True)
        chosen = chosen | best
        left = left.masked_fill(best, float("-inf"))
    w = s * chosen
    w = w / (w.sum(-1, keepdim=True) + 1e-20) * route.scale
    w = torch.cat([w, torch.ones_like(w[:, :1])], -1)
    w1, w3, w2 = p["w1"], p["w3"], p["w2"]
    if q.weights:
        w1, w3, w2 = (
            torch.cat([weight_fp4(t[:-1]), weight_fp8(t[-1])[None]]) for t in (w1, w3, w2)
        )
    xin = inputs_fp8(x) if q.inputs else x
    gate = product(xin, w1.flatten(0, 1)).float().clamp(max=route.limit)
    up = product(xin, w3.flatten(0, 1)).float().clamp(-route.limit, route.limit)
    h = (F.silu(gate) * up).unflatten(1, (w.shape[1], -1)) * w[:, :, None]
    h = h.flatten(1).to(x.dtype)
    if q.inputs:
        h = inputs_fp8(h)
    y = h @ w2.permute(0, 2, 1).flatten(0, 1).to(x.dtype)
    return y, chosen.float().sum(0)


# ---------------------------------------------------------------- compiled pieces


class AttnIn(NamedTuple):
    """What the first half of a block computes before attention; all flat."""

    x: Tensor
    qr: Tensor
    query: Tensor
    key: Tensor
    pre: Tensor
    post: Tensor
    comb: Tensor


def attention_in(
    x: Tensor, pre: Tensor, p: Params, cos: Tensor, sin: Tensor, q: Rounding
) -> AttnIn:
    """3.3 up to attention and 3.5: queries [N, H, D] and window keys [N, D], rotated."""
    a_pre, post, comb = mixes(x, p["hc_attn_fn"], p["hc_attn_base"], p["hc_attn_scale"])
    y = rms(collapse(x, pre), p["attn_norm"])
    qr = rms(product8(y, p["wq_a"], q), p["q_norm"])
    heads = p["sink"].shape[0]
    query = product8(qr, p["wq_b"], q).unflatten(1, (heads, -1))
    query = rotate(query, cos[:, None], sin[:, None])
    key = window_key(y, p, cos, sin, q)
    return AttnIn(y, qr, query, key, a_pre, post, comb)


def window_key(y: Tensor, p: Params, cos: Tensor, sin: Tensor, q: Rounding) -> Tensor:
    """The window key of 3.5 from the layer's input y [N, hidden]."""
    key = rotate(rms(product8(y, p["wkv"], q), p["kv_norm"]), cos, sin)
    return inputs_fp8(key) if q.keys else key


def compress(
    y: Tensor, p: Params, cos: Tensor, sin: Tensor, ratio: int, q: Rounding
) -> tuple[Tensor, Tensor]:
    """3.8: latent and main entry [N/ratio, D]; cos and sin belong to the entries."""
    a = product(y, p["c_wkv"])
    if ratio == 2:
        weight = torch.softmax(product(y, p["c_wgate"]).float().unflatten(0, (-1, 2)), 1)
        a = (a.float().unflatten(0, (-1, 2)) * weight).sum(1).to(y.dtype)
    latent = rms(a, p["c_norm"])
    entry = rotate(latent, cos, sin)
    return latent, entry_fp4(entry) if q.keys else entry


def index_keys(latent: Tensor, p: Params, cos: Tensor, sin: Tensor, q: Rounding) -> Tensor:
    """Index keys [..., index_dim] from latents."""
    key = rotate(rms(product(latent, p["i_wk"]), p["i_norm"]), cos, sin)
    return index_fp4(key) if q.keys else key


def index_queries(
    y: Tensor, qr: Tensor, p: Params, cos: Tensor, sin: Tensor, q: Rounding
) -> tuple[Tensor, Tensor]:
    """Index queries [..., H, D] and head weights [..., H] (3.8)."""
    heads = p["i_proj"].shape[0]
    query = product8(qr, p["i_wq_b"], q).unflatten(-1, (heads, -1))
    query = rotate(query, cos[..., None, :], sin[..., None, :])
    if q.inputs:
        query = index_fp4(query)
    scale = (heads * query.shape[-1]) ** -0.5
    return query, product(y, p["i_proj"]).float() * scale


def attend(
    query: Tensor, key: Tensor, sink: Tensor, mask: BlockMask, chosen: Tensor | None, t: int
) -> tuple[Tensor, Tensor]:
    """3.6 by FlexAttention. query [N, H, D], key [B, T+E, D]; out [N, H, D], lse [B, H, T].

    chosen [B, T, E] (bool as uint8) keeps only chosen entries; None keeps every visible one.
    """
    b = key.shape[0]
    qs = query.unflatten(0, (b, t)).transpose(1, 2)
    ks = key[:, None]

    def pick(score: Tensor, bi: Tensor, h: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
        entry = torch.clamp(ki - t, min=0)
        keep = (ki < t) | (chosen[bi, qi, entry] != 0)
        return torch.where(keep, score, -float("inf"))

    out, lse = flex_attention(
        qs, ks, ks,
        score_mod=None if chosen is None else pick,
        block_mask=mask, enable_gqa=True, return_lse=True,
    )  # fmt: skip
    out = out * torch.sigmoid(lse - sink[None, :, None])[..., None].to(out.dtype)
    return out.transpose(1, 2).flatten(0, 1), lse


def attend_plain(
    query: Tensor, key: Tensor, sink: Tensor, mask: Tensor, chosen: Tensor | None, t: int
) -> tuple[Tensor, Tensor]:
    """The plain twin of attend; mask is bool [B or 1, T, T+E]."""
    b = key.shape[0]
    qs = query.unflatten(0, (b, t)).float()
    score = torch.einsum("bthd,bkd->bhtk", qs, key.float()) * query.shape[-1] ** -0.5
    if chosen is not None:
        keep = torch.cat([torch.ones_like(chosen[..., :1]).expand(-1, -1, t), chosen], -1) != 0
        mask = mask & keep
    score = score.masked_fill(~mask[:, None], float("-inf"))
    lse = torch.logsumexp(score, -1)
    out = torch.einsum("bhtk,bkd->bthd", torch.exp(score - lse[..., None]), key.float())
    out = out * torch.sigmoid(lse - sink[:, None]).transpose(1, 2)[..., None]
    return out.flatten(0, 1).to(query.dtype), lse


def block_out(
    o: Tensor, x: Tensor, a: AttnIn, p: Params, cos: Tensor, sin: Tensor, route: Routing,
    q: Rounding,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The rest of a block: inverse rotation, 3.7, write-back and the experts' half (3.3)."""
    o = rotate(o, cos[:, None], -sin[:, None]).flatten(1)
    wo_a = p["wo_a"]
    groups = wo_a.shape[0]
    if q.weights:
        wo_a = weight_fp8(wo_a.flatten(0, 1)).unflatten(0, (groups, -1))
    z = [product(part, wo_a[g]) for g, part in enumerate(o.chunk(groups, 1))]
    y = product8(torch.cat(z, 1), p["wo_b"], q)
    x = write_back(x, y, a.post, a.comb)
    f_pre, post, comb = mixes(x, p["hc_ffn_fn"], p["hc_ffn_base"], p["hc_ffn_scale"])
    y, load = experts(rms(collapse(x, a.pre), p["ffn_norm"]), p, route, q)
    return write_back(x, y, post, comb), f_pre, load


def engram(x: Tensor, rows: Tensor, p: Params, q: Rounding) -> Tensor:
    """3.10e: x [N, 4, D], rows [N, columns] into the table."""
    c, d = x.shape[1], x.shape[2]
    e = F.embedding(rows, p["e_table"])
    e = (rows_fp8(e) if q.weights else e).flatten(1).to(x.dtype)
    kv = product8(e, p["e_wkv"], q)
    value = kv[:, c * d :].float()
    out = []
    for i in range(c):
        xi, key = x[:, i].float(), kv[:, i * d : (i + 1) * d].float()
        dot = (xi * (p["e_q"][i] * p["e_k"][i]) * key).sum(-1, keepdim=True)
        dot = dot * torch.rsqrt(xi.square().mean(-1, keepdim=True) + NORM_EPS)
        dot = dot * torch.rsqrt(key.square().mean(-1, keepdim=True) + NORM_EPS) * d**-0.5
        root = torch.sqrt(dot.abs().clamp_min(1e-6))
        out.append(xi + torch.sigmoid(torch.where(dot < 0, -root, root)) * value)
    return torch.stack(out, 1).to(x.dtype)


def embed(tokens: Tensor, table: Tensor, dtype: torch.dtype, copies: int) -> Tensor:
    """3.1: the stream [N, copies, D] of equal copies."""
    e = F.embedding(tokens, table).to(dtype)
    return e[:, None].expand(-1, copies, -1).contiguous()


def token_loss(
    x: Tensor, pre: Tensor, p: Params, target: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Weighted mean loss, per-token loss [N] (detached) and hits [N] of the argmax."""
    z = head_logits(x, pre, p).float()
    top = z.amax(-1)
    lse = torch.logsumexp(z, -1)
    at = z.gather(1, target[:, None])[:, 0]
    each = lse - at
    loss = (each * weight).sum() / weight.sum().clamp_min(1e-6)
    return loss, each.detach(), (at >= top).detach()


def head_logits(x: Tensor, pre: Tensor, p: Params) -> Tensor:
    """3.2: logits [N, V] in the dtype of the stream."""
    return product(rms(collapse(x, pre), p["norm"]), p["head"])


# ---------------------------------------------------------------- parameters


def _normal(gen: torch.Generator, *size: int, std: float) -> Tensor:
    return torch.randn(*size, generator=gen) * std


def block_params(s: Shape, half: int, n_experts: int, gen: torch.Generator) -> Params:
    """One block at the prototype's initial scales; half is the number of its attention half."""
    d, h, hd, c = s.hidden, s.heads, s.head_dim, s.copies
    p: Params = {
        "attn_norm": torch.ones(d), "ffn_norm": torch.ones(d),
        "q_norm": torch.ones(s.q_lora), "kv_norm": torch.ones(hd), "sink": torch.zeros(h),
        "wq_a": _normal(gen, s.q_lora, d, std=d**-0.5),
        "wq_b": _normal(gen, h * hd, s.q_lora, std=s.q_lora**-0.5),
        "wkv": _normal(gen, hd, d, std=d**-0.5),
        "wo_a": _normal(gen, s.o_groups, s.o_lora, h * hd // s.o_groups,
                        std=(h * hd // s.o_groups) ** -0.5),
        "wo_b": _normal(gen, d, s.o_groups * s.o_lora, std=0.3 * (s.o_groups * s.o_lora) ** -0.5),
        "gate": _normal(gen, n_experts, d, std=d**-0.5), "gate_bias": torch.zeros(n_experts),
        "w1": _normal(gen, n_experts + 1, s.inter, d, std=d**-0.5),
        "w3": _normal(gen, n_experts + 1, s.inter, d, std=d**-0.5),
        "w2": _normal(gen, n_experts + 1, d, s.inter, std=0.3 * s.inter**-0.5),
    }  # fmt: skip
    for i, name in enumerate(("attn", "ffn")):
        pre, post = torch.full((c,), -2.0), torch.full((c,), -0.5)
        pre[(half + i + 1) % c], post[(half + i) % c] = 2.0, 0.5
        p[f"hc_{name}_fn"] = _normal(gen, (2 + c) * c, c * d, std=0.02)
        p[f"hc_{name}_base"] = torch.cat([pre, post, 5 * torch.eye(c).flatten()])
        p[f"hc_{name}_scale"] = torch.full((3,), 0.1)
    return p


def source_params(s: Shape, layer: int, gen: torch.Generator) -> Params:
    """Compressor and indexer of a source layer, the Engram step of an Engram layer."""
    d, hd, p = s.hidden, s.head_dim, {}
    if layer in s.kv_sources:
        p["c_wkv"] = _normal(gen, hd, d, std=d**-0.5)
        p["c_norm"] = torch.ones(hd)
        if s.ratios[layer] == 2:
            p["c_wgate"] = _normal(gen, hd, d, std=d**-0.5)
        p["i_wk"] = _normal(gen, s.index_dim, hd, std=hd**-0.5)
        p["i_norm"] = torch.ones(s.index_dim)
    if layer in s.index_sources:
        p["i_wq_b"] = _normal(gen, s.index_heads * s.index_dim, s.q_lora, std=s.q_lora**-0.5)
        p["i_proj"] = _normal(gen, s.index_heads, d, std=d**-0.5)
    if layer in s.engram_layers:
        columns = (s.engram_ngram - 1) * s.engram_heads
        rows = int(s.primes()[layer].sum())
        wide = columns * s.engram_dim
        p["e_table"] = _normal(gen, rows, s.engram_dim, std=0.1)
        p["e_wkv"] = _normal(gen, (s.copies + 1) * d, wide, std=wide**-0.5)
        p["e_q"], p["e_k"] = torch.ones(s.copies, d), torch.ones(s.copies, d)
    return p


def new_params(s: Shape, seed: int = 0) -> tuple[Params, list[Params]]:
    """(global, per layer) parameters of the backbone, fp32 on the CPU."""
    gen = torch.Generator().manual_seed(seed)
    top = {
        "embed": _normal(gen, s.vocab, s.hidden, std=0.1),
        "head": _normal(gen, s.vocab, s.hidden, std=0.02),
        "norm": torch.ones(s.hidden),
    }
    layers = [
        block_params(s, 2 * i, s.experts, gen) | source_params(s, i, gen) for i in range(s.layers)
    ]
    return top, layers


# ---------------------------------------------------------------- the whole backbone

# The parameters of each piece: with equal keys for every layer a piece compiles only once.
HC_ATTN = ("hc_attn_fn", "hc_attn_base", "hc_attn_scale")
IN_NAMES = (*HC_ATTN, "attn_norm", "wq_a", "q_norm", "wq_b", "wkv", "kv_norm", "sink")
OUT_NAMES = ("wo_a", "wo_b", "hc_ffn_fn", "hc_ffn_base", "hc_ffn_scale", "ffn_norm", "gate",
             "gate_bias", "w1", "w3", "w2")  # fmt: skip
MEMORY_NAMES = ("c_wkv", "c_wgate", "c_norm")
KEY_NAMES = ("i_wk", "i_norm")
QUERY_NAMES = ("i_wq_b", "i_proj")
ENGRAM_NAMES = ("e_table", "e_wkv", "e_q", "e_k")
HEAD_NAMES = ("norm", "head")


def part(p: Params, names: tuple[str, ...]) -> Params:
    """The named parameters that exist."""
    return {n: p[n] for n in names if n in p}


class Mode(NamedTuple):
    """How a forward pass runs."""

    rounding: Rounding = EXACT
    sparse: bool = False  # hard top-k choice and candidate blocks
    memory: bool = True  # False hides every compressed entry (the ablation)
    hidden_rows: int = 0  # the first rows of the batch see no compressed entry


@dataclass(slots=True)
class Trace:
    """What a forward pass leaves for others; lists are per layer."""

    x: Tensor
    pre: Tensor
    loads: list[Tensor] = field(default_factory=list)
    taps: list[Tensor] = field(default_factory=list)
    kl: list[Tensor] = field(default_factory=list)
    mass: list[Tensor] = field(default_factory=list)
    choices: dict[int, Tensor] = field(default_factory=dict)


class Backbone:
    """Parameters, tables and the loop over layers (3.2)."""

    def __init__(
        self, s: Shape, token_map: np.ndarray, device: str, dtype: torch.dtype,
        *, fast: bool | None = None,
    ) -> None:  # fmt: skip
        self.s, self.device, self.dtype = s, device, dtype
        self.fast = fast = device == "cuda" if fast is None else fast
        top, layers = new_params(s)
        self.top = {k: v.to(device) for k, v in top.items()}
        self.layers = [{k: v.to(device) for k, v in p.items()} for p in layers]
        self.route = Routing(s.top, s.route_scale, s.limit)
        self.token_map = torch.as_tensor(token_map.astype(np.int64), device=device)
        self.primes = {k: torch.as_tensor(v, device=device) for k, v in s.primes().items()}
        self._tables: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}
        self._masks: dict[tuple[int, int, int, int], BlockMask | Tensor] = {}
        wrap: Callable = (lambda f: torch.compile(f, dynamic=False)) if fast else (lambda f: f)
        self.attention_in, self.compress = wrap(attention_in), wrap(compress)
        self.attend = wrap(attend) if fast else attend_plain
        self.block_out, self.engram = wrap(block_out), wrap(engram)
        self.embed, self.token_loss = wrap(embed), wrap(token_loss)
        self.index_keys, self.index_queries = wrap(index_keys), wrap(index_queries)

    def table(self, b: int, t: int, ratio: int, *, step: int = 1) -> tuple[Tensor, Tensor]:
        """cos and sin [B·T/step, rope/2]: plain for ratio 0, YaRN otherwise; positions j·step."""
        key = (b * t, t, (ratio > 0) * 10 + step)
        if key not in self._tables:
            f = torch.as_tensor(self.s.frequencies(ratio > 0), device=self.device)
            pos = torch.arange(0, t - step + 1, step, device=self.device, dtype=torch.float32)
            angle = (pos[:, None] * f).repeat(b, 1)
            self._tables[key] = angle.cos(), angle.sin()
        return self._tables[key]

    def mask(self, b: int, t: int, ratio: int, hidden_rows: int) -> BlockMask | Tensor:
        """Window rule for the first T keys, `entry < floor((q+1)/ratio)` for the rest."""
        key = (b, t, ratio, hidden_rows)
        if key not in self._masks:
            window = self.s.window

            def rule(bi: Tensor, h: Tensor, qi: Tensor, ki: Tensor) -> Tensor:
                near = (ki <= qi) & (ki > qi - window) & (ki < t)
                if ratio == 0:
                    return near
                seen = (ki >= t) & (ki - t < (qi + 1) // ratio) & (bi >= hidden_rows)
                return near | seen

            keys = t + (t // ratio if ratio else 0)
            if self.fast:
                made = create_block_mask(rule, b, None, t, keys, device="cuda")
            else:
                i = [torch.arange(n, device=self.device) for n in (b, t, keys)]
                made = rule(i[0][:, None, None], i[0], i[1][:, None], i[2])
                made = made.expand(b, t, keys)
            self._masks[key] = made
        return self._masks[key]

    def engram_rows(self, tokens: Tensor, layer: int) -> Tensor:
        """3.10d: row numbers [B·T, columns] of tokens [B, T]."""
        s, ids = self.s, self.token_map[tokens]
        mult = [int(m) for m in s.multipliers(layer)]
        primes = self.primes[layer]
        offset = torch.cumsum(primes, 0) - primes
        mixed, rows = ids * mult[0], []
        for k in range(1, s.engram_ngram):
            past = F.pad(ids, (k, 0), value=s.engram_pad)[:, : ids.shape[1]]
            mixed = torch.bitwise_xor(mixed, past * mult[k])
            cut = slice((k - 1) * s.engram_heads, k * s.engram_heads)
            rows.append(mixed[..., None] % primes[cut] + offset[cut])
        return torch.cat(rows, -1).flatten(0, 1)

    def forward(self, tokens: Tensor, mode: Mode, *, kl_at: Tensor | None = None) -> Trace:
        """Run all layers on tokens [B, T]; kl_at: positions where the indexer is compared."""
        s, (b, t) = self.s, tokens.shape
        x = self.embed(tokens.flatten(), self.top["embed"], self.dtype, s.copies)
        pre = torch.zeros(b * t, s.copies, device=self.device)
        pre[:, 0] = 1
        pre.requires_grad_(torch.is_grad_enabled())  # as in later layers: one compiled form
        trace = Trace(x, pre)
        memory = Memory(self, b, t, mode, kl_at, trace)
        for layer, p in enumerate(self.layers):
            if layer in s.engram_layers:
                x = self.engram(
                    x, self.engram_rows(tokens, layer), part(p, ENGRAM_NAMES), mode.rounding
                )
            if layer in s.taps:
                trace.taps.append(x.float().mean(1).to(x.dtype))
            ratio = s.ratios[layer]
            cos, sin = self.table(b, t, ratio)
            a = self.attention_in(x, pre, part(p, IN_NAMES), cos, sin, mode.rounding)
            keys, chosen = memory.keys(layer, p, a)
            reach = ratio if mode.memory else 0
            mask = self.mask(b, t, reach, mode.hidden_rows)
            o, lse = self.attend(a.query, keys, p["sink"], mask, chosen, t)
            memory.compare(layer, a, lse)
            x, pre, load = self.block_out(
                o, x, a, part(p, OUT_NAMES), cos, sin, self.route, mode.rounding
            )
            trace.loads.append(load)
        memory.close()
        trace.x, trace.pre = x, pre
        return trace


class Memory:
    """The compressed memory of one forward pass: entries, choices, the indexer's lesson (3.8)."""

    def __init__(
        self, net: Backbone, b: int, t: int, mode: Mode, kl_at: Tensor | None, trace: Trace
    ) -> None:
        self.net, self.b, self.t, self.mode, self.trace = net, b, t, mode, trace
        self.kl_at = kl_at
        self.latent: Tensor | None = None
        self.entry: Tensor | None = None
        self.index: Tensor | None = None
        self.chosen: Tensor | None = None
        self.candidates: Tensor | None = None
        self.student: Tensor | None = None
        self.teacher: Tensor | None = None

    def keys(self, layer: int, p: Params, a: AttnIn) -> tuple[Tensor, Tensor | None]:
        """Keys [B, T+E, D] of a layer and its choice [B, T, E] (None: everything visible)."""
        net, s = self.net, self.net.s
        key = a.key.unflatten(0, (self.b, self.t))
        ratio = s.ratios[layer]
        if ratio == 0 or not self.mode.memory:
            return key, None
        if layer in s.kv_sources:
            cos, sin = net.table(self.b, self.t, 1, step=ratio)
            latent, entry = net.compress(
                a.x, part(p, MEMORY_NAMES), cos, sin, ratio, self.mode.rounding
            )
            self.entry = entry.unflatten(0, (self.b, -1))
            self.latent, self.source, self.ratio = latent.detach(), p, ratio
            self.e_cos, self.e_sin = cos, sin
            if self.mode.sparse:
                with torch.no_grad():
                    index = net.index_keys(
                        self.latent, part(p, KEY_NAMES), cos, sin, self.mode.rounding
                    )
                self.index = index.unflatten(0, (self.b, -1))
        if layer in s.index_sources:
            self._finish_lesson()
            if self.mode.sparse:
                self.chosen = self._choose(layer, p, a)
            if self.kl_at is not None:
                self._student(p, a)
        return torch.cat([key, self.entry], 1), self.chosen

    @torch.no_grad()
    def _choose(self, layer: int, p: Params, a: AttnIn) -> Tensor:
        net, s = self.net, self.net.s
        cos, sin = net.table(self.b, self.t, 1)
        q, w = net.index_queries(a.x, a.qr, part(p, QUERY_NAMES), cos, sin, self.mode.rounding)
        shape = (self.b, self.t)
        score = index_scores(q.unflatten(0, shape), self.index, w.unflatten(0, shape), self.ratio)
        if layer == s.candidate_source:
            self.candidates = candidate_entries(score, self.ratio, s)
        elif layer > s.candidate_source and self.candidates is not None:
            score = score.masked_fill_(~self.candidates, float("-inf"))
        k = min(s.index_topk, score.shape[-1])
        best = score.topk(k, dim=-1, sorted=False)
        chosen = torch.zeros(score.shape, dtype=torch.uint8, device=score.device)
        chosen.scatter_(-1, best.indices, (best.values > float("-inf")).to(torch.uint8))
        self.trace.choices[layer] = chosen
        return chosen

    def _student(self, p: Params, a: AttnIn) -> None:
        """Log-probabilities [B, S, E] of the indexer at the compared positions, with gradient."""
        at, q = self.kl_at, self.mode.rounding
        cos, sin = self.net.table(1, self.t, 1)
        y = a.x.detach().unflatten(0, (self.b, self.t))[:, at]
        qr = a.qr.detach().unflatten(0, (self.b, self.t))[:, at]
        query, w = index_queries(y, qr, p, cos[at], sin[at], q)
        index = index_keys(self.latent, self.source, self.e_cos, self.e_sin, q)
        index = index.unflatten(0, (self.b, -1))
        dots = torch.einsum("bshd,bed->bshe", query, index).relu()
        score = torch.einsum("bshe,bsh->bse", dots.float(), w)
        entry = torch.arange(index.shape[1], device=at.device)
        self.seen = entry < ((at + 1) // self.ratio)[:, None]
        self.score = score.masked_fill(~self.seen, -1e30)
        self.student = torch.log_softmax(self.score, -1)
        self.teacher = torch.zeros_like(self.student)

    def compare(self, layer: int, a: AttnIn, lse: Tensor) -> None:
        """Add a layer's head-summed attention weight on the entries to the teacher."""
        if self.kl_at is None or self.student is None or self.net.s.ratios[layer] == 0:
            return
        with torch.no_grad():
            q = a.query.unflatten(0, (self.b, self.t))[:, self.kl_at]
            score = torch.einsum("bshd,bed->bshe", q, self.entry).float() * q.shape[-1] ** -0.5
            score = score.masked_fill(~self.seen[:, None], -1e30)
            total = lse[:, :, self.kl_at].transpose(1, 2)
            total = torch.logaddexp(total, self.net.layers[layer]["sink"])
            if self.mode.sparse:  # the sparse sum misses what was not chosen: add it
                total = torch.logaddexp(total, torch.logsumexp(score, -1))
            self.teacher += torch.exp(score - total[..., None]).sum(2)

    def _finish_lesson(self) -> None:
        if self.student is None:
            return
        shown = slice(self.mode.hidden_rows, None)
        weight = self.teacher.sum(-1, keepdim=True)
        teacher = (self.teacher / weight.clamp_min(1e-12))[shown]
        log = torch.log(teacher.clamp_min(1e-12))
        self.trace.kl.append((teacher * (log - self.student[shown])).sum(-1).mean())
        with torch.no_grad():
            k = min(self.net.s.index_topk, teacher.shape[-1])
            mine = teacher.gather(-1, self.score[shown].topk(k, dim=-1).indices).sum(-1)
            best = teacher.topk(k, dim=-1).values.sum(-1)
            self.trace.mass.append(torch.stack([mine.mean(), best.mean()]))
        self.student = None

    def close(self) -> None:
        """The last index source has no successor that would finish its lesson."""
        self._finish_lesson()


def candidate_entries(score: Tensor, ratio: int, s: Shape) -> Tensor:
    """3.8: bool [B, T, E], the entries of the best blocks; the newest block is always in."""
    b, t, e = score.shape
    size = s.candidate_size
    blocks = F.pad(score, (0, -e % size), value=float("-inf")).unflatten(-1, (-1, size)).amax(-1)
    newest = ((torch.arange(t, device=score.device) + 1) // ratio - 1) // size
    number = torch.arange(blocks.shape[-1], device=score.device)
    blocks = blocks.masked_fill(number == newest[:, None], float("inf"))
    best = blocks.topk(min(s.candidate_blocks, blocks.shape[-1]), dim=-1, sorted=False)
    keep = torch.zeros_like(blocks, dtype=torch.bool)
    keep.scatter_(-1, best.indices, best.values > float("-inf"))
    return keep.repeat_interleave(size, -1)[..., :e]
