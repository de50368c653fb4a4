"""The cache's verbs on whole stories, with the released plan; nothing is computed here."""

from __future__ import annotations

import pytest

from deodar.cache.geometry import Geometry
from deodar.cache.lease import Lease, Parked, Wait
from deodar.cache.manager import CacheManager
from deodar.cache.pages import AccountingError
from deodar.cache.prefix import ImageSpan, prefix_keys
from deodar.cache.resume import LayerPlan, Rules
from deodar.cache.snapshots import SnapshotStore
from deodar.config import V4_1_FLASH

PLAN = LayerPlan.from_config(V4_1_FLASH)
GEOMETRY = Geometry.from_config(V4_1_FLASH)
FULL, ENCODER = GEOMETRY.full_ring_bytes, GEOMETRY.encoder_ring_bytes


def new_manager(
    *,
    pages: int = 1000,
    slots: int = 8,
    snapshots: int = 20,
    host: int = 0,
    rules: Rules | None = None,
) -> CacheManager:
    store = SnapshotStore(
        full_bytes=FULL,
        encoder_bytes=ENCODER,
        device_budget_bytes=snapshots * FULL,
        host_budget_bytes=host * FULL,
    )
    return CacheManager(
        PLAN, GEOMETRY, store, total_pages=pages, total_slots=slots, rules=rules or Rules()
    )


def text(start: int, tokens: int) -> tuple[int, ...]:
    return tuple(range(start, start + tokens))


def lease_of(got: Lease | Wait | None) -> Lease:
    assert isinstance(got, Lease)
    return got


def run_prompt(manager: CacheManager, lease: Lease, chunk: int = 8192) -> None:
    while lease.computed_tokens < lease.prompt_tokens:
        start = lease.computed_tokens
        stop = min(start + chunk, lease.next_cut(start))
        assert manager.extend(lease, stop) is not None
        manager.commit(lease, stop)


def serve(manager: CacheManager, keys: tuple[int, ...], *, salt: str = "") -> Lease:
    """A whole request without generated tokens; returns its lease, released."""
    lease = lease_of(manager.admit(keys, salt=salt))
    run_prompt(manager, lease)
    manager.release(lease)
    manager.check()
    return lease


def test_the_same_prompt_again_runs_one_row() -> None:
    manager = new_manager()
    serve(manager, text(0, 3001))
    again = lease_of(manager.admit(text(0, 3001)))
    assert (again.resume.kind, again.resume.position) == ("full", 3000)
    assert again.resume.layer_rows == 40
    assert again.cached_tokens == 3000


def test_continued_conversation_runs_its_new_tokens() -> None:
    manager = new_manager()
    cold = serve(manager, text(0, 1500))
    lease = lease_of(manager.admit(text(0, 1499) + text(90_000, 51)))
    assert (lease.resume.kind, lease.resume.position) == ("full", 1499)
    assert lease.resume.layer_rows <= 0.15 * cold.resume.layer_rows


def test_the_third_user_of_a_shared_prefix_pays_for_his_suffix() -> None:
    manager, shared = new_manager(), text(0, 1500)
    first = serve(manager, shared + text(10_000, 60))
    second = serve(manager, shared + text(20_000, 60))
    third = serve(manager, shared + text(30_000, 60))
    assert first.resume.keep == ()
    assert second.resume.keep == (1500,)
    assert (third.resume.kind, third.resume.position) == ("full", 1500)
    assert third.cached_tokens == 1500
    assert third.resume.layer_rows <= 0.15 * first.resume.layer_rows


def test_a_long_shared_prefix_starts_from_an_encoder_snapshot() -> None:
    manager, shared = new_manager(), text(0, 20_000)
    serve(manager, shared)
    lease = lease_of(manager.admit(shared + text(50_000, 3000)))
    assert lease.resume.kind == "full"
    other = lease_of(manager.admit(shared[:19_900] + text(60_000, 3000)))
    # The snapshot kept at 19,900 needs encoder rows from before 16,384 on, but for this one.
    assert (other.resume.kind, other.resume.position) == ("encoder", 16_384)
    assert other.resume.keep == (19_900,)


