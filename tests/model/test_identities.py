"""Identities of model.md 10.1 that concern the whole model, on the tiny checkpoint.

    1   test_any_chunking_is_the_whole_prefill        14  test_unlimited_candidates_change_nothing
    2   test_golden.test_stale_slot_reads_differently 16  test_a_dead_token_hides_what_is_older
    8   test_first_block_reads_copy_zero              17  test_image_flags
    13  test_few_entries_are_all_chosen               18  test_drafting_changes_nothing

Identity 3 (trapezoid) belongs to the engine that skips rows. The tiny window is 8, so the chunk
sizes around it are 7, 8, 9.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from running import PROMPT, greedy, run

from deodar.checkpoint.loader import Checkpoint
from deodar.errors import ConfigError, RequestError
from deodar.model import hyper, indexer, reference
from deodar.model.numerics import numerics
from deodar.model.reference import Reference


@pytest.mark.parametrize(
    "sizes", [(1,), (2,), (3,), (7,), (8,), (9,), (13, 5, 4), (39, 1)], ids=str
)
def test_any_chunking_is_the_whole_prefill(golden: Reference, sizes: tuple[int, ...]) -> None:
    (whole,), logits, state = run(golden, PROMPT)
    parts, cut_logits, cut_state = run(golden, PROMPT, sizes)
    torch.testing.assert_close(cut_logits, logits, atol=1e-4, rtol=0)
    torch.testing.assert_close(torch.cat([p.taps for p in parts]), whole.taps, atol=1e-4, rtol=0)
    for layer, chosen in whole.chosen.items():
        assert torch.equal(torch.cat([p.chosen[layer] for p in parts]), chosen)
    assert cut_state.length == state.length == 40
    assert cut_state.history.tolist() == state.history.tolist()
    for layer, window in state.windows.items():
        torch.testing.assert_close(cut_state.windows[layer], window, atol=1e-4, rtol=0)


def test_long_inputs_run_in_pieces(golden: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = [5 <= i <= 11 for i in range(40)]
    (whole,), _, _ = run(golden, PROMPT, image_mask=mask)
    monkeypatch.setattr(reference, "ROWS_AT_ONCE", 7)
    (cut,), _, state = run(golden, PROMPT, image_mask=mask)
    assert state.length == 40
    for name in ("logits", "taps", "magnitudes"):
        torch.testing.assert_close(getattr(cut, name), getattr(whole, name), atol=1e-4, rtol=0)
    assert torch.equal(cut.candidates, whole.candidates)
    assert all(torch.equal(cut.chosen[k], v) for k, v in whole.chosen.items())
    assert all((cut.engram_rows[k] == v).all() for k, v in whole.engram_rows.items())


def test_first_block_reads_copy_zero(golden: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first read of a pass has pre (1, 0, 0, 0), and four equal copies of the embedding."""
    seen = []
    read = hyper.read

    def recorded(stream: torch.Tensor, pre: torch.Tensor, numerics: object) -> torch.Tensor:
        seen.append((stream.clone(), pre.clone()))
        return read(stream, pre, numerics)

    monkeypatch.setattr(hyper, "read", recorded)
    run(golden, PROMPT[:3])
    stream, pre = seen[0]
    e = golden.embed[PROMPT[:3]]
    assert torch.equal(pre, torch.tensor([[1.0, 0, 0, 0]]).expand(3, 4))
    assert all(torch.equal(stream[:, copy], e) for copy in range(4))
    assert torch.equal(read(stream, pre, golden.numerics), e)
    assert not torch.equal(seen[1][1], pre)  # later sublayers read what the model made
    any_pre = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).expand(3, 4)
    torch.testing.assert_close(read(stream, any_pre, golden.numerics), e)


def test_few_entries_are_all_chosen(golden: Reference) -> None:
    (result,), _, _ = run(golden, PROMPT)
    for layer, chosen in result.chosen.items():
        ratio, top_k = golden.config.ratio(layer), golden.config.index_topk
        for position in range(40):
            visible = (position + 1) // ratio
            if visible <= top_k:
                expected = [*range(visible), *[-1] * (top_k - visible)]
                assert chosen[position].tolist() == expected
    assert (result.chosen[2][0] == -1).all()


