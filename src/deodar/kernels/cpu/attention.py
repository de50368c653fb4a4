"""Attention of one row on the CPU: choice of entries (model 3.8), one softmax over two sets (3.6).

A row sees its keys in one order only: window by position, then chosen entries by id. All keys are
read from their stored bytes. The number of keys is padded to 16 with weight 0, so nothing depends
on how the row came to be computed.
"""

from __future__ import annotations

from deodar.kernels.cpu import layout as at
from deodar.kernels.cpu.elementary import (
    F32,
    LANES,
    copy,
    exp,
    keep_apart,
    lane_max,
    lane_sum,
    rotate_back,
)
from deodar.kernels.cpu.jit import part
from deodar.kernels.cpu.layout import GROUP, ROLE_FREE, ROLE_PUBLISH, ROLE_RESTRICTED
from deodar.kernels.cpu.matmul import matmul_plain
from deodar.kernels.cpu.quant import decode_entry, decode_index_keys, decode_window_key
from deodar.kernels.cpu.select import select_top

_ZERO = F32(0)
_ONE = F32(1)
_FLOOR = F32(-1e30)
_LOWEST = F32(-float("inf"))
_HIGHEST = F32(float("inf"))


@part
def choose_rows(m, book, lo, hi):
    """m.chosen and m.chosen_count of rows lo..hi at an index source (3.8)."""
    keep_apart()
    while lo < hi:
        stop = lo + 1
        while stop < min(hi, lo + GROUP) and m.row_chunks[stop] == m.row_chunks[lo]:
            stop += 1
        score_rows(m, book, lo, stop)
        for r in range(lo, stop):
            visible = (m.positions[r] + 1) // book[at.RATIO]
            scores = m.scores[r - lo, :visible]
            m.chosen_count[r] = choose(m, book[at.ROLE], scores, m.candidates[r], m.chosen[r])
        lo = stop


@part
def takes_all(m, role, visible):
    """True where a row's choice is all of its `visible` entries, whatever their scores."""
    blocks = (visible + m.candidate_block - 1) // m.candidate_block
    return visible <= m.index_topk and (role == ROLE_FREE or blocks <= m.candidate_blocks)


@part
def choose(m, role, scores, allowed, chosen):
    """Write the ids of a row's best entries to `chosen`, ascending; return their number.

    allowed uint8 [blocks]: written where the role is PUBLISH, read where it is RESTRICTED.
    """
    keep_apart()
    block, visible = m.candidate_block, scores.size
    blocks = (visible + block - 1) // block
    all_blocks = role == ROLE_FREE or blocks <= m.candidate_blocks
    if all_blocks:
        allowed[:blocks] = 1
    if takes_all(m, role, visible):
        for i in range(visible):
            chosen[i] = i
        return visible
    if role == ROLE_PUBLISH and not all_blocks:
        publish_blocks(m, scores, blocks, allowed)
    if role == ROLE_RESTRICTED and not all_blocks:
        for b in range(blocks):
            if allowed[b] == 0:
                scores[b * block : (b + 1) * block] = _LOWEST
    return select_top(scores, m.order, m.index_topk, chosen)


