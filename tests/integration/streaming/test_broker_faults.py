"""The broker goes away and comes back while workers run (T-R1, B8, B14)."""

import signal
import time
from pathlib import Path

import pytest

from qim_streams.embedded.kafka import EmbeddedKafka
from tests.integration.streaming.harness import Pipeline
from tests.integration.streaming.verdict import judge
from tests.support.waiting import eventually_sync

pytestmark = [pytest.mark.integration]


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_broker_restart_loses_nothing(tmp_path: Path, kill: bool) -> None:
    """T-R1, B8: workers may wait or end and be started again; what they write is complete and in order."""
    with EmbeddedKafka(tmp_path / "kafka", quick=True) as broker:
        pipeline = Pipeline(broker.bootstrap, tmp_path, "broker")
        try:
            worker = pipeline.start("worker")
            pipeline.feed(500)
            pipeline.wait_logged("worker", "starts at offset", 4)
            broker.restart(kill=kill)
            pipeline.feed(500)
            ends = pipeline.ends(pipeline.config.source)

            def done() -> bool:
                nonlocal worker
                if worker.poll() is not None:  # as the supervisor would
                    worker = pipeline.start("worker")
                last = dict(pipeline.watermarks())
                return all(last.get(partition, -1) >= end - 1 for partition, end in ends.items())

            eventually_sync(done, 60, "everything processed after the broker came back")
            pipeline.feed(100)
            pipeline.wait_processed()
            print(f"exits: {sum(item.poll() is not None for item in pipeline.workers)}")
            assert pipeline.stop(worker) == 0
        finally:
            pipeline.close()
        verdict = judge(pipeline.outputs(), pipeline.expected(), pipeline.watermarks())
        assert verdict.clean


def test_a_frozen_broker_is_waited_out(tmp_path: Path) -> None:
    """A broker that is stopped (SIGSTOP) for longer than the session and then goes on."""
    with EmbeddedKafka(tmp_path / "kafka", quick=True) as broker:
        pipeline = Pipeline(broker.bootstrap, tmp_path, "frozen")
        try:
            worker = pipeline.start("worker")
            pipeline.feed(400)
            pipeline.wait_processed()
            broker.pause()
            time.sleep(4)  # the fault's length: two sessions
            broker.resume()
            pipeline.feed(400)
            pipeline.wait_processed()
            assert worker.poll() is None
            worker.send_signal(signal.SIGTERM)
            assert pipeline.wait_exit(worker) == 0
        finally:
            pipeline.close()
        verdict = judge(pipeline.outputs(), pipeline.expected(), pipeline.watermarks())
        assert verdict.clean
        assert verdict.repeated == 0
