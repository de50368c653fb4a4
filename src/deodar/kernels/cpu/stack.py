"""The forward pass on the CPU: all rows of a step through all layers (model 3.2, 3.3).

Each layer has three parts: `prepare` (up to queries and window keys), `remember` (compressed
memory; rows in order) and `respond` (attention, experts). A part may be given any range of rows,
because a row reads only keys and entries that an earlier part has finished. Called by
`deodar.model.cpu`.
"""

from __future__ import annotations

from deodar.kernels.cpu import layout as at
from deodar.kernels.cpu.attention import attend, choose
from deodar.kernels.cpu.elementary import F32, exp, inverse_rms, rms_norm, rotate, widen
from deodar.kernels.cpu.engram import apply
from deodar.kernels.cpu.hyper import COPIES, MIXES, collapse, finish_mixes, write_back
from deodar.kernels.cpu.jit import compiled
from deodar.kernels.cpu.matmul import matmul
from deodar.kernels.cpu.moe import gated, route, run_expert
from deodar.kernels.cpu.quant import round_entry, round_index_key, round_window_key



@compiled
def embed_rows(weights, batch, work, lo, hi):
    """Four equal copies of each token's embedding; the first sublayer reads copy 0 only (3.1)."""
    for r in range(lo, hi):
        source = weights.embed[batch.tokens[r]]
        for c in range(COPIES):
            row = work.stream[r, c]
            for d in range(row.size):
                row[d] = widen(source[d])
            work.pre[r, c] = F32(1) if c == 0 else F32(0)


@compiled
def mix(sizes, weights, work, offset, lo, hi):
    """post, comb and next_pre of rows from their streams; offset: a hyper-connection (3.3)."""
    flat = COPIES * sizes.hidden
    size = flat * at.MIX_WIDTH
    matrix = weights.wide[offset : offset + size]
    base = weights.wide[offset + size : offset + size + MIXES]
    scale = weights.wide[offset + size + MIXES : offset + size + MIXES + 3]
    rows = work.stream[lo:hi].reshape(hi - lo, flat)
    matmul(rows, matrix, work.mixes[lo:hi], 0)
    for r in range(lo, hi):
        m = work.mixes[r]
        factor = inverse_rms(rows[r - lo], sizes.eps)
        for i in range(MIXES):
            m[i] *= factor
        finish_mixes(
            m, base, scale, sizes.sinkhorn, sizes.hc_eps, work.next_pre[r], work.post[r], work.comb[r]
        )


@compiled
def read_stream(sizes, weights, work, norm, lo, hi):
    """work.x = normed collapse by work.pre; then next_pre becomes pre (3.3)."""
    weight = weights.wide[norm : norm + sizes.hidden]
    for r in range(lo, hi):
        collapse(work.stream[r], work.pre[r], work.y[r])
        rms_norm(work.y[r], weight, sizes.eps, work.x[r])
        work.pre[r] = work.next_pre[r]


@compiled
def add_engram(sizes, weights, state, batch, work, book, lo, hi):
    """The Engram step before a layer (3.10e), from rows fetched beforehand."""
    width, hidden = sizes.engram_width, sizes.hidden
    start = book[at.W_ENGRAM]
    matrix = weights.narrow[start : start + width * 5 * hidden]
    matmul(work.engram[book[at.ENGRAM], lo:hi], matrix, work.engram_out[lo:hi], 0)
    start = book[at.F_ENGRAM_QK]
    qk = weights.wide[start : start + COPIES * hidden].reshape(COPIES, hidden)
    for r in range(lo, hi):
        alive = state.compressed[batch.slots[r], batch.positions[r]] >= 0
        apply(work.stream[r], work.engram_out[r], qk, sizes.eps, alive, work.y[r])


@compiled
def keep_taps(state, batch, work, tap, lo, hi):
    """Mean over the copies of a target layer's input, for the draft head (3.2)."""
    hidden = work.stream.shape[2]
    ring = state.taps.shape[1]
    for r in range(lo, hi):
        x = work.stream[r]
        place = state.taps[batch.slots[r], batch.positions[r] % ring]
        for d in range(hidden):
            total = ((x[0, d] + x[1, d]) + x[2, d]) + x[3, d]
            place[tap * hidden + d] = total * F32(0.25)


