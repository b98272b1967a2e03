"""A handler that fails: not acknowledged, not skipped (T-A1); outages wait in place (T-A2); poison (T-A3)."""

from pathlib import Path

import pytest

from qim_streams.embedded.kafka import EmbeddedKafka
from qim_streams.streaming.dead_letter_record import DeadLetter
from qim_streams.streaming.doubt import EXIT_DOUBT
from tests.integration.streaming.harness import Pipeline
from tests.integration.streaming.verdict import judge
from tests.support.waiting import eventually_sync

pytestmark = [pytest.mark.integration]


def test_a_failing_record_ends_the_worker_and_comes_again(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """T-A1: the handler raises on record n: n is not committed and is processed after the restart."""
    pipeline = Pipeline(kafka.bootstrap, tmp_path, "fails")
    fail_at = (1, 150)
    try:
        pipeline.feed(1_000)
        first = pipeline.start("worker", fail_at=fail_at, latch=str(tmp_path / "latch"))
        assert pipeline.wait_exit(first) == EXIT_DOUBT
        assert pipeline.committed()[1] <= fail_at[1]
        second = pipeline.start("worker", fail_at=fail_at, latch=str(tmp_path / "latch"))
        pipeline.wait_processed()
        assert pipeline.stop(second) == 0
    finally:
        pipeline.close()
    verdict = judge(pipeline.outputs(), pipeline.expected(), pipeline.watermarks())
    assert verdict.clean
    assert pipeline.committed() == pipeline.ends(pipeline.config.source)


def test_a_stock_agent_still_loses_the_record(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """T-A1, hazard H1 pinned: plain Faust commits past a record that raised. If this fails, it changed."""
    pipeline = Pipeline(kafka.bootstrap, tmp_path, "stock", partitions=1)
    try:
        pipeline.feed(60)
        worker = pipeline.start("stock", stock=True, fail_at=(0, 30))
        eventually_sync(lambda: pipeline.committed()[0] == 60, 40, "the stock agent to commit everything")
        worker.kill()
    finally:
        pipeline.close()
    verdict = judge(pipeline.outputs(), pipeline.expected(), [])
    assert verdict.missing == [(0, 30)]


def test_an_outage_is_waited_out_in_place(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """T-A2: while the store is down nothing is committed, the worker stays, and work goes on after."""
    pipeline = Pipeline(kafka.bootstrap, tmp_path, "outage")
    outage = tmp_path / "outage"
    outage.touch()
    try:
        worker = pipeline.start("worker", outage_file=str(outage))
        pipeline.feed(400)
        pipeline.wait_logged("worker", "waits: StoreUnavailable", pipeline.config.partitions)
        guest = pipeline.start("guest", outage_file=str(outage))  # a rebalance in the middle of it
        pipeline.wait_logged("guest", "waits: StoreUnavailable")
        assert all(offset <= 0 for offset in pipeline.committed().values())
        outage.unlink()
        pipeline.wait_processed()
        assert worker.poll() is None
        assert pipeline.stop(guest) == 0
        assert pipeline.stop(worker) == 0
    finally:
        pipeline.close()
    verdict = judge(pipeline.outputs(), pipeline.expected(), pipeline.watermarks())
    assert verdict.clean
    assert verdict.repeated == 0


def test_poison_costs_itself_and_no_more(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """T-A3: poison between good records is in the dead letters with its bytes; the next one proceeds."""
    pipeline = Pipeline(kafka.bootstrap, tmp_path, "poison")
    try:
        worker = pipeline.start("worker")
        pipeline.feed(40)
        for number in range(8):
            pipeline.feed(1, value=b"poison %d" % number, partition=2)
            pipeline.feed(4)
        pipeline.wait_processed()
        assert pipeline.stop(worker) == 0
    finally:
        pipeline.close()
    letters = [DeadLetter.decode(value) for value in pipeline.read(pipeline.config.dead_letters)[0]]
    assert [letter.value for letter in letters] == [b"poison %d" % number for number in range(8)]
    assert {(letter.partition, letter.cause, letter.topic) for letter in letters} == {
        (2, "RecordError", pipeline.config.source)
    }
    expected = {partition: list(offsets) for partition, offsets in pipeline.expected().items()}
    dead = {letter.offset for letter in letters}
    expected[2] = [offset for offset in expected[2] if offset not in dead]
    verdict = judge(pipeline.outputs(), expected, [])
    assert verdict.clean
    assert verdict.repeated == 0
