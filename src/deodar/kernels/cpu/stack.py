"""The forward pass on the CPU: all rows of a step through all layers (model 3.2, 3.3).

Each layer has five parts: `prepare` (up to queries and window keys), `remember` (compressed memory,
rows in order), `attend_rows`, `project` and `experts`. A part may be given any range of rows,
because a row reads only keys and entries that an earlier part has finished. Rows that the next
layers need only as keys come first in a range and end at `lo`: they are prepared and remembered
but not attended. Called by `deodar.model.cpu`: one function for all parts would take twice as long
to compile.
"""

from __future__ import annotations

from deodar.kernels.cpu import layout as at
from deodar.kernels.cpu.attention import attend, choose_rows
from deodar.kernels.cpu.elementary import (
    F32,
    copy,
    exp,
    inverse_rms,
    keep_apart,
    rms_norm,
    rotate,
    widen,
)
from deodar.kernels.cpu.engram import apply
from deodar.kernels.cpu.hyper import COPIES, MIXES, collapse, finish_mixes, write_back
from deodar.kernels.cpu.jit import entry, part
from deodar.kernels.cpu.matmul import FIRST, matmul
from deodar.kernels.cpu.moe import gated, route, run_expert
from deodar.kernels.cpu.quant import (
    decode_window_key,
    encode_entry,
    encode_index_key,
    encode_window_key,
)


@entry
def embed_rows(m, lo, hi):
    """Four equal copies of each token's embedding; the first sublayer reads copy 0 only (3.1).

    Also keeps the ids for the n-grams of later steps, so `fetch` must be done with the old ones.
    """
    size = m.history.shape[1]
    for r in range(lo, hi):
        if m.positions[r] + size >= m.stops[m.row_chunks[r]]:
            m.history[m.slots[r], m.positions[r] % size] = m.row_ids[r]
        source = m.embed[m.tokens[r]]
        for c in range(COPIES):
            row = m.stream[r, c]
            for d in range(row.size):
                row[d] = widen(source[d])
            m.pre[r, c] = F32(1) if c == 0 else F32(0)


@part
def mix(m, offset, lo, hi):
    """post, comb and the next pre of rows from their streams; offset: a hyper-connection (3.3)."""
    keep_apart()
    flat = COPIES * m.hidden
    size = flat * at.MIX_WIDTH
    matrix = m.wide[offset : offset + size]
    base = m.wide[offset + size : offset + size + MIXES]
    scale = m.wide[offset + size + MIXES : offset + size + MIXES + 3]
    rows = m.stream[lo:hi].reshape(hi - lo, flat)
    matmul(rows, matrix, m.mixes[lo:hi], FIRST)
    for r in range(lo, hi):
        raw = m.mixes[r]
        factor = inverse_rms(rows[r - lo], m.eps)
        for i in range(MIXES):
            raw[i] *= factor
        finish_mixes(raw, base, scale, m.sinkhorn, m.hc_eps, m.pre[r], m.post[r], m.comb[r])


@part
def read_stream(m, norm, lo, hi):
    """m.x = normed collapse by m.pre (3.3); to be called before `mix` makes the next pre."""
    keep_apart()
    weight = m.wide[norm : norm + m.hidden]
    for r in range(lo, hi):
        collapse(m.stream[r], m.pre[r], m.y[r])
        rms_norm(m.y[r], weight, m.eps, m.x[r])


@part
def add_engram(m, book, lo, hi):
    """The Engram step before a layer (3.10e), from rows fetched beforehand."""
    keep_apart()
    width, hidden = m.engram_width, m.hidden
    start = book[at.W_ENGRAM]
    matrix = m.narrow[start : start + width * 5 * hidden]
    matmul(m.engram[book[at.ENGRAM], lo:hi], matrix, m.engram_out[lo:hi], FIRST)
    start = book[at.F_ENGRAM_QK]
    qk = m.wide[start : start + COPIES * hidden].reshape(COPIES, hidden)
    for r in range(lo, hi):
        apply(m.stream[r], m.engram_out[r], qk, m.eps, m.row_ids[r] >= 0, m.y[r])