@compiled
def prepare(sizes, weights, state, batch, work, layer, lo, hi):
    """Rows lo..hi up to their queries (work.query) and stored window keys (3.5)."""
    book = weights.book[layer]
    if book[at.ENGRAM] >= 0:
        add_engram(sizes, weights, state, batch, work, book, lo, hi)
    if book[at.TAP] >= 0:
        keep_taps(state, batch, work, book[at.TAP], lo, hi)
    mix(sizes, weights, work, book[at.F_HC_ATTN], lo, hi)
    read_stream(sizes, weights, work, book[at.F_ATTN_NORM], lo, hi)
    width, low_width = book[at.IN_WIDTH], sizes.q_lora
    fused = work.fused[lo * width : hi * width].reshape(hi - lo, width)
    start = book[at.W_IN]
    matmul(work.x[lo:hi], weights.narrow[start : start + sizes.hidden * width], fused, 0)
    q_norm = weights.wide[book[at.F_Q_NORM] : book[at.F_Q_NORM] + low_width]
    key_norm = weights.wide[book[at.F_KEY_NORM] : book[at.F_KEY_NORM] + sizes.head_dim]
    cos, sin = weights.cos[book[at.ROPE]], weights.sin[book[at.ROPE]]
    at_key = book[at.AT_KEY]
    for r in range(lo, hi):
        position = batch.positions[r]
        row = fused[r - lo]
        rms_norm(row[:low_width], q_norm, sizes.eps, work.low[r])
        key = state.window[batch.slots[r], layer, position % sizes.ring]
        rms_norm(row[at_key : at_key + sizes.head_dim], key_norm, sizes.eps, key)
        rotate(key, cos[position], sin[position])
        round_window_key(key)
    make_queries(sizes, weights, batch, work, book, cos, sin, lo, hi)


@compiled
def make_queries(sizes, weights, batch, work, book, cos, sin, lo, hi):
    """Attention and index queries from the low-rank rows, rotated (3.5, 3.8)."""
    width, start = book[at.QUERY_WIDTH], book[at.W_QUERY]
    query = work.query[lo * width : hi * width].reshape(hi - lo, width)
    matmul(work.low[lo:hi], weights.narrow[start : start + sizes.q_lora * width], query, 0)
    end = sizes.heads * sizes.head_dim
    for r in range(lo, hi):
        row, position = query[r - lo], batch.positions[r]
        for head in range(sizes.heads):
            part = row[head * sizes.head_dim : (head + 1) * sizes.head_dim]
            rotate(part, cos[position], sin[position])
        if book[at.OWNS_INDEX] != 0:
            for head in range(sizes.index_heads):
                begin = end + head * sizes.index_dim
                rotate(row[begin : begin + sizes.index_dim], cos[position], sin[position])


@compiled
def remember(sizes, weights, state, batch, work, scratch, layer, lo, hi):
    """Write the entries and index keys that rows lo..hi, in order, complete (3.8, compressor)."""
    book = weights.book[layer]
    dim, width, ratio = sizes.head_dim, book[at.IN_WIDTH], book[at.RATIO]
    norm = weights.wide[book[at.F_LATENT_NORM] : book[at.F_LATENT_NORM] + dim]
    for r in range(lo, hi):
        slot, position = batch.slots[r], batch.positions[r]
        row = work.fused[r * width : (r + 1) * width]
        a = row[book[at.AT_LATENT] : book[at.AT_LATENT] + dim]
        pooled = state.unpaired[slot, layer, 0]
        if ratio == 2:
            g = row[book[at.AT_GATE] : book[at.AT_GATE] + dim]
            first_g = state.unpaired[slot, layer, 1]
            if position % 2 == 0:
                pooled[:] = a
                first_g[:] = g
                continue
            pool_pair(pooled, first_g, a, g)
        else:
            pooled[:] = a
        entry = position // ratio
        target = state.entries[slot, book[at.ENTRIES_AT] + entry]
        rms_norm(pooled, norm, sizes.eps, target)
        store_entry(sizes, weights, state, book, slot, entry, target, scratch)


@compiled
def pool_pair(a0, g0, a1, g1):
    """a0 = softmax over the two gates of the two values, per channel (3.8, ratio 2)."""
    for d in range(a0.size):
        top = max(g0[d], g1[d])
        e0, e1 = exp(g0[d] - top), exp(g1[d] - top)
        a0[d] = (e0 * a0[d] + e1 * a1[d]) / (e0 + e1)


