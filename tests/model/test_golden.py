"""Golden outputs of the tiny checkpoint: model.md 8.3 (`golden`) and tiny_kv_golden.json (`kv`).

Lists must be equal; numbers within 2e-4, for the whole prompt and for every chunking tried.
"""

from __future__ import annotations

import pytest
import torch
from running import PROMPT, close, greedy, run

from deodar.model import block
from deodar.model.reference import Reference

CHUNKINGS = [(24,), (1,), (2,), (3,), (5, 13, 6), (7,), (8,), (9,), (23, 1), (1, 22, 1)]
ARGMAX = [
    61, 131, 313, 63, 119, 161, 489, 64, 216, 84, 84, 416, 470, 291, 260, 183, 453, 55, 382, 41,
    69, 40, 269, 349,
]  # fmt: skip
CONTINUATION = [349, 255, 467, 394, 353, 109, 109, 326, 111, 107, 313]
STALE_CONTINUATION = [349, 133, 182, 85, 114, 128, 176, 402, 267, 182]
LOGITS = {
    0: [-0.60211, 0.40501, 0.68612, 2.98108, -2.90456, 1.20621, 1.03151, -1.73877],
    10: [1.503, -0.21084, -0.2657, 0.33105, 0.29378, -1.28732, 1.14573, -0.03727],
    23: [-2.48268, 0.39615, 1.14579, -0.72608, -1.03021, 0.74945, -1.41505, -0.68864],
}
DRAFTS = {
    24: (255, [393, 388, 434, 388, 434], [3.03035, -1.22879, 0.47241, 2.5544, 4.94941]),
    25: (467, [49, 308, 308, 308, 308], [-6.593, -1.28049, -0.14194, 2.20502, 1.93188]),
    26: (394, [434, 244, 244, 244, 361], [7.17147, 1.65077, 1.45181, 0.43195, -1.8264]),
    27: (353, [69, 184, 451, 451, 451], [-4.61675, -2.48461, -5.12404, -6.17445, -6.13419]),
    33: (313, [168, 388, 442, 509, 509], [-9.47444, -10.47107, -8.68482, -7.3423, -5.99866]),
}
CHOSEN = {
    2: ([3, 4, 6, 7, 8, 9], [0, 1, 8, 12, 13, 15]),
    4: ([1, 2, 3, 4, 5, 6], [7, 8, 11, 12, 16, 19]),
    6: ([0, 1, 4, 6, 10, 12], [4, 11, 12, 19, 23, 33]),
    8: ([8, 9, 10, 12, 13, 15], [12, 13, 14, 15, 33, 34]),
}


@pytest.mark.parametrize("sizes", CHUNKINGS, ids=str)
def test_logits_and_argmax(golden: Reference, sizes: tuple[int, ...]) -> None:
    _, logits, _ = run(golden, PROMPT[:24], sizes)
    for position, expected in LOGITS.items():
        close(logits[position, :8], expected)
    assert logits.argmax(-1).tolist() == ARGMAX


def test_taps_magnitudes_and_engram_rows(golden: Reference) -> None:
    (result,), _, _ = run(golden, PROMPT[:24])
    close(result.taps[23, :4], [6.43113, -3.00306, -3.15624, 5.29251])
    close(
        result.magnitudes[:, 23],
        [0.80112, 2.14693, 2.36703, 2.51614, 2.82405, 3.14603, 3.36258, 3.55151, 3.74099, 3.78261],
    )
    rows = result.engram_rows
    assert rows[1][[0, 23]].tolist() == [
        [35, 194, 305, 419, 501, 544],
        [59, 159, 242, 398, 433, 615],
    ]
    assert rows[4][[0, 23]].tolist() == [
        [101, 175, 269, 495, 571, 774],
        [114, 152, 309, 443, 635, 722],
    ]


@pytest.mark.parametrize("sizes", [(24,), (5, 13, 6)], ids=str)
def test_greedy_continuation_and_drafts(golden: Reference, sizes: tuple[int, ...]) -> None:
    _, logits, state = run(golden, PROMPT[:24], sizes)
    tokens = [int(logits[-1].argmax())]
    for position in range(24, 34):
        tokens += greedy(golden, state, tokens[-1], 1)[1:]
        if position in DRAFTS:
            next_id, drafts, confidence = DRAFTS[position]
            assert tokens[-1] == next_id
            draft = golden.draft(state, next_id)
            assert draft.tokens.tolist() == drafts
            close(draft.confidence, confidence)
    assert tokens == CONTINUATION


@pytest.mark.parametrize("sizes", [(40,), (1,), (21, 19)], ids=str)
def test_chosen_entries(golden: Reference, sizes: tuple[int, ...]) -> None:
    results, _, _ = run(golden, PROMPT, sizes)
    for layer, (at_20, at_39) in CHOSEN.items():
        chosen = torch.cat([r.chosen[layer] for r in results])
        assert chosen[[20, 39]].tolist() == [at_20, at_39]
    blocks = torch.cat([r.candidates for r in results])[[20, 39]].tolist()
    assert blocks == [[2, 3, 5], [3, 8, 9]]  # entries 8-15 and 20; 12-15 and 32-39


@pytest.mark.parametrize("sizes", [(24,), (1,), (8, 3, 13)], ids=str)
def test_image_mask(golden: Reference, sizes: tuple[int, ...]) -> None:
    mask = [5 <= i <= 11 for i in range(24)]
    results, logits, _ = run(golden, PROMPT[:24], sizes, mask)
    close(
        logits[23, :8],
        [-2.46347, -0.99604, 1.23944, -0.71814, -1.81151, 0.67743, -1.36886, -1.31956],
    )
    assert logits.argmax(-1)[18:].tolist() == [494, 41, 285, 175, 247, 202]
    rows = [[r for result in results for r in result.engram_rows[k].tolist()] for k in (1, 4)]
    assert rows[0][12] == [55, 122, 228, 374, 512, 544]
    assert rows[1][12] == [18, 163, 356, 529, 632, 751]


def test_stale_slot_reads_differently(golden: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    """7a: one slot of index keys, set by whoever last produced a key. We never read so."""
    slot: list[int] = []
    write, own = block.write_memory, block.index_memory

    def write_and_set(x, layer, w, call, state):  # type: ignore[no-untyped-def]
        before = state.memories[layer].entries.shape[0]
        write(x, layer, w, call, state)
        if state.memories[layer].entries.shape[0] > before:
            slot[:] = [layer]

    _, logits, state = run(golden, PROMPT[:24])
    token, start = int(logits[-1].argmax()), state.copy()
    assert greedy(golden, state, token, 10) == CONTINUATION
    slot[:] = [6]
    monkeypatch.setattr(block, "write_memory", write_and_set)
    monkeypatch.setattr(block, "index_memory", lambda _layer, c, s: own(slot[0], c, s))
    assert greedy(golden, start, token, 9) == STALE_CONTINUATION


@pytest.mark.parametrize("sizes", [(40,), *CHUNKINGS[1:]], ids=str)
def test_kv_golden(kv: Reference, kv_cases: list[dict], sizes: tuple[int, ...]) -> None:
    for case in kv_cases:
        _, logits, state = run(kv, case["ids"], sizes)
        assert logits.argmax(-1).tolist() == case["argmax"]
        for position, expected in case["logits_first8"].items():
            close(logits[int(position), :8], expected)
        assert int(logits[-1].argmax()) == case["next"]
        draft = kv.draft(state, case["next"])
        assert draft.tokens.tolist() == case["drafts"]
        close(draft.confidence, case["confidence"])