def test_encoder_snapshots_alone_serve_long_suffixes() -> None:
    """Room for two encoder snapshots and for no full one: nothing is promoted either."""
    manager, shared = new_manager(), text(0, 20_000)
    manager.snapshots.device_budget_bytes = 2 * ENCODER
    serve(manager, shared)
    far = lease_of(manager.admit(shared[:8300] + text(70_000, 3000)))
    assert (far.resume.kind, far.resume.position, far.resume.keep) == ("encoder", 8192, ())
    near = lease_of(manager.admit(shared[:8300] + text(80_000, 2000)))
    assert near.resume.kind == "halo"


def test_a_salt_separates_tenants() -> None:
    """D02: only repeats with the same salt report cached tokens."""
    manager = new_manager()
    for salt in ("a", "b", ""):
        assert serve(manager, text(0, 2000), salt=salt).cached_tokens == 0
        assert serve(manager, text(0, 2000), salt=salt).cached_tokens == 1999


def test_a_hit_within_the_window_is_not_worth_taking_but_its_pages_are_shared() -> None:
    """D05: without a snapshot, every row of a short hit would run again."""
    manager = new_manager(snapshots=0)
    serve(manager, text(0, 128))
    lease = lease_of(manager.admit(text(0, 128) + text(500, 100)))
    assert (lease.resume.kind, lease.cached_tokens) == ("cold", 0)
    assert (lease.resume.replayed_tokens, lease.shared_pages) == (128, 1)


def test_the_last_partial_page_is_copied_to_the_token() -> None:
    manager = new_manager()
    serve(manager, text(0, 300))
    lease = lease_of(manager.admit(text(0, 277) + text(900, 10)))
    (copy,) = lease.copies
    assert (lease.resume.hit_tokens, lease.shared_pages, copy.tokens) == (277, 2, 277 - 256)
    assert copy.target == lease.pages[2] != copy.source


def test_looking_comes_before_taking() -> None:
    """D20: a full cache whose oldest entry is asked for again hits in full."""
    manager = new_manager(pages=24)
    serve(manager, text(0, 1024))
    serve(manager, text(5000, 1024))
    assert manager.pool.free_pages + manager.pool.idle_pages == 24
    lease = lease_of(manager.admit(text(0, 1024) + text(9000, 1900)))
    assert (lease.resume.hit_tokens, lease.shared_pages) == (1024, 8)
    manager.check()


def test_parallel_requests_for_one_prefix_wait_for_it() -> None:
    """D20: many parallel requests for the same prefix prefill it once."""
    manager = new_manager()
    leader = lease_of(manager.admit(text(0, 9000)))
    assert manager.admit(text(0, 9000)) == Wait("prefix", leader.lease_id)
    assert isinstance(manager.admit(text(0, 9000), salt="other"), Lease)
    run_prompt(manager, leader)
    follower = lease_of(manager.admit(text(0, 9000)))
    assert follower.resume.layer_rows == 40


def test_waiting_ends_when_the_leader_is_aborted() -> None:
    manager = new_manager()
    leader = lease_of(manager.admit(text(0, 9000)))
    assert isinstance(manager.admit(text(0, 9000)), Wait)
    manager.release(leader, keep=False)
    assert lease_of(manager.admit(text(0, 9000))).resume.kind == "cold"


def test_two_images_with_the_same_token_ids_do_not_share() -> None:
    ids = text(0, 200) + (129264,) * 300 + text(1000, 50)
    keys = [prefix_keys(ids, [ImageSpan(200, 300, bytes([n]) * 16)]) for n in (1, 2)]
    manager = new_manager()
    serve(manager, keys[0])
    lease = lease_of(manager.admit(keys[1]))
    assert lease.resume.hit_tokens == 200
    assert min(keys[0][200:500]) < 0
    assert len(set(keys[0][200:500])) == 300


def test_reuse_stops_at_the_mark() -> None:
    """Two kernel families: generated text is not reused as prompt (design D3)."""
    manager = new_manager()
    lease = lease_of(manager.admit(text(0, 400), reuse_tokens=400))
    run_prompt(manager, lease)
    for position in range(400, 600):
        assert manager.extend(lease, position + 1) is not None
        manager.commit(lease, position + 1 if position > 400 else 400, (position,))
    assert manager.release(lease) is None
    following = lease_of(manager.admit(text(0, 700)))
    assert following.resume.hit_tokens == 400
    assert following.resume.position == 400


