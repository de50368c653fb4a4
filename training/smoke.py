"""Checks on the GPU before a long run, cheap ones first. Run as `python smoke.py`.

Compares both Triton kernels and the compiled attention (values and gradients) with their plain
twins, then a whole forward and backward in bf16 with the same network in fp32 on the plain path.
Stops with exit status 1 at the first failure.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import kernels
import model
import numpy as np
import torch
from model import Backbone, Mode, attend, attend_plain
from quant import SERVED
from shape import load_shape
from torch import Tensor

START = time.time()


def check(what: str, got: Tensor, want: Tensor, tolerance: float) -> None:
    """Print the relative difference; exit when it is too large or not a number."""
    diff = float((got.float() - want.float()).norm() / want.float().norm().clamp_min(1e-20))
    print(f"{time.time() - START:6.1f} s  {what:44s} {diff:.2e} (limit {tolerance})", flush=True)
    if not diff <= tolerance:
        sys.exit(1)


def small_kernels() -> None:
    """Sinkhorn, its gradient, index scores."""
    c = torch.randn(5000, 4, 4, device="cuda")
    c.diagonal(dim1=1, dim2=2).add_(2)
    p, want = kernels.sinkhorn(c), kernels.sinkhorn_plain(c)
    check("sinkhorn", p, want, 1e-5)
    g = torch.randn_like(p)
    check("sinkhorn gradient", kernels.sinkhorn_grad(p, g), kernels.sinkhorn_grad_plain(p, g), 1e-4)
    leaf = c.double().requires_grad_()
    (kernels.sinkhorn_plain(leaf) * g).sum().backward()
    check("sinkhorn gradient, through the rounds", kernels.sinkhorn_grad(p, g), leaf.grad, 0.05)
    for ratio in (1, 2):
        q = torch.randn(3, 256, 8, 32, device="cuda", dtype=torch.bfloat16)
        k = torch.randn(3, 256 // ratio, 32, device="cuda", dtype=torch.bfloat16)
        w = torch.randn(3, 256, 8, device="cuda")
        got = kernels.index_scores(q, k, w, ratio)
        want = kernels.index_scores_plain(q, k, w, ratio)
        same = torch.equal(got.isinf(), want.isinf())
        check(f"index scores, ratio {ratio}", got.nan_to_num(neginf=0.0),
              want.nan_to_num(neginf=0.0), 1e-3 if same else -1)  # fmt: skip


def attention(net: Backbone) -> None:
    """FlexAttention against the dense twin, with and without a choice of entries."""
    b, t, hidden = 4, 512, 1
    run = torch.compile(attend, dynamic=False)
    for ratio, pick in ((2, False), (0, False), (1, False), (2, True)):
        e = t // ratio if ratio else 0
        base = [torch.randn(b * t, 8, 64, device="cuda"), torch.randn(b, t + e, 64, device="cuda"),
                torch.randn(8, device="cuda")]  # fmt: skip
        chosen = (torch.rand(b, t, e, device="cuda") < 0.3).to(torch.uint8) if pick else None
        i = [torch.arange(n, device="cuda") for n in (b, t, t + e)]
        q, k = i[1][:, None], i[2]
        dense = (k <= q) & (k > q - 128) & (k < t)
        dense = dense.expand(b, t, t + e)
        if ratio:
            seen = (k >= t) & (k - t < (q + 1) // ratio)
            dense = dense | (seen & (i[0] >= hidden)[:, None, None])
        g = torch.randn(b * t, 8, 64, device="cuda")
        grads = []
        for f, mask, dtype in (
            (run, net.mask(b, t, ratio, hidden), torch.bfloat16),
            (attend_plain, dense, torch.float32),
        ):
            x = [base[0].to(dtype).requires_grad_(), base[1].to(dtype).requires_grad_(),
                 base[2].clone().requires_grad_()]  # fmt: skip
            out, lse = f(*x, mask, chosen, t)
            out.backward(g.to(dtype))
            grads.append([out, lse, *(v.grad for v in x)])
        for name, got, want in zip(("out", "lse", "dq", "dk", "dsink"), *grads, strict=True):
            check(f"attention ratio {ratio} choice {pick} {name}", got, want, 0.015)


def whole(net: Backbone, plain: Backbone) -> None:
    """Last-layer stream and gradients, compiled bf16 against plain fp32 with the same weights."""
    plain.top, plain.layers = net.top, net.layers
    tokens = torch.randint(3, 8000, (4, 512), device="cuda")
    leaves = {
        "wq_a": net.layers[3]["wq_a"], "wkv of layer 5": net.layers[5]["c_wkv"],
        "experts": net.layers[4]["w1"], "comb base": net.layers[2]["hc_attn_base"],
        "engram": net.layers[1]["e_table"], "wgate": net.layers[2]["c_wgate"],
    }  # fmt: skip
    for p in (net.top, *net.layers):
        for k, v in p.items():
            v.requires_grad_(k != "gate_bias")
    found = []
    for n in (net, plain):
        trace = n.forward(tokens, Mode(hidden_rows=1))
        loss, _, _ = n.token_loss(
            trace.x, trace.pre, model.part(n.top, model.HEAD_NAMES), tokens.roll(-1, 1).flatten(),
            torch.ones(2048, device="cuda"),
        )  # fmt: skip
        loss.backward()
        found.append([trace.x, *(v.grad.clone() for v in leaves.values())])
        for p in (net.top, *net.layers):
            for v in p.values():
                v.grad = None
    limits = [0.5, *[0.8] * len(leaves)]
    # a few tokens take another expert after rounding: look at the typical token
    size = found[1][0].flatten(1).norm(dim=1)
    off = (found[0][0].float() - found[1][0]).flatten(1).norm(dim=1) / size
    print("stream error per token, quantiles", off.detach().quantile(
        torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9], device="cuda")).tolist())  # fmt: skip
    for name, got, want, limit in zip(("stream", *leaves), *found, limits, strict=True):
        check(f"whole network: {name}", got, want, limit)
    with torch.no_grad():
        x = plain.forward(tokens, Mode(SERVED)).x
    print("served rounding moves the untrained stream by",
          round(float((x - found[1][0]).norm() / found[1][0].norm()), 4))  # fmt: skip


def main() -> None:
    """Run all checks."""
    torch._dynamo.config.recompile_limit = 128
    print(torch.__version__, torch.cuda.get_device_name())
    small_kernels()
    shape = load_shape(Path(__file__).with_name("config.json"))
    shape = replace(shape, engram_classes=6000, noise=8166)
    token_map = np.arange(8192) % 6000
    net = Backbone(shape, token_map, "cuda", torch.bfloat16)
    attention(net)
    plain = Backbone(shape, token_map, "cuda", torch.float32, fast=False)
    whole(net, plain)
    print("all checks passed")


if __name__ == "__main__":
    main()