@compiled
def store_entry(sizes, weights, state, book, slot, entry, latent, scratch):
    """From a latent, in place in the memory: its index key, then the main entry (3.8)."""
    dim, index_dim = sizes.head_dim, sizes.index_dim
    cos = weights.cos[1, entry * book[at.RATIO]]
    sin = weights.sin[1, entry * book[at.RATIO]]
    raw, key = scratch.dots[:index_dim], scratch.output[:index_dim]
    start = book[at.W_INDEX_KEY]
    matrix = weights.narrow[start : start + dim * index_dim]
    matmul(latent.reshape(1, dim), matrix, raw.reshape(1, index_dim), 0)
    norm = weights.wide[book[at.F_INDEX_NORM] : book[at.F_INDEX_NORM] + index_dim]
    rms_norm(raw, norm, sizes.eps, key)
    rotate(key, cos, sin)
    round_index_key(key)
    tile = state.index_keys[slot, book[at.ENTRIES_AT] // at.KEY_TILE + entry // at.KEY_TILE]
    for d in range(index_dim):
        tile[d, entry % at.KEY_TILE] = key[d]
    rotate(latent, cos, sin)
    round_entry(latent)


@compiled
def choose_row(sizes, state, batch, work, scratch, book, r):
    """Set row r's chosen entries at an index source (3.8)."""
    slot, position = batch.slots[r], batch.positions[r]
    visible = (position + 1) // book[at.RATIO]
    tile = book[at.ENTRIES_AT] // at.KEY_TILE
    keys = state.index_keys[slot, tile : tile + (visible + at.KEY_TILE - 1) // at.KEY_TILE]
    width = book[at.QUERY_WIDTH]
    begin = r * width + sizes.heads * sizes.head_dim
    query = work.query[begin : begin + sizes.index_heads * sizes.index_dim]
    begin = r * book[at.IN_WIDTH] + book[at.AT_INDEX_WEIGHT]
    work.chosen_count[r] = choose(
        sizes,
        keys,
        query.reshape(sizes.index_heads, sizes.index_dim),
        work.fused[begin : begin + sizes.index_heads],
        visible,
        book[at.ROLE],
        work.candidates[r],
        work.chosen[r],
        scratch,
    )


@compiled
def attend_rows(sizes, weights, state, batch, work, scratch, layer, use_memory, lo, hi):
    """work.heads of rows lo..hi: their choice where due, then attention (3.6, 3.8)."""
    book = weights.book[layer]
    width, wide = book[at.QUERY_WIDTH], sizes.heads * sizes.head_dim
    cos, sin = weights.cos[book[at.ROPE]], weights.sin[book[at.ROPE]]
    sink = weights.wide[book[at.F_SINK] : book[at.F_SINK] + sizes.heads]
    for r in range(lo, hi):
        slot, position = batch.slots[r], batch.positions[r]
        count = 0
        if book[at.RATIO] > 0:
            if book[at.OWNS_INDEX] != 0:
                choose_row(sizes, state, batch, work, scratch, book, r)
            count = work.chosen_count[r] if use_memory else 0
        attend(
            sizes,
            state.window[slot, layer],
            state.entries[slot, book[at.ENTRIES_AT] :],
            work.query[r * width : r * width + wide],
            position,
            work.chosen[r, :count],
            sink,
            cos[position],
            sin[position],
            work.heads,
            r,
            scratch,
        )


@compiled
def respond(sizes, weights, state, batch, work, scratch, layer, use_memory, lo, hi):
    """Rows lo..hi from their queries to the stream that leaves the layer (3.3, 3.6 to 3.9)."""
    book = weights.book[layer]
    hidden, o_lora = sizes.hidden, sizes.o_lora
    attend_rows(sizes, weights, state, batch, work, scratch, layer, use_memory, lo, hi)
    depth = sizes.heads // sizes.groups * sizes.head_dim
    for group in range(sizes.groups):
        start = book[at.W_OUT_A] + group * depth * o_lora
        matrix = weights.narrow[start : start + depth * o_lora]
        matmul(work.heads[group, lo:hi], matrix, work.grouped[lo:hi], group * o_lora)
    start = book[at.W_OUT_B]
    matrix = weights.narrow[start : start + sizes.groups * o_lora * hidden]
    matmul(work.grouped[lo:hi], matrix, work.y[lo:hi], 0)
    for r in range(lo, hi):
        write_back(work.stream[r], work.post[r], work.comb[r], work.y[r])
    mix(sizes, weights, work, book[at.F_HC_FFN], lo, hi)
    read_stream(sizes, weights, work, book[at.F_FFN_NORM], lo, hi)
    experts(sizes, weights, work, scratch, book, lo, hi)
    for r in range(lo, hi):
        write_back(work.stream[r], work.post[r], work.comb[r], work.y[r])


@compiled
def experts(sizes, weights, work, scratch, book, lo, hi):
    """work.y = routed and shared experts of work.x (3.9), combined in ascending expert order."""
    hidden, inner, chosen = sizes.hidden, sizes.inner, sizes.chosen_experts
    rows, width = hi - lo, book[at.FFN_WIDTH]
    fused = work.ffn[lo * width : hi * width].reshape(rows, width)
    start = book[at.W_FFN]
    matmul(work.x[lo:hi], weights.narrow[start : start + hidden * width], fused, 0)
    bias = weights.wide[book[at.F_BIAS] : book[at.F_BIAS] + sizes.experts]
    shared_at = book[at.AT_SHARED]
    for r in range(lo, hi):
        row = fused[r - lo]
        route(
            row[: sizes.experts], bias, sizes.routed_scale, scratch.keys,
            work.experts[r], work.expert_weight[r],
        )  # fmt: skip
        gated(row[shared_at : shared_at + 2 * inner], sizes.limit, F32(1), scratch.hidden[r - lo])
    start = book[at.W_SHARED_OUT]
    matmul(scratch.hidden[:rows], weights.narrow[start : start + inner * hidden], work.y[lo:hi], 0)
    for expert in range(sizes.experts):
        run_chosen(sizes, weights, work, scratch, book, expert, lo, hi)
    for r in range(lo, hi):
        y = work.y[r]
        first = work.routed[0, r]
        for i in range(1, chosen):
            more = work.routed[i, r]
            for d in range(hidden):
                first[d] += more[d]
        for d in range(hidden):
            y[d] += first[d]


@compiled
def run_chosen(sizes, weights, work, scratch, book, expert, lo, hi):
    """One routed expert on those of rows lo..hi that chose it, into work.routed."""
    count = 0
    for r in range(lo, hi):
        for i in range(sizes.chosen_experts):
            if work.experts[r, i] == expert:
                scratch.rows[count] = r
                scratch.places[count] = i
                scratch.row_weight[count] = work.expert_weight[r, i]
                scratch.gathered[count] = work.x[r]
                count += 1
    if count == 0:
        return
    hidden, inner = sizes.hidden, sizes.inner
    start = book[at.W_EXPERTS] + expert * 3 * hidden * inner
    middle = start + 2 * hidden * inner
    run_expert(
        scratch.gathered[:count],
        weights.narrow[start:middle],
        weights.narrow[middle : middle + inner * hidden],
        sizes.limit,
        scratch.row_weight,
        scratch.both[:count],
        scratch.hidden[:count],
        scratch.result[:count],
    )
    for i in range(count):
        work.routed[scratch.places[i], scratch.rows[i]] = scratch.result[i]


@compiled
def run_layers(sizes, weights, state, batch, work, scratch, use_memory):
    """All layers, all rows, one thread. A layer's three parts follow one another."""
    rows = batch.tokens.size
    embed_rows(weights, batch, work, 0, rows)
    for layer in range(sizes.layers):
        prepare(sizes, weights, state, batch, work, layer, 0, rows)
        if weights.book[layer, at.OWNS_MEMORY] != 0:
            remember(sizes, weights, state, batch, work, scratch, layer, 0, rows)
        respond(sizes, weights, state, batch, work, scratch, layer, use_memory, 0, rows)


@compiled
def finish(sizes, weights, work, rows, logits):
    """logits[i] = the head of row rows[i]: last collapse, norm, product (3.2); [n, padded V]."""
    for i in range(rows.size):
        r = rows[i]
        collapse(work.stream[r], work.pre[r], work.y[i])
        rms_norm(work.y[i], weights.final_norm, sizes.eps, work.x[i])
    matmul(work.x[: rows.size], weights.head, logits, 0)
