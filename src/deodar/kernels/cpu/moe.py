"""The mixture of experts on the CPU (model 3.9): rows grouped by expert, combined in fixed order.

Every expert sees its rows as one product; the routed outputs of a row are then added in ascending
order of the expert's id, the shared expert last, so the sum does not depend on the batch.
"""

from __future__ import annotations

import math

import numpy as np

from deodar.kernels.cpu.elementary import F32, keep_apart, sigmoid
from deodar.kernels.cpu.jit import part
from deodar.kernels.cpu.matmul import FIRST, matmul
from deodar.kernels.cpu.select import select_top

_TINY = F32(1e-20)


@part
def route(z, bias, scale, keys, ids, weights):
    """Choose ids.size experts of one row from its router outputs z [experts].

    ids int32 ascending; weights float32: unbiased sqrt(softplus(z)) over their sum, times scale.
    """
    keep_apart()
    scores = np.empty(z.size, np.float32)
    biased = np.empty(z.size, np.float32)
    for e in range(z.size):
        value = np.float64(z[e])
        soft = max(value, 0.0) + math.log1p(math.exp(-abs(value)))
        scores[e] = F32(math.sqrt(soft))
        biased[e] = scores[e] + bias[e]
    count = select_top(biased, keys, ids.size, ids)
    total = F32(0)
    for i in range(count):
        total += scores[ids[i]]
    for i in range(count):
        weights[i] = scores[ids[i]] / (total + _TINY) * scale


@part
def gated(both, limit, weight, out):
    """out = silu(min(g, limit)) * clamp(u, -limit, limit) * weight, with both = g then u."""
    keep_apart()
    n = out.size
    gate, up = both[:n], both[n : 2 * n]
    for i in range(n):
        g = min(gate[i], limit)
        u = min(max(up[i], -limit), limit)
        out[i] = g * sigmoid(g) * u * weight


@part
def run_expert(x, w_in, w_out, limit, weights, both, hidden, out):
    """out[r] = w_out(gated(w_in(x[r])) * weights[r]); all float32 rows, weights packed."""
    keep_apart()
    matmul(x, w_in, both, FIRST)
    for r in range(x.shape[0]):
        gated(both[r], limit, weights[r], hidden[r])
    matmul(hidden, w_out, out, FIRST)
