"""Topics, feeder, worker processes and readers for the streaming tests."""

import itertools
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from qim_streams.embedded.process import ChildProcess, child_env, start_child
from tests.integration.streaming.worker import WorkerConfig
from tests.support.waiting import eventually_sync

ROOT = Path(__file__).resolve().parents[3]
_numbers = itertools.count()


class Pipeline:
    """Source, output and changelog of one test role, and the workers on it."""

    def __init__(self, brokers: str, directory: Path, name: str, partitions: int = 4) -> None:
        self.config = WorkerConfig(
            role=f"{name}-{next(_numbers)}",
            brokers=brokers,
            partitions=partitions,
            datadir="",
            watermark_log=str(directory / "watermarks.log"),
        )
        self.directory = directory
        self._admin = AdminClient({"bootstrap.servers": brokers})
        self._producer = Producer({"bootstrap.servers": brokers, "linger.ms": 1})
        self.workers: list[ChildProcess] = []
        compact = {"cleanup.policy": "compact"}
        self.create(self.config.source, partitions)
        self.create(self.config.output, partitions)
        self.create(self.config.changelog, partitions, compact)
        self.create(self.config.dead_letters, 1)

    def create(self, topic: str, partitions: int, config: dict[str, str] | None = None) -> None:
        """Create a topic."""
        for future in self._admin.create_topics(
            [NewTopic(topic, partitions, 1, config=config or {})]
        ).values():
            future.result(30)

    # -- records

    def feed(self, count: int, value: bytes = b"x" * 100, partition: int | None = None) -> None:
        """Produce `count` records, round robin over the partitions or to one, and wait for them."""
        for number in range(count):
            target = number % self.config.partitions if partition is None else partition
            self._producer.produce(self.config.source, value, partition=target)
        self._flush()

    def feed_live(self, count: int, per_second: float) -> threading.Thread:
        """Start feeding `count` records at a rate, in a thread."""
        return self.feed_until(threading.Event(), per_second, count)

    def feed_until(
        self, stop: threading.Event, per_second: float, count: int = 100_000_000
    ) -> threading.Thread:
        """Start feeding at a rate, in a thread, until `stop` is set or `count` records are in."""

        def run() -> None:
            started = time.monotonic()
            for number in range(count):
                self._producer.produce(
                    self.config.source, b"x" * 100, partition=number % self.config.partitions
                )
                if number % 20 == 0:
                    if stop.is_set():
                        break
                    self._producer.poll(0)
                    ahead = started + number / per_second - time.monotonic()
                    if ahead > 0:
                        time.sleep(ahead)
            self._flush()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def _flush(self) -> None:
        """Until the log has everything: what came later would look lost."""
        left = self._producer.flush(120)
        assert not left, f"{left} records are not in the log after 120 s"

    def ends(self, topic: str) -> dict[int, int]:
        """The end offset of every partition of `topic`."""
        consumer = Consumer({"bootstrap.servers": self.config.brokers, "group.id": "test-ends"})
        try:
            return {
                partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)[1]
                for partition in range(self.config.partitions if topic != self.config.dead_letters else 1)
            }
        finally:
            consumer.close()

    def committed(self) -> dict[int, int]:
        """The group's committed offsets of the source (-1001: none)."""
        consumer = Consumer({"bootstrap.servers": self.config.brokers, "group.id": f"qim-{self.config.role}"})
        try:
            wanted = [TopicPartition(self.config.source, p) for p in range(self.config.partitions)]
            return {item.partition: item.offset for item in consumer.committed(wanted, timeout=20)}
        finally:
            consumer.close()

    def read(self, topic: str) -> dict[int, list[bytes]]:
        """All values of `topic` per partition, up to its end now."""
        ends = {partition: end for partition, end in self.ends(topic).items() if end > 0}
        values: dict[int, list[bytes]] = {partition: [] for partition in ends}
        consumer = Consumer(
            {"bootstrap.servers": self.config.brokers, "group.id": "test-read", "enable.auto.commit": False}
        )
        positions = dict.fromkeys(ends, 0)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
        deadline = time.monotonic() + 30
        try:
            while any(positions[p] < ends[p] for p in ends) and time.monotonic() < deadline:
                for message in consumer.consume(1_000, timeout=0.5):
                    assert message.error() is None, message.error()
                    values[message.partition()].append(message.value())
                    positions[message.partition()] = message.offset() + 1
        finally:
            consumer.close()
        return values

    def outputs(self) -> dict[int, list[int]]:
        """Source offsets in the output log, per partition."""
        return {p: [int(value) for value in values] for p, values in self.read(self.config.output).items()}

    def expected(self) -> dict[int, range]:
        """Source offsets that exist, per partition (no holes in these tests)."""
        return {partition: range(end) for partition, end in self.ends(self.config.source).items()}

    def watermarks(self) -> list[tuple[int, int]]:
        """(partition, W) in the order of publication."""
        path = Path(self.config.watermark_log)
        if not path.exists():
            return []
        return [(int(p), int(w)) for p, w in (line.split() for line in path.read_text().splitlines())]

    def wait_processed(self, within_s: float = 60.0) -> None:
        """Until the watermark of every partition has reached the end of the source."""
        ends = self.ends(self.config.source)

        def done() -> bool:
            last = dict(self.watermarks())
            return all(last.get(partition, -1) >= end - 1 for partition, end in ends.items())

        eventually_sync(done, within_s, f"all processed (ends {ends})")

    # -- workers

    def start(self, name: str, **changes: object) -> ChildProcess:
        """Start a worker process with its own data directory `name`."""
        config = replace(self.config, datadir=str(self.directory / name), **changes)  # type: ignore[arg-type]
        child = start_child(
            f"worker {name}",
            [sys.executable, "-m", "tests.integration.streaming.worker"],
            env=child_env(config.environment(), settings=False),
            log_path=self.log_path(name),
            cwd=ROOT,
        )
        self.workers.append(child)
        return child

    def log_path(self, name: str) -> Path:
        """The log file of worker `name`."""
        return self.directory / f"{name}.log"

    def log_text(self, name: str) -> str:
        """What worker `name` has logged so far."""
        path = self.log_path(name)
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_logged(self, name: str, text: str, times: int = 1, within_s: float = 30.0) -> None:
        """Until worker `name` has logged `text` at least `times` times."""
        try:
            eventually_sync(lambda: self.log_text(name).count(text) >= times, within_s, f"{name}: {text!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log_text(name)[-3000:]}") from None

    def wait_exit(self, child: ChildProcess, within_s: float = 30.0) -> int:
        """The exit code of `child`."""
        code = child.wait(within_s)
        assert code is not None, f"{child.name} still runs\n{child.log_path.read_text()[-3000:]}"
        return code

    def stop(self, child: ChildProcess) -> int:
        """SIGTERM and the exit code."""
        child.send_signal(signal.SIGTERM)
        return self.wait_exit(child)

    def close(self) -> None:
        """Kill what still runs."""
        for worker in self.workers:
            worker.kill()


def offsets_of(values: Sequence[bytes]) -> list[int]:
    """Output values as source offsets."""
    return [int(value) for value in values]