@part
def keep_taps(m, tap, lo, hi):
    """Mean over the copies of a target layer's input, for the draft head (3.2)."""
    keep_apart()
    hidden = m.stream.shape[2]
    ring = m.taps.shape[1]
    for r in range(lo, hi):
        if m.positions[r] + ring < m.stops[m.row_chunks[r]]:
            continue  # a later row of the chunk has this place
        x = m.stream[r]
        place = m.taps[m.slots[r], m.positions[r] % ring]
        for d in range(hidden):
            total = ((x[0, d] + x[1, d]) + x[2, d]) + x[3, d]
            place[tap * hidden + d] = total * F32(0.25)


@entry
def prepare(m, layer, first, lo, hi):
    """Rows first..hi up to their stored window keys (3.5), lo..hi also to their queries."""
    book = m.book[layer]
    if book[at.ENGRAM] >= 0:
        add_engram(m, book, first, hi)
    if book[at.TAP] >= 0 and m.taps.shape[1] > 0:
        keep_taps(m, book[at.TAP], first, hi)
    read_stream(m, book[at.F_ATTN_NORM], first, hi)
    mix(m, book[at.F_HC_ATTN], lo, hi)
    width, low_width = book[at.IN_WIDTH], m.q_lora
    fused = m.fused[first:hi]
    start = book[at.W_IN]
    matmul(m.x[first:hi], m.narrow[start : start + m.hidden * width], fused, FIRST)
    q_norm = m.wide[book[at.F_Q_NORM] : book[at.F_Q_NORM] + low_width]
    key_norm = m.wide[book[at.F_KEY_NORM] : book[at.F_KEY_NORM] + m.head_dim]
    cos, sin = m.cos[book[at.ROPE]], m.sin[book[at.ROPE]]
    at_key = book[at.AT_KEY]
    key = m.latent[: m.head_dim]
    for r in range(first, hi):
        position = m.positions[r]
        row = fused[r - first]
        rms_norm(row[:low_width], q_norm, m.eps, m.low[r])
        rms_norm(row[at_key : at_key + m.head_dim], key_norm, m.eps, key)
        rotate(key, cos[position], sin[position])
        encode_window_key(key, m.new_keys[r])
        decode_window_key(m.new_keys[r], m.head_dim, m.new_values, r * m.head_dim)
    make_queries(m, book, cos, sin, lo, hi)


@part
def make_queries(m, book, cos, sin, lo, hi):
    """Attention and index queries from the low-rank rows, rotated (3.5, 3.8)."""
    keep_apart()
    width, start = book[at.QUERY_WIDTH], book[at.W_QUERY]
    query = m.query[lo:hi]
    matmul(m.low[lo:hi], m.narrow[start : start + m.q_lora * width], query, FIRST)
    end = m.heads * m.head_dim
    for r in range(lo, hi):
        row, position = query[r - lo], m.positions[r]
        for head in range(m.heads):
            part = row[head * m.head_dim : (head + 1) * m.head_dim]
            rotate(part, cos[position], sin[position])
        if book[at.OWNS_INDEX] != 0:
            for head in range(m.index_heads):
                begin = end + head * m.index_dim
                rotate(row[begin : begin + m.index_dim], cos[position], sin[position])


