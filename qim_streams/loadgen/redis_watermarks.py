"""When each MailboxShard's watermark W passed which seq: a poll of the hot tier, in a thread of its own.

A message is MAILBOXED for a recipient when W of his shard covers its mailbox_seq. The poll notes the
time at which W was first seen at a value, so a MAILBOXED time is late by at most one interval, never
early. All fields are asked for in one write with a command that was packed once.

Spec: §1 MAILBOXED, §5.
"""

import threading
import time
from array import array
from bisect import bisect_left
from typing import Any

import redis
from redis.maint_notifications import MaintNotificationsConfig

from qim_streams.errors import RecordError
from qim_streams.mailbox import watermark

INTERVAL_S = 0.01


class WatermarkPoll:
    """Use `start`, then `stop`, then `covered_ns`."""

    def __init__(self, url: str, shards: int) -> None:
        self._url, self._shards = url, shards
        self._seqs = [array("q") for _ in range(shards)]
        self._times = [array("Q") for _ in range(shards)]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watermarks", daemon=True)
        self.failure: str | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for it."""
        self._over.set()
        self._thread.join(5)

    def covered_ns(self, shard: int, seq: int) -> int | None:
        """Monotonic time at which W of `shard` was seen at or above `seq`; None: never."""
        seqs = self._seqs[shard]
        at = bisect_left(seqs, seq)
        return self._times[shard][at] if at < len(seqs) else None

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._poll()
            except redis.RedisError as failure:
                self.failure = type(failure).__name__  # it may come back: a run may kill it
                self._over.wait(0.2)

    def _poll(self) -> None:
        # Any: these methods of redis-py have no types.
        connection: Any = redis.ConnectionPool.from_url(
            self._url,
            driver_info=None,
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
        ).get_connection()
        commands = [("HGET", f"{{s:{shard}}}:w", "w") for shard in range(self._shards)]
        packed = connection.pack_commands(commands)
        last = [b""] * self._shards
        try:
            while not self._over.wait(INTERVAL_S):
                connection.send_packed_command(packed)
                for shard in range(self._shards):
                    value = connection.read_response()
                    if value and value != last[shard]:
                        last[shard] = value
                        self._note(shard, value)
        finally:
            connection.disconnect()

    def _note(self, shard: int, value: bytes) -> None:
        try:
            seq = watermark.coverage(watermark.unpack(value))
        except RecordError:
            return  # not ours to judge
        seqs = self._seqs[shard]
        if not seqs or seq > seqs[-1]:
            seqs.append(seq)
            self._times[shard].append(time.monotonic_ns())