def test_without_a_mark_the_turn_end_is_kept() -> None:
    manager = new_manager()
    lease = lease_of(manager.admit(text(0, 400)))
    run_prompt(manager, lease)
    manager.commit(lease, 400, (400,))
    for position in range(400, 600):
        assert manager.extend(lease, position + 1) is not None
        manager.commit(lease, position + 1, (position + 1,))
    save = manager.release(lease)
    assert save is not None
    assert (save.kind, save.position) == ("full", 600)
    following = lease_of(manager.admit(text(0, 700)))
    assert (following.resume.position, following.restore) == (600, save.snapshot_id)


def test_admission_is_all_or_nothing() -> None:
    manager = new_manager(pages=10, slots=2)
    big = lease_of(manager.admit(text(0, 1100)))
    assert manager.admit(text(5000, 300)) is None
    assert manager.slots.held_pages == 1
    manager.check()
    small = lease_of(manager.admit(text(5000, 128)))
    assert manager.admit(text(6000, 1)) is None
    for lease in (big, small):
        manager.release(lease, keep=False)
    assert manager.pool.free_pages == 10


def test_reserve_takes_what_the_answer_will_need() -> None:
    manager = new_manager(pages=10)
    lease = lease_of(manager.admit(text(0, 100), reserve_tokens=1000))
    assert len(lease.pages) == 8
    assert manager.admit(text(5000, 100), reserve_tokens=300) is None


def test_extend_without_room_changes_nothing() -> None:
    manager = new_manager(pages=2)
    lease = lease_of(manager.admit(text(0, 200)))
    assert manager.extend(lease, 256) is not None
    assert manager.extend(lease, 257) is None
    assert len(lease.pages) == 2


def test_a_lease_is_released_once() -> None:
    manager = new_manager()
    lease = lease_of(manager.admit(text(0, 10)))
    manager.release(lease, keep=False)
    with pytest.raises(AccountingError, match="lease 0 was released already"):
        manager.release(lease)
    with pytest.raises(AccountingError, match="was released already"):
        manager.extend(lease, 10)


def test_commit_beyond_what_is_known_is_refused() -> None:
    manager = new_manager()
    lease = lease_of(manager.admit(text(0, 10)))
    with pytest.raises(AccountingError, match="computed_tokens is 11, must be from 0 to 10"):
        manager.commit(lease, 11)


def test_parked_request_goes_on_without_a_row_again() -> None:
    manager = new_manager()
    lease = lease_of(manager.admit(text(0, 5000)))
    manager.commit(lease, 3000)
    parked = manager.park(lease)
    assert isinstance(parked, Parked)
    assert (manager.pool.held_pages, manager.slots.held_pages) == (0, 0)
    again = lease_of(manager.unpark(parked))
    assert (again.computed_tokens, again.restore) == (3000, parked.save.snapshot_id)
    assert again.resume == lease.resume
    run_prompt(manager, again)
    manager.release(again)
    manager.check()


def test_parked_state_that_was_evicted_is_reported() -> None:
    manager = new_manager(pages=40)
    lease = lease_of(manager.admit(text(0, 2000)))
    manager.commit(lease, 1500)
    parked = manager.park(lease)
    assert parked is not None
    serve(manager, text(9000, 39 * 128))
    with pytest.raises(LookupError, match="the state of lease 0 was evicted"):
        manager.unpark(parked)
    manager.check()


def test_a_spilled_snapshot_comes_back_before_the_request_starts() -> None:
    manager = new_manager(snapshots=1, host=1)
    serve(manager, text(0, 2000))
    spilled = manager.snapshots.next_spill()
    assert spilled is not None
    manager.snapshots.finish(spilled, ok=True)
    serve(manager, text(7000, 2000))
    assert manager.snapshots.place(spilled) == "host"
    waiting = manager.admit(text(0, 2050))
    assert waiting == Wait("snapshot", spilled)
    manager.snapshots.finish(spilled, ok=True)
    assert lease_of(manager.admit(text(0, 2050))).restore == spilled


