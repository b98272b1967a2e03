"""What is sampled beside a strike: commits against effects, epochs against W, what processes use.

A thread of its own; what cannot be read while things are broken is skipped and counted. The order of the
reads is what makes a sample a proof: the committed offset before the effect, so that an effect that came
later can hide a violation, but none is ever invented.

Spec: §11, §14.6. Invariants I14 I17 I18 (judged in ``checkers``).
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

import redis
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from qim_streams.errors import RecordError
from qim_streams.mailbox import watermark
from tests.support.checkers import CommitSample, FanoutSample, ShardSample
from tests.support.logs import DISPATCH, OUTBOX
from tests.support.looking import Looking
from tests.support.stack import StackProcess

EVERY_S = 0.2
ASK_S = 3.0
FANOUT, MAILBOX, QSESSION = "qim-fanout-coordinator", "qim-mailbox-node", "qim-qsession"


class StrikeWatch(Looking):
    """Samples of one strike. Use as a context manager."""

    def __init__(self, stack: StackProcess, outbox_partitions: int, shards: int) -> None:
        super().__init__("strike watch", EVERY_S)
        self._stack, self._partitions, self._shards = stack, outbox_partitions, shards
        self._redis = redis.Redis.from_url(stack.client["redis_url"], socket_timeout=ASK_S)
        self._admin = AdminClient({"bootstrap.servers": stack.client["brokers"], "log_level": 0})
        self.shards: list[ShardSample] = []
        self.commits: list[CommitSample] = []
        self.fanout: list[FanoutSample] = []
        self.peaks: dict[str, dict[str, float]] = defaultdict(dict)
        self.taken = self.skipped = 0

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._redis.close()

    def look(self) -> None:
        """A sample of each kind."""
        for take in (self._take_use, self._take_shards, self._take_streams, self._take_fanout):
            try:
                take()
                self.taken += 1
            except (redis.RedisError, KafkaException, OSError, RecordError, StopIteration):
                self.skipped += 1

    def _take_shards(self) -> None:
        """Grant, last writer and W of every shard, read in one step of the store."""
        pipe = self._redis.pipeline(transaction=True)
        for shard in range(self._shards):
            pipe.get(f"{{s:{shard}}}:epoch")
            pipe.hmget(f"{{s:{shard}}}:w", ["w", "epoch"])
        answers = pipe.execute()
        for shard in range(self._shards):
            granted, (packed, writer) = answers[2 * shard], answers[2 * shard + 1]
            if granted is not None and packed is not None and writer is not None:
                lanes = tuple(watermark.unpack(packed))
                self.shards.append(ShardSample(shard, int(granted), int(writer), lanes))

    def _take_streams(self) -> None:
        """Mailbox and projection: the group's offsets, then W and the checkpoints."""
        committed = {group: self._committed(group, DISPATCH, self._shards) for group in (MAILBOX, QSESSION)}
        pipe = self._redis.pipeline(transaction=False)
        for shard in range(self._shards):
            pipe.hget(f"{{s:{shard}}}:w", "w")
            pipe.hget(f"{{qp:{shard}}}:at", "offset")
        answers = pipe.execute()
        for shard in range(self._shards):
            packed, offset = answers[2 * shard], answers[2 * shard + 1]
            lowest = min(watermark.unpack(packed)) if packed is not None else -1
            durable = {MAILBOX: lowest, QSESSION: int(offset) if offset is not None else -1}
            self.commits += [
                CommitSample(group, shard, committed[group][shard], durable[group])
                for group in durable
                if shard in committed[group]
            ]

    def _take_fanout(self) -> None:
        committed = self._committed(FANOUT, OUTBOX, self._partitions)
        asked = {TopicPartition(DISPATCH, shard): OffsetSpec.latest() for shard in range(self._shards)}
        found = self._admin.list_offsets(asked, request_timeout=ASK_S)
        ends = {place.partition: int(future.result(ASK_S).offset) for place, future in found.items()}
        self.fanout += [FanoutSample(partition, at, ends) for partition, at in committed.items()]

    def _committed(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        places = [TopicPartition(topic, number) for number in range(partitions)]
        asked = [ConsumerGroupTopicPartitions(group, places)]
        futures = self._admin.list_consumer_group_offsets(asked, request_timeout=ASK_S)
        answer = next(iter(futures.values())).result(ASK_S)
        return {one.partition: one.offset for one in answer.topic_partitions if one.offset >= 0}

    def _take_use(self) -> None:
        """Memory and handles of every role."""
        for role in self._stack.status().roles:
            if role.pid is None:
                continue
            peaks, used = self.peaks[role.name], use_of(role.pid)
            for kind, amount in used.items():
                peaks[kind] = max(amount, peaks.get(kind, 0.0))


def use_of(pid: int) -> dict[str, float]:
    """Resident megabytes, open files and threads of a process; OSError when it has ended."""
    process = Path("/proc") / str(pid)
    status: dict[str, Any] = dict(
        line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line
    )
    return {
        "MB": int(status.get("VmRSS", "0 kB").split()[0]) / 1024,
        "open files": float(len(list((process / "fd").iterdir()))),
        "threads": float(status["Threads"]),
    }
