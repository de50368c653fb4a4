"""Exact resume: the recursion against the information-flow oracle and the published numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from flow import is_exact, simulate
from hypothesis import given, settings
from hypothesis import strategies as st

from deodar.cache.resume import (
    LayerPlan,
    Resume,
    Rules,
    Saved,
    choose_resume,
    encoder_exact_from,
    rows_without_trim,
)
from deodar.config import V4_1_FLASH

RELEASED = LayerPlan.from_config(V4_1_FLASH)


def share(tokens: int) -> float:
    resume = choose_resume(RELEASED, prompt_tokens=tokens)
    return resume.layer_rows / rows_without_trim(RELEASED, tokens)


def test_released_trapezoid() -> None:
    resume = choose_resume(RELEASED, prompt_tokens=8192)
    rows = [8192 - start for start in resume.layer_starts]
    assert resume.kind == "cold"
    assert rows[:20] == [8192] * 20
    assert (rows[20], rows[38], rows[39]) == (2414, 128, 1)
    assert sum(rows[20:]) == 24_150
    assert RELEASED.decoder_reach_tokens == 2541


def test_released_shares_of_the_full_count() -> None:
    assert share(8192) == pytest.approx(0.574, abs=5e-4)
    assert share(32_000) == pytest.approx(0.519, abs=5e-4)
    assert share(32_768) == pytest.approx(0.5184, abs=5e-5)
    assert share(8192) <= 0.5 + 0.08
    assert share(32_768) <= 0.5 + 0.03


def test_released_halo() -> None:
    """The windows of all encoder layers at H cost 26,690 keyed rows, from H - 2,541 on."""
    hit = 20_000
    resume = choose_resume(RELEASED, prompt_tokens=hit + 5000, hit_tokens=hit)
    assert resume.kind == "halo"
    starts = resume.layer_starts[:20]
    assert starts == tuple(hit - 127 * (19 - layer) for layer in range(20))
    # Layer l needs keys for 127 rows below its first row, layer 0 from embeddings; a whole ring
    # has one row more.
    keyed = [hit - (start - 127) + 1 for start in starts]
    assert sum(keyed) == 26_690
    assert max(keyed) == 2541
    assert hit - resume.first_row == 2540


def test_released_halo_reaches_below_the_hit_for_a_short_suffix() -> None:
    resume = choose_resume(RELEASED, prompt_tokens=20_050, hit_tokens=20_000)
    need = 20_050 - 2541
    assert resume.layer_starts[19] == need
    assert resume.layer_starts[0] == need - 127 * 19
    assert resume.replayed_tokens == 20_000 - (need - 127 * 20)


@pytest.mark.parametrize(("position", "usable"), [(7459, True), (7460, False)])
def test_encoder_snapshot_needs_the_decoders_reach_above_it(position: int, usable: bool) -> None:
    saved = Saved("encoder", position, 4)
    resume = choose_resume(RELEASED, prompt_tokens=10_000, hit_tokens=9999, saved=[saved])
    assert (resume.snapshot_id == 4) is usable
    assert resume.kind == ("encoder" if usable else "halo")


def test_full_snapshot_costs_the_suffix_and_no_more_than_the_trapezoid() -> None:
    saved = [Saved("full", 1500, 1)]
    short = choose_resume(RELEASED, prompt_tokens=1550, hit_tokens=1500, saved=saved)
    assert short.layer_rows == 50 * 40 - sum(max(0, 50 - (1 + 127 * k)) for k in range(20))
    long = choose_resume(RELEASED, prompt_tokens=9500, hit_tokens=1500, saved=saved)
    assert long.layer_rows == 8000 * 20 + 24_150


def test_continued_conversation_runs_at_most_15_percent() -> None:
    cold = choose_resume(RELEASED, prompt_tokens=1550).layer_rows
    warm = choose_resume(
        RELEASED, prompt_tokens=1550, hit_tokens=1500, saved=[Saved("full", 1500)]
    ).layer_rows
    assert warm <= 0.15 * cold


def test_the_smaller_count_wins() -> None:
    saved = [Saved("full", 3000, 1), Saved("encoder", 8192, 2)]
    far = choose_resume(RELEASED, prompt_tokens=12_000, hit_tokens=11_000, saved=saved)
    near = choose_resume(RELEASED, prompt_tokens=10_000, hit_tokens=9500, saved=saved)
    assert far.snapshot_id == 2
    assert near.kind == "halo"  # 8192 lies above 10,000 - 2,541 and 3,000 is far back
    assert near.layer_rows < 7000 * 20 + 24_150


def test_log_probabilities_bound_the_snapshots() -> None:
    saved = [Saved("full", 5000, 1), Saved("full", 4000, 2), Saved("encoder", 1000, 3)]
    resume = choose_resume(
        RELEASED, prompt_tokens=6000, hit_tokens=5999, first_logit_row=4500, saved=saved
    )
    assert resume.snapshot_id == 2
    assert resume.layer_starts[39] == 4500
    early = choose_resume(
        RELEASED, prompt_tokens=6000, hit_tokens=5999, first_logit_row=3540, saved=saved[2:]
    )
    assert early.kind == "encoder"
    late = choose_resume(
        RELEASED, prompt_tokens=6000, hit_tokens=5999, first_logit_row=3539, saved=saved[2:]
    )
    assert late.kind == "halo"


def test_branch_promotion_runs_the_trapezoid_at_the_branch_and_at_the_end() -> None:
    plain = choose_resume(RELEASED, prompt_tokens=20_000, hit_tokens=10_000)
    kept = choose_resume(RELEASED, prompt_tokens=20_000, hit_tokens=10_000, keep=(10_000,))
    extra = kept.layer_rows - plain.layer_rows
    first, second = kept.segments
    assert first.stop == 10_000
    assert second.layer_starts == tuple(max(10_000, s) for s in plain.layer_starts)
    assert first.layer_starts[38] == 10_000 - 128
    # One more trapezoid without its last row, and the encoder halo it needs.
    assert 24_150 - 20 < extra < 24_150 + 26_690 + 2541 * 20


def test_trim_off_runs_every_row_everywhere() -> None:
    off = Rules(trim="off")
    saved = [Saved("full", 700, 1), Saved("encoder", 64, 2)]
    cold = choose_resume(RELEASED, prompt_tokens=900, rules=off)
    assert cold.layer_rows == 900 * 40
    warm = choose_resume(RELEASED, prompt_tokens=900, hit_tokens=800, saved=saved, rules=off)
    assert (warm.snapshot_id, warm.layer_rows) == (1, 200 * 40)


def test_bounded_forms_are_marked_and_drop_short_hits() -> None:
    rules = Rules(trim="bounded", replay="bounded")
    resume = choose_resume(RELEASED, prompt_tokens=5000, hit_tokens=4000, rules=rules)
    assert not resume.exact
    assert set(resume.layer_starts[:20]) == {4000 - 128}
    assert set(resume.layer_starts[20:]) == {5000 - 128}
    assert resume.replayed_tokens == 128
    short = choose_resume(RELEASED, prompt_tokens=5000, hit_tokens=128, rules=rules)
    assert (short.hit_tokens, short.first_row) == (0, 0)
    assert choose_resume(RELEASED, prompt_tokens=5000, hit_tokens=128).exact


def test_chunks_see_a_suffix_of_rows_and_add_up() -> None:
    resume = choose_resume(RELEASED, prompt_tokens=5000, hit_tokens=3000, keep=(3000,))
    cuts = [resume.first_row, 2500, 3000, 3001, 4990, 5000]
    rows = 0
    for start, stop in zip(cuts, cuts[1:], strict=False):
        starts = resume.chunk_starts(start, stop)
        assert all(start <= s <= stop for s in starts)
        rows += sum(stop - s for s in starts)
    assert rows == resume.layer_rows
    with pytest.raises(ValueError, match="crosses the cut at 3000"):
        resume.chunk_starts(2999, 3001)


@pytest.mark.parametrize("field", ["first_logit_row", "hit_tokens"])
def test_positions_outside_the_prompt_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is 10, must be from 0 to 9"):
        choose_resume(RELEASED, prompt_tokens=10, **{field: 10})


# --- against the oracle --------------------------------------------------------------------------


@st.composite
def plans(draw: st.DrawFn) -> LayerPlan:
    """Small plans with the released structure: writers of ratio 2, then one, then the decoder."""
    layers = draw(st.integers(2, 7))
    start = draw(st.integers(1, layers - 1))
    encoder = draw(st.sets(st.integers(0, start - 1), max_size=2))
    last = draw(st.sampled_from((1, 1, 2)))
    writers = (*((layer, 2) for layer in sorted(encoder)), (start, last))
    return LayerPlan(num_layers=layers, window_tokens=draw(st.integers(2, 5)), writers=writers)


@st.composite
def cases(draw: st.DrawFn) -> tuple[LayerPlan, dict[str, object], Saved | None]:
    plan = draw(plans())
    tokens = draw(st.integers(1, 48))
    hit = draw(st.integers(0, tokens - 1))
    logits = draw(st.one_of(st.just(tokens - 1), st.integers(0, tokens - 1)))
    saved = None
    if hit and draw(st.booleans()):
        kind = draw(st.sampled_from(("full", "encoder")))
        saved = Saved(kind, draw(st.integers(1, hit)), 0)
    keep = (hit,) if hit and draw(st.booleans()) else ()
    arguments: dict[str, object] = {
        "prompt_tokens": tokens,
        "hit_tokens": hit,
        "first_logit_row": logits,
        "saved": [saved] if saved else [],
        "keep": keep,
        "rules": Rules(trim=draw(st.sampled_from(("exact", "exact", "off")))),
    }
    return plan, arguments, saved


def one_row_less(resume: Resume) -> list[Resume]:
    """Every way to feed one token less or to leave out the first row of one layer."""
    ways = [replace(resume, first_row=resume.first_row + 1)]
    for i, segment in enumerate(resume.segments):
        for layer, start in enumerate(segment.layer_starts):
            if start < segment.stop:
                starts = list(segment.layer_starts)
                starts[layer] += 1
                cut = list(resume.segments)
                cut[i] = replace(segment, layer_starts=tuple(starts))
                ways.append(replace(resume, segments=tuple(cut)))
    return ways


@settings(max_examples=600, deadline=None)
@given(cases())
def test_every_resume_is_exact_and_no_row_too_many(
    case: tuple[LayerPlan, dict[str, object], Saved | None],
) -> None:
    plan, arguments, saved = case
    resume = choose_resume(plan, **arguments)  # type: ignore[arg-type]
    used = saved if resume.snapshot_id is not None else None
    logits = arguments["first_logit_row"]
    assert isinstance(logits, int)
    assert is_exact(plan, resume, used, logits)
    if arguments["rules"] == Rules():
        for less in one_row_less(resume):
            assert not is_exact(plan, less, used, logits)


@settings(max_examples=200, deadline=None)
@given(cases())
def test_a_snapshot_is_passed_over_only_if_it_cannot_serve_or_costs_more(
    case: tuple[LayerPlan, dict[str, object], Saved | None],
) -> None:
    plan, arguments, saved = case
    resume = choose_resume(plan, **arguments)  # type: ignore[arg-type]
    without = choose_resume(plan, **{**arguments, "saved": []})  # type: ignore[arg-type]
    assert resume.layer_rows <= without.layer_rows
    if saved is not None and saved.kind == "full" and arguments["rules"] == Rules():
        logits = arguments["first_logit_row"]
        assert isinstance(logits, int)
        assert (
            (resume.snapshot_id is not None)
            or saved.position > logits
            or (resume.layer_rows < without.layer_rows + 1)
        )


@settings(max_examples=500, deadline=None)
@given(cases(), st.integers(1, 47))
def test_encoder_snapshots_are_taken_only_where_their_rings_are_exact(
    case: tuple[LayerPlan, dict[str, object], Saved | None], position: int
) -> None:
    plan, arguments, saved = case
    resume = choose_resume(plan, **{**arguments, "rules": Rules()})  # type: ignore[arg-type]
    used = saved if resume.snapshot_id is not None else None
    if position > resume.prompt_tokens:
        return
    keys = simulate(plan, resume, used).keys[: plan.decoder_start]
    exact = all(all(k[max(0, position - plan.window_tokens) : position]) for k in keys)
    if position >= encoder_exact_from(plan, resume):
        assert exact