def test_a_damaged_spill_is_not_loaded_twice() -> None:
    """D22: a miss that repeats does not load the same useless file twice."""
    manager = new_manager(snapshots=1, host=1)
    serve(manager, text(0, 2000))
    spilled = manager.snapshots.next_spill()
    assert spilled is not None
    manager.snapshots.finish(spilled, ok=True)
    serve(manager, text(7000, 2000))
    assert isinstance(manager.admit(text(0, 2050)), Wait)
    manager.snapshots.finish(spilled, ok=False)
    assert spilled in manager.take_dropped()
    assert lease_of(manager.admit(text(0, 2050))).restore is None


def test_log_probabilities_reuse_pages_and_run_their_rows() -> None:
    manager = new_manager()
    serve(manager, text(0, 6000))
    lease = lease_of(manager.admit(text(0, 6000), first_logit_row=5000))
    assert lease.resume.layer_starts[-1] == 5000
    assert lease.resume.kind == "halo"
    assert lease.shared_pages == 5999 // 128


def test_bounded_replay_takes_no_snapshot_and_says_so() -> None:
    manager = new_manager(rules=Rules(replay="bounded"))
    serve(manager, text(0, 6000))
    lease = lease_of(manager.admit(text(0, 6000) + text(9000, 100)))
    assert not lease.resume.exact
    assert not manager.snapshots.ids()
    assert lease.resume.replayed_tokens == 2541 - 100


def test_churn_leaves_nothing_behind() -> None:
    manager = new_manager(pages=60, slots=3, snapshots=3)
    for n in range(300):
        shared = text(n % 7 * 10_000, 700)
        got = manager.admit(shared + text(n * 1000 + 500_000, 90 + n % 50))
        lease = lease_of(got)
        if n % 5 == 0:
            manager.extend(lease, min(lease.next_cut(0), 300))
            manager.release(lease, keep=False)
            continue
        run_prompt(manager, lease, chunk=256)
        manager.release(lease, keep=n % 3 > 0)
    manager.check()
    assert (manager.pool.held_pages, manager.slots.held_pages) == (0, 0)
    manager.flush()
    assert manager.pool.free_pages == 60
    assert not manager.snapshots.ids()
    assert manager.snapshots.device_bytes == 0


def test_a_prompt_that_just_fits_does_without_the_page_to_copy_from() -> None:
    manager = new_manager(pages=3, snapshots=0)
    serve(manager, text(0, 384))
    lease = lease_of(manager.admit(text(0, 300) + text(900, 84)))
    assert (lease.resume.hit_tokens, lease.shared_pages, lease.copies) == (256, 2, ())


def test_a_parked_state_that_leaves_no_room_is_given_up() -> None:
    manager = new_manager(pages=3)
    lease = lease_of(manager.admit(text(0, 384)))
    manager.commit(lease, 300)
    parked = manager.park(lease)
    assert parked is not None
    with pytest.raises(LookupError, match="leaves no room"):
        manager.unpark(parked)
    assert isinstance(manager.admit(text(0, 384)), Lease)


def test_a_short_prompt_waits_for_its_twin_because_of_the_snapshot_to_come() -> None:
    """Its rows would all run again without one: 1,000 tokens are within the halo."""
    manager = new_manager()
    twin = lease_of(manager.admit(text(0, 1000)))
    assert manager.admit(text(0, 1000)) == Wait("prefix", twin.lease_id)
    assert manager.admit(text(0, 1000) + (1,)) == Wait("prefix", twin.lease_id)
    assert isinstance(manager.admit(text(0, 900) + text(5000, 100)), Lease)


@pytest.mark.parametrize("give_up", [True, False])
def test_nothing_of_a_parked_request_stays_listed_for_it_alone(give_up: bool) -> None:
    manager = new_manager()
    lease = lease_of(manager.admit(text(0, 1000)))
    manager.commit(lease, 700)
    parked = manager.park(lease)
    assert parked is not None
    assert any(node.salt == parked.own for node in manager.tree.nodes())
    if give_up:
        manager.drop_parked(parked)
    else:
        lease_of(manager.unpark(parked))
    assert not any(node.salt == parked.own for node in manager.tree.nodes())
    assert parked.save.snapshot_id not in manager.snapshots.ids()
