"""Frames: everything that can be said survives, and nothing else is understood."""

import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deodar.engine import wire
from deodar.engine.hooks import Fault, Script
from deodar.errors import WireError
from deodar.types import (
    EngineInfo,
    EngineStats,
    GenerateRequest,
    SamplingParams,
    TokenEvent,
    Usage,
)

IDS = st.lists(st.integers(0, 2**31), max_size=6).map(tuple)
COUNT = st.integers(0, 2**40)
FLOAT = st.floats(allow_nan=False)
SAMPLING = st.builds(
    SamplingParams,
    temperature=FLOAT,
    top_k=COUNT,
    seed=st.none() | st.integers(0, 2**63 - 1),
    max_tokens=st.none() | COUNT,
    stop_token_ids=IDS,
    ignore_eos=st.booleans(),
)
REQUEST = st.builds(
    GenerateRequest, request_id=st.text(), prompt_ids=IDS, sampling=SAMPLING, arrival=FLOAT
)
USAGE = st.builds(Usage, prompt_tokens=COUNT, completion_tokens=COUNT, cached_tokens=COUNT)
EVENT = st.builds(
    TokenEvent,
    request_id=st.text(),
    token_ids=IDS,
    logprobs=st.lists(FLOAT, max_size=3).map(tuple),
    usage=USAGE,
    finish_reason=st.sampled_from([None, "stop", "length", "abort", "error"]),
    error=st.none() | st.text(),
    seed=st.integers(0, 2**63 - 1),
    top_logprobs=st.lists(st.lists(st.tuples(COUNT, FLOAT), max_size=2).map(tuple), max_size=2).map(
        tuple
    ),
    scheduled=st.none() | FLOAT,
)
REFUSAL = st.builds(
    wire.Refusal, st.text(), st.none() | st.text(), st.integers(400, 599), st.none() | st.text()
)
FAULT = st.builds(Fault, slow_chunk_ms=st.none() | COUNT, die_at_token=st.none() | COUNT)
SCRIPT = st.builds(Script, steps=st.lists(IDS, max_size=3).map(tuple))
TO_ENGINE = st.one_of(
    st.builds(wire.Submit, REQUEST),
    st.builds(wire.Abort, st.text()),
    st.builds(wire.Flush, COUNT),
    st.builds(wire.Inject, COUNT, FAULT | SCRIPT),
    st.just(wire.Stop()),
)
INFO = EngineInfo(
    pid=1, context=2, vocab_size=3, slots=4, step_tokens=5, device="cpu", numerics="kv"
)
FROM_ENGINE = st.one_of(
    st.just(wire.Ready(INFO)),
    st.builds(wire.Failed, st.text()),
    st.builds(wire.Refused, st.text(), REFUSAL),
    st.builds(wire.Events, st.lists(EVENT, max_size=3).map(tuple)),
    st.builds(wire.Done, COUNT, st.none() | REFUSAL),
    st.builds(wire.Beat, st.builds(EngineStats, turns=COUNT, steps=COUNT, silent_s=FLOAT)),
)


def read_all(kind, portions):
    reader = wire.Reader(kind)
    messages = []
    for portion in portions:
        reader.push(portion)
        while (message := reader.pop()) is not None:
            messages.append(message)
    return messages


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from([(wire.ToEngine, TO_ENGINE), (wire.FromEngine, FROM_ENGINE)]))
def test_messages_survive_any_cut(data, side):
    kind, strategy = side
    messages = data.draw(st.lists(strategy, max_size=4))
    stream = b"".join(map(wire.encode, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    bounds = [0, *cuts, len(stream)]
    portions = [stream[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
    assert read_all(kind, portions) == messages


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=80))
def test_rubbish_is_waited_for_or_refused(noise):
    for stream in (noise, (len(noise) + 1).to_bytes(4, "big") + bytes((wire.VERSION,)) + noise):
        for kind in (wire.ToEngine, wire.FromEngine):
            try:
                for message in read_all(kind, [stream]):
                    assert isinstance(message, kind)
            except WireError:
                pass


@settings(max_examples=200, deadline=None)
@given(TO_ENGINE, st.data())
def test_a_damaged_frame_is_another_message_or_refused(message, data):
    frame = bytearray(wire.encode(message))
    place = data.draw(st.integers(4, len(frame) - 1))
    frame[place] ^= data.draw(st.integers(1, 255))
    try:
        got = read_all(wire.ToEngine, [bytes(frame)])
    except WireError as error:
        words = str(error)
    else:
        words = ""
        assert all(isinstance(one, wire.ToEngine) for one in got)
    assert (place == 4) == ("speaks version" in words)


def test_another_version_and_wild_lengths_are_named():
    frame = bytearray(wire.encode(wire.Stop()))
    frame[4] = wire.VERSION + 1
    with pytest.raises(WireError, match=f"speaks version {wire.VERSION + 1}, this is"):
        read_all(wire.ToEngine, [bytes(frame)])
    for size in (0, 1, wire.MAX_FRAME_BYTES + 1, 2**32 - 1):
        with pytest.raises(WireError, match=f"a frame has {size} bytes"):
            read_all(wire.ToEngine, [size.to_bytes(4, "big")])


def test_a_message_of_the_other_side_is_refused():
    with pytest.raises(WireError, match="no message"):
        read_all(wire.FromEngine, [wire.encode(wire.Abort("x"))])


def test_a_channel_times_out_and_sees_the_end():
    ours, theirs = socket.socketpair()
    a, b = wire.Channel(ours, wire.FromEngine), wire.Channel(theirs, wire.ToEngine)
    assert a.receive(timeout_s=0.01) is None
    b.send(wire.Failed("no"))
    assert a.receive() == wire.Failed("no")
    a.send(wire.Abort("r"))
    a.close()
    assert b.receive() == wire.Abort("r")
    with pytest.raises(EOFError):
        b.receive()
    b.close()
