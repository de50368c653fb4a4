"""What the compiled forward pass reads and writes: plain arrays, in one `Machine` per thread.

`deodar.model.cpu` fills the groups below and assembles them; the kernels of this folder see one
object `m` with all their fields, because passing one pointer compiles and runs much faster than
passing sixty arrays. All matrices of a model lie packed in one array of bfloat16 bits (every stored
format widens to bfloat16 exactly), all float32 tensors in another, and one table, the book, says
for each layer where its tensors begin. So one compiled function serves every checkpoint, and a step
is one call.

Letters in shapes: S slots, L layers, R rows of a step, D hidden size, V vocabulary.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.experimental import structref
from numpy.typing import NDArray

from deodar.kernels.cpu.jit import entry

Floats = NDArray[np.float32]
Bits = NDArray[np.uint16]
Longs = NDArray[np.int64]
Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]

# Columns of the book: what a layer is ...
RATIO, ROPE, OWNS_MEMORY, ENTRIES_AT, OWNS_INDEX, ROLE, TAP, ENGRAM = range(8)
# ... widths of its fused products (padded to 16) and places of their parts ...
IN_WIDTH, QUERY_WIDTH, FFN_WIDTH = range(8, 11)
AT_KEY, AT_LATENT, AT_GATE, AT_INDEX_WEIGHT, AT_SHARED = range(11, 16)
# ... offsets in the bfloat16 array ...
W_IN, W_QUERY, W_OUT_A, W_OUT_B, W_INDEX_KEY, W_FFN, W_SHARED_OUT, W_EXPERTS, W_ENGRAM = range(
    16, 25
)
# ... and offsets in the float32 array.
F_HC_ATTN, F_HC_FFN, F_ATTN_NORM, F_FFN_NORM, F_Q_NORM, F_KEY_NORM, F_SINK = range(25, 32)
F_LATENT_NORM, F_INDEX_NORM, F_BIAS, F_ENGRAM_QK = range(32, 36)
# Of a layer's memory: entries in a page from ENTRIES_AT on, and its place among the unpaired rows.
PAGE_ENTRIES, UNPAIRED = range(36, 38)
BOOK_COLUMNS = 38

# Roles of an index source in the two-level choice (3.8).
ROLE_FREE, ROLE_PUBLISH, ROLE_RESTRICTED = range(3)

GROUP = 8  # neighbouring rows that score a page of index keys together
MIX_WIDTH = 32  # the 24 mixes, padded


class Sizes(NamedTuple):
    """Numbers of the configuration, and of this run."""

    hidden: int
    layers: int
    heads: int
    head_dim: int
    q_lora: int
    groups: int
    o_lora: int
    window: int
    ring: int
    index_key_bytes: int
    index_heads: int
    index_dim: int
    index_topk: int
    candidate_blocks: int
    candidate_block: int
    experts: int
    chosen_experts: int
    inner: int
    sinkhorn: int
    engram_width: int
    most_keys: int
    eps: np.float32
    hc_eps: np.float32
    limit: np.float32
    routed_scale: np.float32
    key_scale: np.float32
    index_scale: np.float32


class Weights(NamedTuple):
    """The model. book [L, BOOK_COLUMNS]; embed [V, D] and head (packed) are bfloat16 bits.

    cos, sin: [2, context, rope / 2]: plain, and YaRN for layers with a memory (3.4).
    """

    book: Longs
    narrow: Bits
    wide: Floats
    embed: Bits
    head_matrix: Bits
    final_norm: Floats
    cos: Floats
    sin: Floats


class State(NamedTuple):
    """What sequences keep between steps (4.3, 4.4), in the released bytes.

    rings: uint8 [S, L + draft blocks, ring, 528], window keys, position p at p mod ring. entries:
    uint8 [pages, entries of a page over all sources, 288]. index_keys: uint8 [pages, the same
    number * 68]; those of one source and page lie turned, [68, its entries], so that 16 keys are
    read at once. unpaired: [S, tokens, sources of ratio 2, 2, head_dim], (a, g) of position p at p
    mod tokens. history: [S, tokens], ids for Engram at p mod tokens, DEAD for image spans. taps:
    [S, n, taps * D], position p at p mod n, inputs of the target layers; n: the window and the rows
    of a step, or 0. keys_from: [S, L], first position whose window key may be read. tables: [S,
    pages of a sequence].
    """

    rings: Bytes
    entries: Bytes
    index_keys: Bytes
    unpaired: Floats
    history: Longs
    taps: Floats
    keys_from: Longs
    tables: Longs


class Batch(NamedTuple):
    """The rows of a step; a chunk's rows are consecutive. C: chunks, at most the slots.

    row_chunks, tokens, row_ids (what Engram hashes), slots, positions: [R]. stops, hits: [C], the
    position after the last row; tokens whose entries are there already. in_starts: [L, C], first
    position that is an input of a layer: from it on, window keys are in new_keys.
    """

    row_chunks: Longs
    tokens: Longs
    row_ids: Longs
    slots: Longs
    positions: Longs
    stops: Longs
    hits: Longs
    in_starts: Longs


class Work(NamedTuple):
    """Rows between the parts of a layer; what one part leaves for the next."""

    stream: Floats  # [R, 4, D]
    pre: Floats  # [R, 4], read weights of the next sublayer
    post: Floats  # [R, 4]
    comb: Floats  # [R, 16]
    x: Floats  # [R, D], input of a sublayer
    y: Floats  # [R, D], its output
    mixes: Floats  # [R, 32]
    fused: Floats  # [R, widest IN_WIDTH]
    ffn: Floats  # [R, widest FFN_WIDTH]
    low: Floats  # [R, q_lora]
    query: Floats  # [R, widest QUERY_WIDTH]
    new_keys: Bytes  # [R, 528], stored window keys of the layer
    new_values: Floats  # flat, [R, head_dim], what new_keys decode to
    head_rows: Floats  # [groups, R, heads per group * head_dim]
    grouped: Floats  # [R, groups * o_lora]
    chosen: Ints  # [R, index_topk]
    chosen_count: Longs  # [R]
    candidates: Bytes  # [R, blocks], 1 = may be chosen
    picked: Ints  # [R, chosen_experts], expert ids
    picked_weight: Floats  # [R, chosen_experts]
    routed: Floats  # [chosen_experts, R, D]
    engram: Floats  # [Engram layers, R, engram_width]
    engram_out: Floats  # [R, 5 * D]


class Scratch(NamedTuple):
    """Room for one thread: for one row's attention, and for one expert's rows."""

    scores: Floats  # [GROUP, most entries]
    order: NDArray[np.uint32]  # [most entries], sort keys of scores
    ids: Ints  # [same]
    tile: Floats  # flat, [index_dim, keys of a page]
    dots: Floats  # flat, [index_heads, keys of a page]
    latent: Floats  # [2 * head_dim]
    values: Floats  # flat, [most keys, head_dim]
    turned: Floats  # flat, [head_dim, heads padded to 16], the queries
    key_scores: Floats  # flat, [most keys, heads padded to 16]
    shares: Floats  # flat, [heads, most keys]
    head_out: Floats  # flat, [heads, head_dim]
    expert_rows: Longs  # [R]
    expert_places: Longs  # [R]
    expert_share: Floats  # [R]
    expert_in: Floats  # [R, D]
    expert_both: Floats  # [R, 2 * inner]
    expert_hidden: Floats  # [R, inner]
    expert_out: Floats  # [R, D]


GROUPS = (Sizes, Weights, State, Batch, Work, Scratch)


@structref.register
class MachineType(types.StructRef):
    """The compiler's view of `Machine`."""

    def __init__(self, fields: Any) -> None:
        super().__init__(fields)
        # The name goes into every symbol; spelled out it has 5,000 letters and doubles compilation.
        self.name = f"Machine_{hashlib.sha256(repr(fields).encode()).hexdigest()[:16]}"

    def preprocess_fields(self, fields: Any) -> Any:
        return tuple((name, types.unliteral(kind)) for name, kind in fields)


class Machine(structref.StructRefProxy):
    """All fields of all groups, by their names; opaque to Python."""


structref.define_proxy(Machine, MachineType, [field for group in GROUPS for field in group._fields])


@entry
def _assemble(fields):
    return Machine(*fields)


def assemble(
    sizes: Sizes, weights: Weights, state: State, batch: Batch, work: Work, scratch: Scratch
) -> Machine:
    """One object for the kernels; it shares the arrays, it does not copy them."""
    return _assemble((*sizes, *weights, *state, *batch, *work, *scratch))
