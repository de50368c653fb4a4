"""Two small Triton kernels of the training run, with their plain torch twins.

Called by model.py. `sinkhorn` is a torch custom operator, so compiled pieces may contain it; its
gradient comes from the fixed point instead of the 20 rounds. `index_scores` has no gradient.
What must hold: on a GPU both agree with the plain twins (smoke.py checks it before each run).
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # the CPU build of torch has no Triton: the plain twins serve there
    triton = None

ROUNDS = 20
EPS = 1e-6


def sinkhorn_plain(c: Tensor) -> Tensor:
    """model.md 3.3, mixes step 4: c [N, 4, 4] fp32 to nearly doubly stochastic matrices."""
    p = torch.softmax(c, -1) + EPS
    p = p / (p.sum(-2, keepdim=True) + EPS)
    for _ in range(ROUNDS - 1):
        p = p / (p.sum(-1, keepdim=True) + EPS)
        p = p / (p.sum(-2, keepdim=True) + EPS)
    return p


def sinkhorn_grad_plain(p: Tensor, g: Tensor) -> Tensor:
    """Gradient at the fixed point: P·(G - a - b), row shifts a and column shifts b."""
    rows, cols = p.sum(-1, keepdim=True), p.sum(-2, keepdim=True)
    b = torch.zeros_like(cols)
    a = torch.zeros_like(rows)
    for _ in range(ROUNDS):
        a = (p * (g - b)).sum(-1, keepdim=True) / rows
        b = (p * (g - a)).sum(-2, keepdim=True) / cols
    return p * (g - a - b)


if triton is not None:

    @triton.jit
    def _sinkhorn_kernel(c, out, n, ROUNDS: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr):
        t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        off = t[:, None] * 16 + tl.arange(0, 4)[None, :]
        ok = (t < n)[:, None]
        r0 = tl.load(c + off, mask=ok, other=0.0)
        r1 = tl.load(c + off + 4, mask=ok, other=0.0)
        r2 = tl.load(c + off + 8, mask=ok, other=0.0)
        r3 = tl.load(c + off + 12, mask=ok, other=0.0)
        r0 = tl.exp(r0 - tl.max(r0, 1)[:, None])
        r1 = tl.exp(r1 - tl.max(r1, 1)[:, None])
        r2 = tl.exp(r2 - tl.max(r2, 1)[:, None])
        r3 = tl.exp(r3 - tl.max(r3, 1)[:, None])
        r0 = r0 / tl.sum(r0, 1)[:, None] + EPS
        r1 = r1 / tl.sum(r1, 1)[:, None] + EPS
        r2 = r2 / tl.sum(r2, 1)[:, None] + EPS
        r3 = r3 / tl.sum(r3, 1)[:, None] + EPS
        s = 1.0 / (r0 + r1 + r2 + r3 + EPS)
        r0, r1, r2, r3 = r0 * s, r1 * s, r2 * s, r3 * s
        for _ in range(ROUNDS - 1):
            r0 = r0 / (tl.sum(r0, 1) + EPS)[:, None]
            r1 = r1 / (tl.sum(r1, 1) + EPS)[:, None]
            r2 = r2 / (tl.sum(r2, 1) + EPS)[:, None]
            r3 = r3 / (tl.sum(r3, 1) + EPS)[:, None]
            s = 1.0 / (r0 + r1 + r2 + r3 + EPS)
            r0, r1, r2, r3 = r0 * s, r1 * s, r2 * s, r3 * s
        tl.store(out + off, r0, mask=ok)
        tl.store(out + off + 4, r1, mask=ok)
        tl.store(out + off + 8, r2, mask=ok)
        tl.store(out + off + 12, r3, mask=ok)

    @triton.jit
    def _sinkhorn_grad_kernel(p, g, out, n, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
        t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        off = t[:, None] * 16 + tl.arange(0, 4)[None, :]
        ok = (t < n)[:, None]
        p0 = tl.load(p + off, mask=ok, other=0.25)
        p1 = tl.load(p + off + 4, mask=ok, other=0.25)
        p2 = tl.load(p + off + 8, mask=ok, other=0.25)
        p3 = tl.load(p + off + 12, mask=ok, other=0.25)
        g0 = tl.load(g + off, mask=ok, other=0.0)
        g1 = tl.load(g + off + 4, mask=ok, other=0.0)
        g2 = tl.load(g + off + 8, mask=ok, other=0.0)
        g3 = tl.load(g + off + 12, mask=ok, other=0.0)
        s0, s1 = tl.sum(p0, 1), tl.sum(p1, 1)
        s2, s3 = tl.sum(p2, 1), tl.sum(p3, 1)
        cols = 1.0 / (p0 + p1 + p2 + p3)
        b = g0 * 0.0
        a0, a1, a2, a3 = s0 * 0.0, s1 * 0.0, s2 * 0.0, s3 * 0.0
        for _ in range(ROUNDS):
            a0 = tl.sum(p0 * (g0 - b), 1) / s0
            a1 = tl.sum(p1 * (g1 - b), 1) / s1
            a2 = tl.sum(p2 * (g2 - b), 1) / s2
            a3 = tl.sum(p3 * (g3 - b), 1) / s3
            b = p0 * (g0 - a0[:, None]) + p1 * (g1 - a1[:, None])
            b = (b + p2 * (g2 - a2[:, None]) + p3 * (g3 - a3[:, None])) * cols
        tl.store(out + off, p0 * (g0 - a0[:, None] - b), mask=ok)
        tl.store(out + off + 4, p1 * (g1 - a1[:, None] - b), mask=ok)
        tl.store(out + off + 8, p2 * (g2 - a2[:, None] - b), mask=ok)
        tl.store(out + off + 12, p3 * (g3 - a3[:, None] - b), mask=ok)

    @triton.jit
    def _index_kernel(
        q, k, w, out, T, E,
        RATIO: tl.constexpr, H: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    ):  # fmt: skip
        rq = tl.program_id(1) * BM + tl.arange(0, BM)
        re = tl.program_id(0) * BN + tl.arange(0, BN)
        b = tl.program_id(2).to(tl.int64)
        acc = tl.zeros([BM, BN], tl.float32)
        d = tl.arange(0, D)
        if tl.program_id(0) * BN < (tl.program_id(1) * BM + BM) // RATIO:
            kt = tl.load(k + (b * E + re)[None, :] * D + d[:, None])
            for h in range(H):
                row = (b * T + rq) * H + h
                qh = tl.load(q + row[:, None] * D + d[None, :])
                acc += tl.maximum(tl.dot(qh, kt), 0.0) * tl.load(w + row)[:, None]
        seen = re[None, :] < ((rq + 1) // RATIO)[:, None]
        acc = tl.where(seen, acc, float("-inf"))
        tl.store(out + (b * T + rq)[:, None] * E + re[None, :], acc)


@torch.library.custom_op("deodar_training::sinkhorn", mutates_args=())
def sinkhorn(c: Tensor) -> Tensor:
    """Same as sinkhorn_plain; contiguous fp32 [N, 4, 4]."""
    c = c.contiguous()
    if not c.is_cuda:
        return sinkhorn_plain(c)
    out = torch.empty_like(c)
    n = c.shape[0]
    _sinkhorn_kernel[(triton.cdiv(n, 128),)](c, out, n, ROUNDS=ROUNDS, EPS=EPS, BLOCK=128)
    return out


@torch.library.custom_op("deodar_training::sinkhorn_grad", mutates_args=())
def sinkhorn_grad(p: Tensor, g: Tensor) -> Tensor:
    """Same as sinkhorn_grad_plain."""
    p, g = p.contiguous(), g.contiguous()
    if not p.is_cuda:
        return sinkhorn_grad_plain(p, g)
    out = torch.empty_like(p)
    n = p.shape[0]
    _sinkhorn_grad_kernel[(triton.cdiv(n, 128),)](p, g, out, n, ROUNDS=ROUNDS, BLOCK=128)
    return out


@sinkhorn.register_fake
def _(c: Tensor) -> Tensor:
    return c.new_empty(c.shape)


@sinkhorn_grad.register_fake
def _(p: Tensor, g: Tensor) -> Tensor:
    return p.new_empty(p.shape)


sinkhorn.register_autograd(
    lambda ctx, g: sinkhorn_grad(ctx.saved_tensors[0], g),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
)


def index_scores_plain(q: Tensor, k: Tensor, w: Tensor, ratio: int) -> Tensor:
    """Scores [B, T, E] fp32 of model.md 3.8; -inf where the entry is not visible yet.

    q [B, T, H, D], k [B, E, D], w [B, T, H].
    """
    out = torch.einsum("bthd,bed->bthe", q.float(), k.float()).relu()
    out = (out * w.float()[..., None]).sum(2)
    visible = (torch.arange(q.shape[1], device=q.device) + 1) // ratio
    hidden = torch.arange(k.shape[1], device=q.device) >= visible[:, None]
    return out.masked_fill(hidden, float("-inf"))


def index_scores(q: Tensor, k: Tensor, w: Tensor, ratio: int) -> Tensor:
    """Same as index_scores_plain; on a GPU T and E are multiples of 64."""
    if not q.is_cuda:
        return index_scores_plain(q, k, w, ratio)
    b, t, h, d = q.shape
    e = k.shape[1]
    out = torch.empty(b, t, e, dtype=torch.float32, device=q.device)
    q, k, w = q.contiguous(), k.contiguous(), w.float().contiguous()
    grid = (e // 64, t // 64, b)
    _index_kernel[grid](q, k, w, out, t, e, RATIO=ratio, H=h, D=d, BM=64, BN=64)
    return out