@part
def score_rows(m, book, lo, hi):
    """m.scores of neighbouring rows lo..hi of one sequence, at most GROUP of them.

    The keys of a page are unpacked once for all the rows.
    """
    keep_apart()
    keys, visible = book[at.PAGE_ENTRIES], (m.positions[hi - 1] + 1) // book[at.RATIO]
    if takes_all(m, book[at.ROLE], visible):
        return
    first = book[at.ENTRIES_AT] * m.index_key_bytes
    size = keys * m.index_key_bytes
    stride = (keys + LANES - 1) // LANES * LANES
    for start in range(0, visible, keys):
        stored = m.index_keys[m.tables[m.slots[lo], start // keys], first : first + size]
        decode_index_keys(stored, m.index_dim, keys, min(keys, visible - start), m.tile, stride)
        for r in range(lo, hi):
            stop = min(start + keys, (m.positions[r] + 1) // book[at.RATIO])
            if stop > start:
                score_page(m, book, r, stride, m.scores[r - lo, start:stop])


@part
def score_page(m, book, r, stride, scores):
    """scores[j] = sum over heads, in order, of relu(query_h . key_j) * weight_h * index_scale.

    Key j of the page is column j of m.tile.
    """
    keep_apart()
    heads = m.index_heads
    begin = m.heads * m.head_dim
    query = m.query[r, begin : begin + heads * m.index_dim].reshape(heads, m.index_dim)
    begin = book[at.AT_INDEX_WEIGHT]
    weight = m.fused[r, begin : begin + heads]
    width = (scores.size + LANES - 1) // LANES * LANES
    dots = m.dots[: heads * width].reshape(heads, width)
    matmul_plain(query, m.tile, stride, dots)
    scores[:] = _ZERO
    for h in range(heads):
        factor = weight[h] * m.index_scale
        row = dots[h]
        for j in range(scores.size):
            dot = row[j]
            scores[j] += (_ZERO if dot < _ZERO else dot) * factor  # NaN stays NaN


@part
def publish_blocks(m, scores, blocks, allowed):
    """Mark the best blocks by their best entry; the newest is always in (3.8, two-level choice)."""
    keep_apart()
    block = m.candidate_block
    best = m.values[:blocks]
    for b in range(blocks):
        top = _LOWEST
        for j in range(b * block, min((b + 1) * block, scores.size)):
            top = top if scores[j] <= top else scores[j]  # NaN stays NaN
        best[b] = top
    best[blocks - 1] = _HIGHEST
    count = select_top(best, m.order, m.candidate_blocks, m.ids)
    allowed[:blocks] = 0
    for i in range(count):
        allowed[m.ids[i]] = 1


@part
def gather_keys(m, layer, book, r, chosen):
    """Read a row's keys to m.values, in order; return their number.

    Window keys of rows of this step come from m.new_values, older ones from the slot's ring.
    chosen: ids of entries, ascending. Missing keys up to a multiple of 16 are zeros.
    """
    keep_apart()
    dim, slot, position, size = m.head_dim, m.slots[r], m.positions[r], m.ring
    values, ring = m.values, m.rings[slot, layer]
    first = max(position + 1 - m.window, m.keys_from[slot, layer])
    older = max(0, m.in_starts[layer, m.row_chunks[r]] - first)
    count = position + 1 - first
    place = first % size
    for i in range(older):
        decode_window_key(ring[place], dim, values, i * dim)
        place = place + 1 if place + 1 < size else 0
    own = m.new_values[(r + 1 - count + older) * dim : (r + 1) * dim]
    copy(own, values[older * dim : count * dim])
    gather_entries(m, book, slot, chosen, count * dim)
    count += chosen.size
    padded = (count + LANES - 1) // LANES * LANES
    values[count * dim : padded * dim] = _ZERO
    return count


@part
def gather_entries(m, book, slot, chosen, to):
    """m.values[to :] = entries `chosen` (ascending) of the layer's source, by the page table."""
    keep_apart()
    keys, first, dim = book[at.PAGE_ENTRIES], book[at.ENTRIES_AT], m.head_dim
    values, entries, table = m.values, m.entries, m.tables[slot]
    number, start = 0, 0
    for i in range(chosen.size):
        while chosen[i] >= start + keys:
            number, start = number + 1, start + keys
        stored = entries[table[number], first + chosen[i] - start]
        decode_entry(stored, dim, values, to + i * dim)


@part
def score_keys(m, query, count, shares):
    """shares[h, j] = scaled product of head h's query and key j < count of m.values (3.6).

    The keys are the rows of one product and the heads its columns, so no key is turned around.
    """
    keep_apart()
    dim, heads = m.head_dim, m.heads
    wide = (heads + LANES - 1) // LANES * LANES
    turned, scores = m.turned, m.key_scores[: count * wide].reshape(count, wide)
    for h in range(heads):
        for d in range(dim):
            turned[d * wide + h] = query[h * dim + d]
    matmul_plain(m.values[: count * dim].reshape(count, dim), turned, wide, scores)
    for j in range(count):
        row = scores[j]
        for h in range(heads):
            shares[h, j] = row[h] * m.key_scale


@part
def softmax(scores, count, sink):
    """Turn scores [padded] into weights in place, the sink in their sum only (3.6)."""
    keep_apart()
    scores[count:] = _FLOOR
    top = max(lane_max(scores), _FLOOR)
    for j in range(scores.size):
        scores[j] = exp(scores[j] - top)
    scores[count:] = _ZERO
    share = _ONE / (lane_sum(scores) + exp(sink - top))
    for j in range(scores.size):
        scores[j] *= share


@part
def attend(m, layer, book, query, chosen, sink, cos, sin, r):
    """All heads of row r: query flat [heads * head_dim]; writes m.head_rows[group, r, :]."""
    keep_apart()
    dim, heads = m.head_dim, m.heads
    count = gather_keys(m, layer, book, r, chosen)
    padded = (count + LANES - 1) // LANES * LANES
    shares = m.shares[: heads * padded].reshape(heads, padded)
    output = m.head_out[: heads * dim].reshape(heads, dim)
    score_keys(m, query, count, shares)
    for h in range(heads):
        softmax(shares[h], count, sink[h])
    matmul_plain(shares, m.values, dim, output)
    per_group = heads // m.groups
    for h in range(heads):
        rotate_back(output[h], cos, sin)
        start = (h % per_group) * dim
        copy(output[h], m.head_rows[h // per_group, r, start : start + dim])