def test_unlimited_candidates_change_nothing(
    golden: Reference, tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    (limited,), _, _ = run(golden, PROMPT)
    free = Reference(tiny, "golden")
    free.config = dataclasses.replace(golden.config, candidate_topk_blocks=10)
    (unlimited,), _, _ = run(free, PROMPT)
    monkeypatch.setattr(indexer, "inside", lambda blocks, entries, _: torch.ones(1).bool())
    (without,), logits, _ = run(golden, PROMPT)
    assert torch.equal(unlimited.logits, logits)
    assert torch.equal(unlimited.chosen[8], without.chosen[8])
    assert not torch.equal(unlimited.chosen[8], limited.chosen[8])


def test_a_dead_token_hides_what_is_older(golden: Reference) -> None:
    mask = [i == 10 for i in range(24)]
    other = [*PROMPT[:7], 99, 98, 97, *PROMPT[10:24]]
    (a,), _, _ = run(golden, PROMPT[:24], image_mask=mask)
    (b,), _, _ = run(golden, other, image_mask=mask)
    for layer, rows in a.engram_rows.items():
        assert (rows[10:] == b.engram_rows[layer][10:]).all()
        assert (rows[7:10] != b.engram_rows[layer][7:10]).any()


def test_image_flags(golden: Reference) -> None:
    (text,), plain, _ = run(golden, PROMPT[:24])
    _, off, _ = run(golden, PROMPT[:24], image_mask=[False] * 24)
    assert torch.equal(plain, off)
    (flagged,), on, _ = run(golden, PROMPT[:24], image_mask=[i == 10 for i in range(24)])
    torch.testing.assert_close(on[:10], plain[:10], atol=1e-4, rtol=0)
    assert not torch.equal(on[10], plain[10])
    changed = (flagged.engram_rows[1] != text.engram_rows[1]).any(-1).nonzero()[0].tolist()
    assert changed == [10, 11, 12, 13]


def test_drafting_changes_nothing(golden: Reference) -> None:
    _, logits, state = run(golden, PROMPT[:24])
    token, quiet = int(logits[-1].argmax()), state.copy()
    plain = greedy(golden, quiet, token, 4)
    drafted = [token]
    for _ in range(4):
        golden.draft(state, drafted[-1])
        golden.draft(state, 7)
        drafted += greedy(golden, state, drafted[-1], 1)[1:]
    assert drafted == plain


def test_a_copied_state_is_a_snapshot(kv: Reference) -> None:
    """A rejected draft leaves nothing behind when the caller goes back to the copy (4.5)."""
    _, _, state = run(kv, PROMPT[:23])
    snapshot = state.copy()
    kv.forward([1, 2, 3, 4], state)
    back = kv.forward(PROMPT[23:], snapshot).logits
    _, logits, _ = run(kv, PROMPT, (23, 17))
    assert torch.equal(back, logits[23:])


def test_draft_from_taps_of_a_whole_forward(golden: Reference) -> None:
    (whole,), _, _ = run(golden, PROMPT)
    _, _, state = run(golden, PROMPT[:30])
    at = golden.draft_at(whole.taps[:30], 29, 5)
    direct = golden.draft(state, 5)
    assert torch.equal(at.tokens, direct.tokens)
    torch.testing.assert_close(at.logits, direct.logits, atol=1e-4, rtol=0)


def test_hidden_memory_leaves_the_window(golden: Reference) -> None:
    state = golden.new_state()
    hidden = golden.forward(PROMPT, state, hide_memory=True)
    _, logits, shown = run(golden, PROMPT)
    assert torch.equal(hidden.logits[0], logits[0]) is False  # ratio 1 sees itself in memory
    assert state.memories[2].entries.shape == shown.memories[2].entries.shape
    other = golden.forward([9, 8, 7, *PROMPT[3:]], golden.new_state(), hide_memory=True)
    assert not torch.equal(hidden.logits, other.logits)


def test_faithful_rounds_to_bf16_and_stays_near(golden: Reference, faithful: Reference) -> None:
    """No golden exists for `faithful`: the random network is chaotic. Shape of the error only."""
    (a,), _, _ = run(golden, PROMPT[:24])
    (b,), _, state = run(faithful, PROMPT[:24])
    assert torch.equal(b.taps.bfloat16().float(), b.taps)
    assert torch.equal(state.windows[3].bfloat16().float(), state.windows[3])
    error = (a.logits[0] - b.logits[0]).norm() / a.logits[0].norm()
    assert 1e-3 < error < 0.5
    first = (a.magnitudes[0] - b.magnitudes[0]).abs() / a.magnitudes[0]
    assert first.mean() < 0.02


def test_bad_input_is_named(golden: Reference) -> None:
    state = golden.new_state()
    with pytest.raises(RequestError, match=r"ids\[1\] is 512, must be from 0 to 511"):
        golden.forward([1, 512], state)
    with pytest.raises(RequestError, match=r"ids\[0\] is -1"):
        golden.forward([-1], state)
    with pytest.raises(RequestError, match="at least 1 token"):
        golden.forward([], state)
    with pytest.raises(RequestError, match="image_mask has 1 values"):
        golden.forward([1, 2], state, [True])
    with pytest.raises(RequestError, match="has 0"):
        golden.draft(state, 1)
    with pytest.raises(ConfigError, match="'exact', must be one of golden, kv, faithful"):
        numerics("exact")
    assert state.length == 0
