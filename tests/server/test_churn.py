"""Three hundred requests of churn; the long tier plays ten thousand."""

from churn import left


def test_a_small_churn_leaves_nothing_behind(tmp_path):
    numbers = left(tmp_path, 300)
    assert numbers["read_to_the_end"] + numbers["abandoned"] == 300
    assert numbers["snapshots_kept_before_flush"] > 0
