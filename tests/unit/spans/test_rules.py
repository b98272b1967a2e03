"""Names of traces and spans, and who is sampled."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim_streams import hlc
from qim_streams.spans.rules import (
    NOWHERE,
    Place,
    Stage,
    is_sampled,
    parent_of,
    sample_bound,
    span_id_of,
    trace_id_of,
)

IDS = st.binary(min_size=16, max_size=16)


def test_the_trace_of_a_message_is_this_one_for_ever() -> None:
    """Written down: a release that changed it would tear traces apart while roles are of two versions."""
    assert trace_id_of(bytes(range(16))).hex() == "4fc7fb32c5c0bc1a2e073fe17c6d1fc9"
    assert span_id_of(bytes(range(16)), Stage.SEND).hex() == "6b2d6d809db3a8d6"


@given(IDS, IDS)
def test_other_messages_have_other_traces_and_spans(first: bytes, second: bytes) -> None:
    assert (trace_id_of(first) == trace_id_of(second)) == (first == second)
    assert (span_id_of(first, Stage.SEND) == span_id_of(second, Stage.SEND)) == (first == second)


@given(IDS)
def test_spans_of_a_message_differ_by_stage_and_place(message_id: bytes) -> None:
    places = [NOWHERE, Place(0), Place(1), Place(11), Place(1, "1"), Place(1, "gw-1"), Place(-1, "gw-1")]
    ids = {span_id_of(message_id, stage, place) for stage in Stage for place in places}
    assert len(ids) == len(Stage) * len(places)


@given(IDS, st.integers(0, 4_095), st.text(max_size=8))
def test_every_stage_finds_the_span_before_its_own(message_id: bytes, shard: int, part: str) -> None:
    """What the stage before tells under its own place is what this one names as its parent."""
    told = {
        Stage.SEND: NOWHERE,
        Stage.COMMIT: NOWHERE,
        Stage.APPEND: NOWHERE,
        Stage.FANOUT: NOWHERE,
        Stage.ARCHIVE: NOWHERE,
        Stage.MAILBOX: Place(shard),
        Stage.PUSH: Place(shard),
        Stage.DELIVER: Place(shard, part),
        Stage.NOTIFY: Place(shard, part),
    }
    known = {span_id_of(message_id, stage, place) for stage, place in told.items()}
    parents = {stage: parent_of(message_id, stage, place) for stage, place in told.items()}
    assert [stage for stage, parent in parents.items() if parent is None] == [Stage.SEND]
    assert {one for one in parents.values() if one is not None} <= known


@given(IDS, st.floats(0, 1), st.floats(0, 1))
def test_a_larger_ratio_samples_what_a_smaller_one_does(message_id: bytes, one: float, other: float) -> None:
    less, more = sorted((one, other))
    trace_id = trace_id_of(message_id)
    assert is_sampled(trace_id, sample_bound(less)) <= is_sampled(trace_id, sample_bound(more))


@given(IDS)
def test_all_or_none(message_id: bytes) -> None:
    trace_id = trace_id_of(message_id)
    assert is_sampled(trace_id, sample_bound(1))
    assert not is_sampled(trace_id, sample_bound(0))


def test_the_share_is_the_ratio_however_alike_message_ids_are() -> None:
    """Ids of one writer differ in a few bits only: time and counter."""
    node = random.Random(7).getrandbits(64)
    ids = [hlc.encode(1_760_000_000_000 + number // 50, number % 50, node) for number in range(20_000)]
    bound = sample_bound(0.05)
    sampled = sum(is_sampled(trace_id_of(one), bound) for one in ids)
    assert 800 < sampled < 1_200  # 1,000 expected, deviation 31


@pytest.mark.parametrize("ratio", [-0.1, 1.1])
def test_a_ratio_is_a_share(ratio: float) -> None:
    with pytest.raises(ValueError, match="0 to 1"):
        sample_bound(ratio)


@pytest.mark.parametrize("ratio", [0.0, 0.001, 0.25, 1.0])
def test_the_rule_is_that_of_opentelemetry(ratio: float) -> None:
    """Another program that samples the same traces by the standard's rule takes the same ones."""
    sampling = pytest.importorskip(
        "opentelemetry.sdk.trace.sampling", reason="extra otel: equality with the standard's rule unproven"
    )
    theirs, bound = sampling.TraceIdRatioBased(ratio), sample_bound(ratio)
    for number in range(500):
        trace_id = trace_id_of(number.to_bytes(16, "big"))
        taken = theirs.should_sample(None, int.from_bytes(trace_id, "big"), "x").decision.is_sampled()
        assert taken == is_sampled(trace_id, bound)