@entry
def remember(m, layer, lo, hi):
    """Write the entries and index keys that rows lo..hi, in order, complete (3.8, compressor)."""
    book = m.book[layer]
    dim, ratio = m.head_dim, book[at.RATIO]
    norm = m.wide[book[at.F_LATENT_NORM] : book[at.F_LATENT_NORM] + dim]
    pooled, latent = m.latent[:dim], m.latent[dim : 2 * dim]
    for r in range(lo, hi):
        slot, position = m.slots[r], m.positions[r]
        row = m.fused[r]
        copy(row[book[at.AT_LATENT] : book[at.AT_LATENT] + dim], pooled)
        if ratio == 2:
            tokens, place = m.unpaired.shape[1], book[at.UNPAIRED]
            kept = m.unpaired[slot, position % tokens, place]
            copy(pooled, kept[0])
            copy(row[book[at.AT_GATE] : book[at.AT_GATE] + dim], kept[1])
            if position % 2 == 0:
                continue
            first = m.unpaired[slot, (position - 1) % tokens, place]
            pool_pair(first[0], first[1], kept[0], kept[1], pooled)
        if position >= m.hits[m.row_chunks[r]]:
            rms_norm(pooled, norm, m.eps, latent)
            store_entry(m, book, slot, position // ratio, latent)


@part
def pool_pair(a0, g0, a1, g1, out):
    """out = softmax over the two gates of the two values, per channel (3.8, ratio 2)."""
    keep_apart()
    for d in range(a0.size):
        top = max(g0[d], g1[d])
        e0, e1 = exp(g0[d] - top), exp(g1[d] - top)
        out[d] = (e0 * a0[d] + e1 * a1[d]) / (e0 + e1)


@part
def store_entry(m, book, slot, entry, latent):
    """From a latent, which is overwritten: its index key and main entry, into its page (3.8)."""
    keep_apart()
    dim, index_dim = m.head_dim, m.index_dim
    cos = m.cos[1, entry * book[at.RATIO]]
    sin = m.sin[1, entry * book[at.RATIO]]
    raw, key = m.tile[:index_dim], m.head_out[:index_dim]
    start = book[at.W_INDEX_KEY]
    matrix = m.narrow[start : start + dim * index_dim]
    matmul(latent.reshape(1, dim), matrix, raw.reshape(1, index_dim), FIRST)
    norm = m.wide[book[at.F_INDEX_NORM] : book[at.F_INDEX_NORM] + index_dim]
    rms_norm(raw, norm, m.eps, key)
    rotate(key, cos, sin)
    keys = book[at.PAGE_ENTRIES]
    page, column = m.tables[slot, entry // keys], entry % keys
    first = book[at.ENTRIES_AT] * m.index_key_bytes
    stored = m.index_keys[page, first : first + keys * m.index_key_bytes]
    encode_index_key(key, stored, column, keys)
    rotate(latent, cos, sin)
    encode_entry(latent, m.entries[page, book[at.ENTRIES_AT] + column])


@entry
def attend_rows(m, layer, use_memory, lo, hi):
    """m.head_rows of rows lo..hi: their choice where due, then attention (3.6, 3.8)."""
    book = m.book[layer]
    wide = m.heads * m.head_dim
    cos, sin = m.cos[book[at.ROPE]], m.sin[book[at.ROPE]]
    sink = m.wide[book[at.F_SINK] : book[at.F_SINK] + m.heads]
    if book[at.OWNS_INDEX] != 0:
        choose_rows(m, book, lo, hi)
    for r in range(lo, hi):
        position = m.positions[r]
        count = 0
        if book[at.RATIO] > 0:
            count = m.chosen_count[r] if use_memory else 0
        query = m.query[r, :wide]
        chosen = m.chosen[r, :count]
        attend(m, layer, book, query, chosen, sink, cos[position], sin[position], r)


@part
def keep_keys(m, layer, lo, hi):
    """Window keys of rows lo..hi to their rings, as far as a chunk's later rows leave them there.

    Only after all rows of the step are attended: their windows may begin in what this overwrites.
    """
    keep_apart()
    for r in range(lo, hi):
        position = m.positions[r]
        if position + m.ring >= m.stops[m.row_chunks[r]]:
            copy(m.new_keys[r], m.rings[m.slots[r], layer, position % m.ring])


@entry
def project(m, layer, first, lo, hi):
    """Rows first..hi into their rings; lo..hi from heads to the input of the experts (3.7, 3.3)."""
    book = m.book[layer]
    keep_keys(m, layer, first, hi)
    hidden, o_lora = m.hidden, m.o_lora
    depth = m.heads // m.groups * m.head_dim
    for group in range(m.groups):
        start = book[at.W_OUT_A] + group * depth * o_lora
        matrix = m.narrow[start : start + depth * o_lora]
        matmul(m.head_rows[group, lo:hi], matrix, m.grouped[lo:hi], group * o_lora)
    start = book[at.W_OUT_B]
    matrix = m.narrow[start : start + m.groups * o_lora * hidden]
    matmul(m.grouped[lo:hi], matrix, m.y[lo:hi], FIRST)
    for r in range(lo, hi):
        write_back(m.stream[r], m.post[r], m.comb[r], m.y[r])
    read_stream(m, book[at.F_FFN_NORM], lo, hi)
    mix(m, book[at.F_HC_FFN], lo, hi)


@entry
def experts(m, layer, lo, hi):
    """Add routed and shared experts of m.x to the streams (3.9), in ascending expert order."""
    book = m.book[layer]
    hidden, inner, chosen = m.hidden, m.inner, m.chosen_experts
    rows, width = hi - lo, book[at.FFN_WIDTH]
    fused = m.ffn[lo:hi]
    start = book[at.W_FFN]
    matmul(m.x[lo:hi], m.narrow[start : start + hidden * width], fused, FIRST)
    bias = m.wide[book[at.F_BIAS] : book[at.F_BIAS] + m.experts]
    shared_at = book[at.AT_SHARED]
    for r in range(lo, hi):
        row = fused[r - lo]
        route(
            row[: m.experts], bias, m.routed_scale, m.order,
            m.picked[r], m.picked_weight[r],
        )  # fmt: skip
        gated(row[shared_at : shared_at + 2 * inner], m.limit, F32(1), m.expert_hidden[r - lo])
    start = book[at.W_SHARED_OUT]
    matmul(m.expert_hidden[:rows], m.narrow[start : start + inner * hidden], m.y[lo:hi], FIRST)
    for expert in range(m.experts):
        run_chosen(m, book, expert, lo, hi)
    for r in range(lo, hi):
        y = m.y[r]
        first = m.routed[0, r]
        for i in range(1, chosen):
            more = m.routed[i, r]
            for d in range(hidden):
                first[d] += more[d]
        for d in range(hidden):
            y[d] += first[d]
        write_back(m.stream[r], m.post[r], m.comb[r], y)


@part
def run_chosen(m, book, expert, lo, hi):
    """One routed expert on those of rows lo..hi that chose it, into m.routed."""
    keep_apart()
    count = 0
    for r in range(lo, hi):
        for i in range(m.chosen_experts):
            if m.picked[r, i] == expert:
                m.expert_rows[count] = r
                m.expert_places[count] = i
                m.expert_share[count] = m.picked_weight[r, i]
                copy(m.x[r], m.expert_in[count])
                count += 1
    if count == 0:
        return
    hidden, inner = m.hidden, m.inner
    start = book[at.W_EXPERTS] + expert * 3 * hidden * inner
    middle = start + 2 * hidden * inner
    run_expert(
        m.expert_in[:count],
        m.narrow[start:middle],
        m.narrow[middle : middle + inner * hidden],
        m.limit,
        m.expert_share,
        m.expert_both[:count],
        m.expert_hidden[:count],
        m.expert_out[:count],
    )
    for i in range(count):
        copy(m.expert_out[i], m.routed[m.expert_places[i], m.expert_rows[i]])


@entry
def finish(m, wanted, lo, logits):
    """logits[i] = the head of row wanted[i]: last collapse, norm, product (3.2); [n, padded V].

    lo: a row no later than the first of them; the rows from it on lend their room.
    """
    for i in range(wanted.size):
        r = wanted[i]
        collapse(m.stream[r], m.pre[r], m.y[lo + i])
        rms_norm(m.y[lo + i], m.final_norm, m.eps, m.x[lo + i])
    matmul(m.x[lo : lo + wanted.size], m.head_matrix, logits, FIRST)
