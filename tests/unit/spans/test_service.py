"""MessageSpans: what a stage tells of a batch."""

import logging

import pytest

from qim_streams.spans.rules import NOWHERE, Place, Stage, parent_of, span_id_of, trace_id_of
from qim_streams.spans.service import CLOSE_S, REMEMBERED_MAX, MessageSpans
from qim_streams.testing.memory_spans import MemorySpans, TickingClock, every_message

ONE, TWO = (1).to_bytes(16, "big"), (2).to_bytes(16, "big")


@pytest.fixture
def sink() -> MemorySpans:
    return MemorySpans()


def test_a_batch_gets_a_span_for_each_message(sink: MemorySpans) -> None:
    spans = every_message(sink)
    began_ns = spans.now_ns()
    spans.note(Stage.MAILBOX, began_ns, [("acme", ONE), ("other", TWO)], Place(3), batch=2)
    first, second = sink.spans
    assert (first.trace_id, second.trace_id) == (trace_id_of(ONE), trace_id_of(TWO))
    assert first.span_id == span_id_of(ONE, Stage.MAILBOX, Place(3))
    assert first.parent_id == parent_of(ONE, Stage.MAILBOX, Place(3)) == span_id_of(ONE, Stage.FANOUT)
    assert first.began_ns == began_ns < first.ended_ns
    assert first.attributes == {
        "qim.tenant_id": "acme",
        "qim.message_id": ONE.hex(),
        "qim.mailbox_shard": 3,
        "qim.batch": 2,
    }


def test_what_is_not_sampled_is_not_looked_at_any_further(sink: MemorySpans) -> None:
    looks = TickingClock()
    spans = MessageSpans(0.0, sink, looks)
    before = looks.now_ns
    spans.note(Stage.SEND, 0, [("acme", number.to_bytes(16, "big")) for number in range(100)])
    assert sink.spans == []
    assert looks.now_ns == before, "not even the clock"


def test_a_batch_that_is_tried_again_is_told_once(sink: MemorySpans) -> None:
    spans = every_message(sink)
    for _ in range(3):
        spans.note(Stage.FANOUT, 0, [("acme", ONE)])
    spans.note(Stage.COMMIT, 0, [("acme", ONE)])
    assert [one.stage for one in sink.spans] == [Stage.FANOUT, Stage.COMMIT]


def test_what_is_remembered_is_bounded(sink: MemorySpans) -> None:
    spans = every_message(sink)
    spans.note(Stage.SEND, 0, [("a", number.to_bytes(16, "big")) for number in range(REMEMBERED_MAX + 1)])
    spans.note(Stage.SEND, 0, [("a", (0).to_bytes(16, "big"))])
    assert len(sink.spans) == REMEMBERED_MAX + 2, "the oldest is forgotten, and told again"


def test_a_clock_that_was_set_back_makes_no_negative_time(sink: MemorySpans) -> None:
    spans = every_message(sink)
    spans.note(Stage.SEND, spans.now_ns() + 10**12, [("acme", ONE)], NOWHERE)
    assert sink.spans[0].began_ns == sink.spans[0].ended_ns


def test_a_stage_never_hears_of_a_sink_that_broke(
    sink: MemorySpans, caplog: pytest.LogCaptureFixture
) -> None:
    spans, sink.broken = every_message(sink), RuntimeError("armed")
    with caplog.at_level(logging.ERROR):
        spans.note(Stage.SEND, 0, [("acme", ONE)])
        spans.note(Stage.SEND, 0, [("acme", TWO)])
    assert len(caplog.records) == 1, "said once, not for each batch"


async def test_it_ends_in_bounded_time(sink: MemorySpans) -> None:
    await every_message(sink).close()
    assert sink.closed_for_s == CLOSE_S


def test_the_other_clocks_of_stages_are_understood(sink: MemorySpans) -> None:
    spans = MessageSpans(1.0, sink, lambda: 10_000_000_000)
    assert spans.ago(2.5) == 7_500_000_000
