"""Hyper-connections on the CPU (model 3.3): mixes with Sinkhorn in registers, collapse, write-back.

The stream of one token is X [4, hidden]; the number of copies is 4 in every checkpoint of this
structure (the loader of the CPU model refuses another).
"""

from __future__ import annotations

from deodar.kernels.cpu.elementary import F32, exp, fma, keep_apart, sigmoid
from deodar.kernels.cpu.jit import part

COPIES = 4
MIXES = 24  # 4 pre, 4 post, 16 comb
_TWO = F32(2.0)
_ONE = F32(1.0)


@part
def collapse(stream, pre, out):
    """out[d] = sum over c of pre[c] * stream[c, d]."""
    keep_apart()
    p0, p1, p2, p3 = pre[0], pre[1], pre[2], pre[3]
    x0, x1, x2, x3 = stream[0], stream[1], stream[2], stream[3]
    for d in range(out.size):
        out[d] = fma(p3, x3[d], fma(p2, x2[d], fma(p1, x1[d], p0 * x0[d])))


@part
def write_back(stream, post, comb, y):
    """X[j] = post[j] * y + sum over i of comb[i, j] * X[i], in place; comb is [16] row-major."""
    keep_apart()
    x0, x1, x2, x3 = stream[0], stream[1], stream[2], stream[3]
    for d in range(y.size):
        a, b, c, e, v = x0[d], x1[d], x2[d], x3[d], y[d]
        x0[d] = fma(comb[12], e, fma(comb[8], c, fma(comb[4], b, fma(comb[0], a, post[0] * v))))
        x1[d] = fma(comb[13], e, fma(comb[9], c, fma(comb[5], b, fma(comb[1], a, post[1] * v))))
        x2[d] = fma(comb[14], e, fma(comb[10], c, fma(comb[6], b, fma(comb[2], a, post[2] * v))))
        x3[d] = fma(comb[15], e, fma(comb[11], c, fma(comb[7], b, fma(comb[3], a, post[3] * v))))


@part
def finish_mixes(m, base, scale, rounds, eps, pre, post, comb):
    """From the 24 raw numbers m to pre [4], post [4] and comb [16] (3.3 steps 3 and 4)."""
    keep_apart()
    for i in range(COPIES):
        pre[i] = sigmoid(m[i] * scale[0] + base[i]) + eps
        post[i] = _TWO * sigmoid(m[4 + i] * scale[1] + base[4 + i])
    for i in range(COPIES * COPIES):
        comb[i] = m[8 + i] * scale[2] + base[8 + i]
    for i in range(COPIES):
        row = comb[4 * i : 4 * i + 4]
        top = max(max(row[0], row[1]), max(row[2], row[3]))
        for j in range(COPIES):
            row[j] = exp(row[j] - top)
        total = ((row[0] + row[1]) + row[2]) + row[3]
        for j in range(COPIES):
            row[j] = row[j] / total + eps
    sinkhorn(comb, rounds, eps)


@part
def sinkhorn(comb, rounds, eps):
    """Alternate column and row divisions, ending on a column step; comb [16] row-major, in place.

    The softmax before it counts as the row step of round 1, so there are `rounds` column steps and
    `rounds - 1` row steps. The 16 values live in registers.
    """
    keep_apart()
    a0, a1, a2, a3 = comb[0], comb[1], comb[2], comb[3]
    b0, b1, b2, b3 = comb[4], comb[5], comb[6], comb[7]
    c0, c1, c2, c3 = comb[8], comb[9], comb[10], comb[11]
    d0, d1, d2, d3 = comb[12], comb[13], comb[14], comb[15]
    for turn in range(rounds):
        if turn > 0:
            a = ((a0 + a1) + a2) + a3 + eps
            b = ((b0 + b1) + b2) + b3 + eps
            c = ((c0 + c1) + c2) + c3 + eps
            d = ((d0 + d1) + d2) + d3 + eps
            a0, a1, a2, a3 = a0 / a, a1 / a, a2 / a, a3 / a
            b0, b1, b2, b3 = b0 / b, b1 / b, b2 / b, b3 / b
            c0, c1, c2, c3 = c0 / c, c1 / c, c2 / c, c3 / c
            d0, d1, d2, d3 = d0 / d, d1 / d, d2 / d, d3 / d
        s0 = ((a0 + b0) + c0) + d0 + eps
        s1 = ((a1 + b1) + c1) + d1 + eps
        s2 = ((a2 + b2) + c2) + d2 + eps
        s3 = ((a3 + b3) + c3) + d3 + eps
        a0, b0, c0, d0 = a0 / s0, b0 / s0, c0 / s0, d0 / s0
        a1, b1, c1, d1 = a1 / s1, b1 / s1, c1 / s1, d1 / s1
        a2, b2, c2, d2 = a2 / s2, b2 / s2, c2 / s2, d2 / s2
        a3, b3, c3, d3 = a3 / s3, b3 / s3, c3 / s3, d3 / s3
    comb[0], comb[1], comb[2], comb[3] = a0, a1, a2, a3
    comb[4], comb[5], comb[6], comb[7] = b0, b1, b2, b3
    comb[8], comb[9], comb[10], comb[11] = c0, c1, c2, c3
    comb[12], comb[13], comb[14], comb[15] = d0, d1, d2, d3
