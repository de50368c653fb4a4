"""Engram on the CPU (model 3.10 d, e): hash the last ids, fetch rows, gate and add."""

from __future__ import annotations

import math

import numpy as np

from deodar.kernels.cpu.elementary import F32, fma, inverse_rms, keep_apart, lane_sum, sigmoid
from deodar.kernels.cpu.jit import entry, part

_FLOOR = F32(1e-6)


@entry
def fetch(m, rows, layer, multipliers, primes, offsets, heads, pad, table, scales, e4m3):
    """m.engram[layer, r] = the decoded table rows of row r, concatenated in column order.

    layer: number among the Engram layers. Ids before the step's rows come from m.history; negative
    ones are DEAD. primes, offsets int64 [columns]; table uint8 [N, dim], scales uint8
    [N, dim / 32], e4m3 float32 [256].
    """
    keep_apart()
    dim = table.shape[1]
    for r in range(rows):
        history, position = m.history[m.slots[r]], m.positions[r]
        first = r - (position - m.in_starts[0, m.row_chunks[r]])
        out = m.engram[layer, r]
        mixed = np.int64(0)
        dead = False
        for k in range(multipliers.size):
            token = np.int64(-1)
            if k <= r - first:
                token = m.row_ids[r - k]
            elif k <= position:
                token = history[(position - k) % history.size]
            if token < 0:
                dead = True
            if dead:
                token = pad
            mixed ^= token * multipliers[k]
            if k > 0:
                for column in range((k - 1) * heads, k * heads):
                    row = mixed % primes[column] + offsets[column]
                    part = out[column * dim : (column + 1) * dim]
                    for i in range(dim):
                        scale = F32(math.ldexp(1.0, int(scales[row, i // 32]) - 127))
                        part[i] = e4m3[table[row, i]] * scale


@part
def apply(stream, both, qk, eps, alive, work):
    """stream[c] += gate_c * value, in place; both = keys of the 4 copies, then the value (3.10e).

    stream [4, D], both [5 * D], qk [4, D] = q_weight * k_weight, work [D] is overwritten.
    """
    keep_apart()
    dim = stream.shape[1]
    value = both[4 * dim :]
    for c in range(4):
        row, key, factor = stream[c], both[c * dim : (c + 1) * dim], qk[c]
        for d in range(dim):
            work[d] = row[d] * factor[d] * key[d]
        dot = lane_sum(work) * inverse_rms(row, eps) * inverse_rms(key, eps)
        dot = dot * F32(1.0 / math.sqrt(dim))
        root = F32(math.sqrt(max(abs(dot), _FLOOR)))
        gate = sigmoid(math.copysign(root, dot)) if alive else F32(0)
        gate = F32(gate)
        for d in range(dim):
            row[d] = fma(gate, value[d], row[d])
