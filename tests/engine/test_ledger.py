"""Records: committed tokens, phases, and one end each."""

from deodar.engine.ledger import Commit, Ledger
from deodar.types import TokenEvent, Usage


class Watcher:
    def __init__(self):
        self.seen = []

    def committed(self, record, commit, reasoning):
        self.seen.append(("commit", commit.tokens, reasoning))

    def sent(self, record):
        self.seen.append(("sent", record.sent))

    def ended(self, record):
        self.seen.append(("ended", record.reason))


def event(*ids, **usage):
    counts = Usage(**{"prompt_tokens": 7, "completion_tokens": len(ids), **usage})
    return TokenEvent(
        request_id="r",
        token_ids=ids,
        logprobs=tuple(-float(i) for i in ids),
        usage=counts,
        scheduled=11.0,
    )


def ledger_at(times):
    clock = iter(times)
    ledger = Ledger(clock=lambda: next(clock))
    watcher = Watcher()
    ledger.observers.append(watcher)
    return ledger, watcher


def test_only_what_was_read_counts_and_the_end_is_once():
    ledger, watcher = ledger_at([12.0, 12.5, 13.0, 14.0])
    record = ledger.begin("r", 7, 10.0, client_id="mine")
    assert ledger.named("mine") == ledger.named("r") == [record]
    ledger.commit(record, event(3, cached_tokens=4), 1, reasoning=1)
    ledger.sent(record)
    ledger.sent(record)
    ledger.commit(record, event(4, 5, 6, drafted_tokens=5, accepted_tokens=2), 2, reasoning=1)
    ledger.end(record, "stop")
    ledger.end(record, "abort")
    assert (record.token_ids, record.logprobs) == ([3, 4, 5], [-3.0, -4.0, -5.0])
    assert record.usage.completion == 3
    assert record.usage.reasoning == 1
    assert record.commits == [Commit(12.0, 1, 0, 0), Commit(13.0, 2, 5, 2)]
    assert watcher.seen == [
        ("commit", 1, 1),
        ("sent", 12.5),
        ("commit", 2, 0),
        ("ended", "stop"),
    ]
    assert record.spans() == {
        "queue": 1.0,
        "prefill": 1.0,
        "decode": 1.0,
        "first_token": 2.5,
        "whole": 4.0,
    }
    assert not ledger.open
    assert ledger.tokens == 3


def test_a_record_that_never_ran_has_no_phases():
    ledger, watcher = ledger_at([15.0])
    record = ledger.begin("r", 7, 10.0)
    ledger.sent(record)
    ledger.end(record, "abort")
    assert record.spans() == {"whole": 5.0}
    assert watcher.seen == [("ended", "abort")]


def test_a_refused_request_never_was_one():
    ledger, watcher = ledger_at([])
    ledger.discard(ledger.begin("r", 7, 10.0))
    assert not ledger.open
    assert watcher.seen == []


def test_late_reasoning_is_counted_without_a_token():
    ledger, watcher = ledger_at([1.0, 2.0])
    record = ledger.begin("r", 7, 0.0)
    ledger.commit(record, event(3), 1, reasoning=0)
    ledger.commit(record, event(), 0, reasoning=1)
    assert len(record.commits) == 1
    assert watcher.seen == [("commit", 1, 0), ("commit", 0, 1)]
