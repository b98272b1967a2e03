"""Reads topics from their beginning to their end, and what the hot tier says about being done.

Everything is read beside the running stack: consumers without a group, plain Redis reads.

Spec: §2, §5, §14.3.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from typing import NamedTuple

import redis
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from qim_streams.errors import RecordError
from qim_streams.mailbox import watermark
from qim_streams.ownership.log_fence import barrier_epoch
from qim_streams.records import OUTBOX_RELAYED, MessageRecord, decode_message, decode_outbox

OUTBOX, DISPATCH = "qim.outbox.v1", "qim.dispatch.v1"
READ_S = 60.0


class Logged(NamedTuple):
    """One Outbox record, duplicates included."""

    partition: int
    offset: int
    relayed: bool
    raw: bytes  # the MessageRecord's bytes
    message: MessageRecord


def _consumer(brokers: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "test-reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": False,
            "log_level": 0,
        }
    )


def _until(deadline_s: float, what: str) -> None:
    if time.monotonic() > deadline_s:
        raise AssertionError(f"within {READ_S} s: {what}")


def ends(brokers: str, topic: str) -> dict[int, int]:
    """The end offset (exclusive) of every partition."""
    deadline_s = time.monotonic() + READ_S
    with closing(_consumer(brokers)) as consumer:
        while True:
            try:
                found = consumer.list_topics(topic, timeout=5).topics[topic]
                if found.error is None and found.partitions:
                    return {
                        number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=5)[1]
                        for number in found.partitions
                    }
            except KafkaException:
                pass  # the broker may just have come back
            _until(deadline_s, f"no end offsets of {topic}")


def read_topic(brokers: str, topic: str, start: Mapping[int, int] | None = None) -> Iterator[Message]:
    """Every record of a topic from `start` (partition -> offset) to its present end; per partition in
    offset order."""
    begin = start or {}
    left = {number: end for number, end in ends(brokers, topic).items() if end > begin.get(number, 0)}
    deadline_s = time.monotonic() + READ_S
    with closing(_consumer(brokers)) as consumer:
        consumer.assign([TopicPartition(topic, number, begin.get(number, 0)) for number in left])
        while left:
            _until(deadline_s, f"{topic} was not read to its end: {left}")
            for record in consumer.consume(200, timeout=0.1):
                number = record.partition()
                if record.error() is None and number in left:
                    yield record
                    if record.offset() + 1 >= left[number]:
                        del left[number]


def read_outbox(brokers: str, tenant_id: str, prefix: str) -> list[Logged]:
    """The Outbox records of a tenant whose client_message_id begins with `prefix`, in offset order."""
    found = []
    fences: dict[int, int] = {}
    for record in read_topic(brokers, OUTBOX):
        epoch = barrier_epoch(record.key(), record.value())
        if epoch is not None:
            fences[record.partition()] = max(epoch, fences.get(record.partition(), 0))
            continue
        try:
            outer = decode_outbox(record.value())
            if outer.fencing_epoch < fences.get(record.partition(), 0):
                continue  # nobody takes what an old owner appends behind a barrier
            message = decode_message(outer.message)
        except RecordError:
            continue  # poison: set aside by every reader
        if message.tenant_id == tenant_id and message.client_message_id.startswith(prefix):
            relayed = bool(outer.flags & OUTBOX_RELAYED)
            found.append(Logged(record.partition(), record.offset(), relayed, outer.message, message))
    return sorted(found, key=lambda one: (one.partition, one.offset))


def count_left_out(brokers: str) -> int:
    """How many Outbox records lie behind the barrier of a newer epoch, and so count for nobody."""
    fences: dict[int, int] = {}
    count = 0
    for record in read_topic(brokers, OUTBOX):
        fence = fences.get(record.partition(), 0)
        epoch = barrier_epoch(record.key(), record.value())
        if epoch is not None:
            fences[record.partition()] = max(epoch, fence)
        else:
            with suppress(RecordError):  # poison
                count += decode_outbox(record.value()).fencing_epoch < fence
    return count


class HotTier:
    """A few questions to the Redis of a stack."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, socket_timeout=5.0, socket_connect_timeout=5.0)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def pending(self) -> int:
        """Messages that are committed and not confirmed in the Outbox, over all partitions."""
        keys = list(self._client.scan_iter(match="{ob:*}:pend", count=1_000))
        return sum(int(self._client.hlen(key)) for key in keys)

    def watermarks(self) -> dict[int, tuple[int, ...]]:
        """W of every shard that has one: 64 lanes each."""
        keys = sorted(self._client.scan_iter(match="{s:*}:w", count=1_000))
        pipe = self._client.pipeline(transaction=False)
        for key in keys:
            pipe.hget(key, "w")
        packed = pipe.execute()
        return {
            int(key.decode().partition("}")[0].partition(":")[2]): watermark.unpack(value)
            for key, value in zip(keys, packed, strict=True)
            if value is not None
        }
