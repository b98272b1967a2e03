"""Real writer processes on real servers: started as a user would, killed at a named point."""

import os
import subprocess
import sys
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from qim_streams.ownership.log_fence import BARRIER_KEY
from qim_streams.records import MessageRecord, OutboxRecord, decode_message, decode_outbox
from qim_streams.settings import Settings

SECRET = "writer-process-tests-" + "x" * 16


class WriterProcess:
    """One ``qim writer``. `start` again after its end: it is the next boot of the same node."""

    def __init__(self, settings: Settings, directory: Path, node: str = "node-1") -> None:
        self.directory = directory
        self._settings, self._node = settings, node
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self, failpoint: str = "", **more: str) -> None:
        """Run it; `failpoint` is the value of QIM_FAILPOINT."""
        passed = {name: value for name, value in os.environ.items() if not name.startswith("QIM_")}
        env = passed | {
            "QIM_STATE_DIR": str(self.directory),
            "QIM_NODE_ID": self._node,
            "QIM_BROKERS": self._settings.brokers,
            "QIM_REDIS_URL": self._settings.redis_url.get_secret_value(),
            "QIM_INTERNAL_SECRET": SECRET,
            "QIM_LEASE_TTL_MS": "3000",
            "QIM_LEASE_RENEW_MS": "500",
            "QIM_FAILPOINT": failpoint,
            **more,
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / f"{self._node}.log").open("ab") as log:
            command = [sys.executable, "-m", "qim_streams.cli", "writer"]
            self._popen = subprocess.Popen(command, env=env, stdout=log, stderr=log)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self._popen is None else self._popen.poll()

    def stop(self) -> int:
        """SIGTERM and the exit code."""
        assert self._popen is not None
        self._popen.terminate()
        return self._popen.wait(30)

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        if self._popen is not None and self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait()

    def log(self) -> str:
        """Everything it has said."""
        path = self.directory / f"{self._node}.log"
        return path.read_text() if path.exists() else ""


def read_outbox(settings: Settings) -> list[tuple[OutboxRecord, MessageRecord]]:
    """The whole Outbox, partition by partition, in the order of the log."""
    consumer = Consumer({"bootstrap.servers": settings.brokers, "group.id": "read-outbox"})
    found = []
    try:
        for partition in range(settings.outbox_partitions):
            place = TopicPartition("qim.outbox.v1", partition, 0)
            low, high = consumer.get_watermark_offsets(place, timeout=10)
            consumer.assign([TopicPartition("qim.outbox.v1", partition, low)])
            left = high - low
            while left > 0:
                for message in consumer.consume(min(left, 1_000), timeout=10):
                    assert message.error() is None
                    left -= 1
                    if message.key() == BARRIER_KEY:
                        continue
                    outbox = decode_outbox(message.value())
                    found.append((outbox, decode_message(outbox.message)))
    finally:
        consumer.close()
    return found
