"""Static members, data directories and topics: what a worker is, over restarts (T-S3; hazard H12)."""

import json
import shutil
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from qim_streams.embedded.kafka import EmbeddedKafka
from qim_streams.embedded.ports import free_ports
from qim_streams.streaming.doubt import EXIT_CONFIG
from tests.integration.streaming.harness import Pipeline
from tests.integration.streaming.verdict import judge
from tests.support.waiting import eventually_sync

pytestmark = [pytest.mark.integration]


def test_a_static_member_comes_back_without_a_rebalance(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """A killed worker restarts under its instance id; the other one keeps its partitions throughout."""
    pipeline = Pipeline(kafka.bootstrap, tmp_path, "static")
    try:
        pipeline.start("stays", instance_id="a", session_timeout_s=12.0)
        pipeline.wait_logged("stays", "starts at offset", 4)
        goes = pipeline.start("goes", instance_id="b", session_timeout_s=12.0)
        pipeline.wait_logged("goes", "starts at offset", 2)
        pipeline.wait_logged("stays", "starts at offset", 6)
        feeder = pipeline.feed_live(4_000, 800.0)
        goes.kill()
        back = pipeline.start("goes", instance_id="b", session_timeout_s=12.0)
        pipeline.wait_logged("goes", "starts at offset", 4, within_s=9.0)  # well inside the session timeout
        feeder.join()
        pipeline.wait_processed()
        assert pipeline.log_text("stays").count("starts at offset") == 6, "the other worker was disturbed"
        assert back.poll() is None
    finally:
        pipeline.close()
    verdict = judge(pipeline.outputs(), pipeline.expected(), pipeline.watermarks())
    assert verdict.clean
    assert verdict.repeated <= 4 * 200


def test_a_wiped_directory_changes_nothing(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """T-S3: RocksDB deleted, and a stale copy put back: same output, W from the changelog."""
    pipeline = Pipeline(kafka.bootstrap, tmp_path, "wiped")
    try:
        pipeline.feed(600)
        worker = pipeline.start("worker")
        pipeline.wait_processed()
        pipeline.stop(worker)
        shutil.copytree(tmp_path / "worker", tmp_path / "stale")
        shutil.rmtree(tmp_path / "worker")
        pipeline.feed(600)
        worker = pipeline.start("worker")
        pipeline.wait_processed()
        pipeline.stop(worker)
        shutil.rmtree(tmp_path / "worker")
        (tmp_path / "stale").rename(tmp_path / "worker")
        pipeline.feed(600)
        worker = pipeline.start("worker")
        pipeline.wait_processed()
        pipeline.stop(worker)
    finally:
        pipeline.close()
    verdict = judge(pipeline.outputs(), pipeline.expected(), pipeline.watermarks())
    assert verdict.clean
    assert verdict.repeated == 0


def test_two_workers_in_one_directory_are_refused(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """The second one ends at once with a message that names the directory and the holder."""
    pipeline = Pipeline(kafka.bootstrap, tmp_path, "twins")
    try:
        first = pipeline.start("worker")
        pipeline.wait_logged("worker", "starts at offset", 4)
        config_dir = tmp_path / "other"
        second = pipeline.start("../" + tmp_path.name + "/worker")
        assert pipeline.wait_exit(second) == EXIT_CONFIG
        assert f"in use by {pipeline.config.role} pid {first.pid}" in second.log_path.read_text()
        assert first.poll() is None
        assert not config_dir.exists()
    finally:
        pipeline.close()


def test_a_paused_worker_is_replaced_and_does_no_harm(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """A worker stopped (SIGSTOP) beyond its session and continued: nothing lost, W never goes back."""
    pipeline = Pipeline(kafka.bootstrap, tmp_path, "paused")
    try:
        sleeper = pipeline.start("sleeper")
        pipeline.start("other")
        for name in ("sleeper", "other"):  # one of them may have had all for a moment
            pipeline.wait_logged(name, "starts at offset", 2)
        starts = pipeline.log_text("other").count("starts at offset")
        feeder = pipeline.feed_live(4_000, 500.0)
        sleeper.send_signal(signal.SIGSTOP)
        pipeline.wait_logged("other", "starts at offset", starts + 4)
        feeder.join()
        pipeline.wait_processed()
        sleeper.send_signal(signal.SIGCONT)
        pipeline.feed(200)
        pipeline.wait_processed()
    finally:
        pipeline.close()
    verdict = judge(pipeline.outputs(), pipeline.expected(), [])
    assert not verdict.missing


def test_readiness_is_told_on_the_web_port(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """/ready answers 200 once every partition has started; tables are shown nowhere."""
    pipeline = Pipeline(kafka.bootstrap, tmp_path, "web")
    [port] = free_ports(1)
    try:
        pipeline.start("worker", web_port=port)
        eventually_sync(lambda: _get(port, "/ready")[0] == 200, 30, "ready")
        status, body = _get(port, "/partitions")
        assert status == 200
        assert len(json.loads(body)["partitions"]) == pipeline.config.partitions
        assert _get(port, "/live")[0] == 200
        assert _get(port, "/table")[0] == 404
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/live", timeout=10) as answer:
            assert answer.headers["server"] == "qim", "not which Python, not which library"
    finally:
        pipeline.close()


def test_a_worker_too_many_is_ready_and_stands_by(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    """B7: with more workers than partitions one gets none: ready, and next in line."""
    pipeline = Pipeline(kafka.bootstrap, tmp_path, "spare", partitions=1)
    ports = free_ports(2)
    try:
        for name, port in zip(("one", "two"), ports, strict=True):
            pipeline.start(name, web_port=port)
            eventually_sync(lambda port=port: _get(port, "/ready")[0] == 200, 30, f"{name} ready")  # type: ignore[misc]
        pipeline.feed(100)
        pipeline.wait_processed()
        idle = eventually_sync(
            lambda: [name for name in ("one", "two") if "it stands by" in pipeline.log_text(name)], 10, "told"
        )
        other = next(child for child in pipeline.workers if not child.name.endswith(idle[0]))
        other.kill()
        pipeline.wait_logged(idle[0], "starts at offset")
        pipeline.feed(100)
        pipeline.wait_processed()
    finally:
        pipeline.close()
    assert not judge(pipeline.outputs(), pipeline.expected(), []).missing


def _get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError:
        return 0, ""
