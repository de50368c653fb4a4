"""Attention of one row on the CPU: choice of entries (model 3.8), one softmax over two sets (3.6).

A row sees its keys in one order only: window by position, then chosen entries by id. The number of
keys is padded to 16 with weight 0, so nothing depends on how the row came to be computed.
"""

from __future__ import annotations

from deodar.kernels.cpu.elementary import F32, LANES, exp, rotate_back
from deodar.kernels.cpu.jit import compiled
from deodar.kernels.cpu.layout import KEY_TILE, ROLE_FREE, ROLE_PUBLISH, ROLE_RESTRICTED
from deodar.kernels.cpu.matmul import matmul_plain
from deodar.kernels.cpu.select import select_top

_ZERO = F32(0)
_ONE = F32(1)
_FLOOR = F32(-1e30)
_LOWEST = F32(-float("inf"))
_HIGHEST = F32(float("inf"))


@compiled
def choose(sizes, index_keys, query, weight, visible, role, allowed, chosen, scratch):
    """Write the ids of a row's best entries to `chosen`, ascending; return their number.

    index_keys [tiles, index_dim, 64] of the row's slot and source; query [index_heads, index_dim];
    weight [index_heads]; allowed uint8 [blocks]: written where role is PUBLISH, read where it is
    RESTRICTED.
    """
    block = sizes.candidate_block
    blocks = (visible + block - 1) // block
    all_blocks = role == ROLE_FREE or blocks <= sizes.candidate_blocks
    if all_blocks:
        allowed[:blocks] = 1
        if visible <= sizes.index_topk:
            for i in range(visible):
                chosen[i] = i
            return visible
    scores = scratch.scores[:visible]
    score_entries(sizes, index_keys, query, weight, scores, scratch)
    if role == ROLE_PUBLISH and not all_blocks:
        publish_blocks(sizes, scores, blocks, allowed, scratch)
    if role == ROLE_RESTRICTED and not all_blocks:
        for b in range(blocks):
            if allowed[b] == 0:
                scores[b * block : (b + 1) * block] = _LOWEST
    return select_top(scores, scratch.keys, sizes.index_topk, chosen)


@compiled
def score_entries(sizes, index_keys, query, weight, scores, scratch):
    """scores[j] = sum over heads, in order, of relu(query_h . key_j) * weight_h * index_scale."""
    heads = sizes.index_heads
    dots = scratch.dots[: heads * KEY_TILE].reshape(heads, KEY_TILE)
    for start in range(0, scores.size, KEY_TILE):
        tile = index_keys[start // KEY_TILE]
        matmul_plain(query, tile.reshape(tile.size), KEY_TILE, dots)
        part = scores[start : start + KEY_TILE]
        part[:] = _ZERO
        for h in range(heads):
            factor = weight[h] * sizes.index_scale
            row = dots[h]
            for j in range(part.size):
                part[j] += max(row[j], _ZERO) * factor


@compiled
def publish_blocks(sizes, scores, blocks, allowed, scratch):
    """Mark the best blocks by their best entry; the newest is always in (3.8, two-level choice)."""
    block = sizes.candidate_block
    best = scratch.values[:blocks]
    for b in range(blocks):
        top = _LOWEST
        for j in range(b * block, min((b + 1) * block, scores.size)):
            top = max(top, scores[j])
        best[b] = top
    best[blocks - 1] = _HIGHEST
    count = select_top(best, scratch.keys, sizes.candidate_blocks, scratch.ids)
    allowed[:blocks] = 0
    for i in range(count):
        allowed[scratch.ids[i]] = 1


@compiled
def gather_keys(sizes, window, entries, position, chosen, scratch):
    """Copy a row's keys to scratch.values and, turned, to scratch.flipped; return their number.

    window [ring, head_dim]; entries [n, head_dim]; chosen: ids. Missing keys up to a multiple of
    16 are zeros.
    """
    dim = sizes.head_dim
    values = scratch.values
    count = min(position + 1, sizes.window)
    at = (position + 1 - count) % sizes.ring
    for i in range(count):
        values[i * dim : (i + 1) * dim] = window[at]
        at = at + 1 if at + 1 < sizes.ring else 0
    for i in range(chosen.size):
        values[(count + i) * dim : (count + i + 1) * dim] = entries[chosen[i]]
    count += chosen.size
    padded = (count + LANES - 1) // LANES * LANES
    values[count * dim : padded * dim] = _ZERO
    for start in range(0, padded, LANES):
        for d in range(dim):
            to = scratch.flipped[d * sizes.key_stride + start :]
            source = values[start * dim + d :]
            for i in range(LANES):
                to[i] = source[i * dim]
    return count


@compiled
def softmax(scores, count, scale, sink):
    """Turn scores [padded] into weights in place; return the denominator, sink included (3.6)."""
    top = _FLOOR
    for j in range(count):
        scores[j] *= scale
        top = max(top, scores[j])
    for j in range(scores.size):
        scores[j] = exp(scores[j] - top)
    scores[count:] = _ZERO
    total = _ZERO
    for start in range(0, scores.size, LANES):
        part = scores[start : start + LANES]
        total += (
            ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]))
        ) + (
            ((part[8] + part[9]) + (part[10] + part[11]))
            + ((part[12] + part[13]) + (part[14] + part[15]))
        )
    return total + exp(sink - top)


@compiled
def attend(sizes, window, entries, query, position, chosen, sink, cos, sin, heads_out, r, scratch):
    """All heads of row r: query flat [heads * head_dim]; writes heads_out[group, r, :]."""
    dim, heads = sizes.head_dim, sizes.heads
    count = gather_keys(sizes, window, entries, position, chosen, scratch)
    padded = (count + LANES - 1) // LANES * LANES
    weights = scratch.weights[: heads * padded].reshape(heads, padded)
    output = scratch.output[: heads * dim].reshape(heads, dim)
    matmul_plain(query.reshape(heads, dim), scratch.flipped, sizes.key_stride, weights)
    per_group = heads // sizes.groups
    for h in range(heads):
        row = weights[h]
        share = _ONE / softmax(row, count, sizes.key_scale, sink[h])
        for j in range(padded):
            row[j] *= share
    matmul_plain(weights, scratch.values, dim, output)
    for h in range(heads):
        rotate_back(output[h], cos, sin)
        start = (h % per_group) * dim
        heads_out[h // per_group, r, start : start + dim] = output[h]
