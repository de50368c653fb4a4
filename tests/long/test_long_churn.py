"""Second tier: ten thousand requests of churn end with nothing held and flat memory."""

import json

import pytest
from churn import left

REQUESTS = 10_000
GROWTH_KIB = 16_384


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_churn_leaves_nothing_behind(tmp_path):
    numbers = left(tmp_path, REQUESTS)
    print(json.dumps(numbers))
    assert numbers["read_to_the_end"] + numbers["abandoned"] == REQUESTS
    rows = numbers["rss_kib"]
    early, late = rows[len(rows) // 4 : len(rows) // 2], rows[-len(rows) // 4 :]
    for process in (0, 1):  # the highest of the last quarter against that of the second
        grown = max(r[process] for r in late) - max(r[process] for r in early)
        assert grown < GROWTH_KIB, rows
