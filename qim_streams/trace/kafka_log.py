"""The log port on Kafka: offsets by time through the admin API, records through a consumer without a group.

Nothing is committed and no group is joined, so a trace is invisible to the workers. All calls of the
drivers happen in one thread, one scan at a time.

Spec: §1.
"""

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from qim_streams.bounded_calls import BoundedCalls
from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.kafka_access import Brokers, access_of
from qim_streams.trace.ports import LogEntry, Scan, Visit

_POLL_S = 0.2
_CONSUME_MAX = 500
_GROUP = "qim-trace"  # the driver demands a name; with explicit assignments no group is joined

log = logging.getLogger(__name__)


class KafkaLogReader:
    """Reads any partition of the log. Connects at the first call."""

    def __init__(self, brokers: Brokers, *, timeout_s: float = 10.0) -> None:
        self._brokers, self._timeout_s = brokers, timeout_s
        self._calls = BoundedCalls("trace log reader", calls_max=16)
        self._stop = threading.Event()
        self._admin: AdminClient | None = None
        self._consumer: Consumer | None = None

    async def partitions(self, topic: str) -> int:
        """How many partitions a topic has, 0 when it does not exist."""
        return await self._calls.run(self._partitions, topic)

    async def offsets_at(self, topic: str, partitions: list[int], at_ms: int) -> dict[int, int]:
        """Per partition the first offset at or after `at_ms`; its end when there is none."""
        return await self._calls.run(self._offsets_at, topic, partitions, at_ms)

    async def scan(self, topic: str, starts: Mapping[int, int], visit: Visit, entries_max: int) -> Scan:
        """Show `visit` the entries of each partition; see the port. Ends early when the reader is closed."""
        return await self._calls.run(self._scan, topic, dict(starts), visit, entries_max)

    async def close(self) -> None:
        """Stop a running scan and release the connections."""
        self._stop.set()
        await self._calls.close(self._drop)

    # -- in the reader's thread

    def _connected(self) -> AdminClient:
        if self._admin is None:
            admin = AdminClient(
                {**access_of(self._brokers).librdkafka(), "client.id": _GROUP, "socket.timeout.ms": 10_000},
                logger=log,
            )
            try:
                # Without this the first request for leaders may meet the bootstrap connection just as it is
                # replaced by the broker's own, and librdkafka repeats it only after three seconds.
                admin.list_topics(timeout=self._timeout_s)
            except KafkaException as error:
                raise self._unavailable(error) from error
            self._admin = admin
        return self._admin

    def _unavailable(self, error: object) -> StoreUnavailable:
        return StoreUnavailable(f"the log at {self._brokers}: {error}", Outcome.NOT_APPLIED)

    def _partitions(self, topic: str) -> int:
        try:
            known = self._connected().list_topics(topic, timeout=self._timeout_s).topics.get(topic)
        except KafkaException as error:
            raise self._unavailable(error) from error
        return 0 if known is None or known.error is not None else len(known.partitions)

    def _offsets(self, topic: str, partitions: list[int], spec: OffsetSpec) -> dict[int, int]:
        asked = {TopicPartition(topic, partition): spec for partition in partitions}
        if not asked:
            return {}
        try:
            futures = self._connected().list_offsets(asked, request_timeout=self._timeout_s)
            return {
                one.partition: future.result(self._timeout_s + 1).offset for one, future in futures.items()
            }
        except (KafkaException, TimeoutError) as error:
            raise self._unavailable(error) from error

    def _offsets_at(self, topic: str, partitions: list[int], at_ms: int) -> dict[int, int]:
        found = self._offsets(topic, partitions, OffsetSpec.for_timestamp(max(0, at_ms)))
        late = [partition for partition, offset in found.items() if offset < 0]
        return found | self._offsets(topic, late, OffsetSpec.latest())

    def _scan(self, topic: str, starts: dict[int, int], visit: Visit, entries_max: int) -> Scan:
        ends = self._offsets(topic, list(starts), OffsetSpec.latest())
        begins = self._offsets(topic, list(starts), OffsetSpec.earliest())
        left = {
            partition: ends[partition]
            for partition, start in starts.items()
            if max(start, begins[partition]) < ends[partition]
        }
        if not left:
            return Scan(0, True)
        consumer = self._consumer = self._consumer or Consumer(self._consumer_config(), logger=log)
        # A topic that the consumer does not know yet gets its leaders at the driver's next scan of topics,
        # up to a second later; asking first makes it know them.
        try:
            consumer.list_topics(topic, timeout=self._timeout_s)
        except KafkaException as error:
            raise self._unavailable(error) from error
        consumer.assign([TopicPartition(topic, p, max(starts[p], begins[p])) for p in left])
        try:
            return self._consume(consumer, topic, left, visit, entries_max)
        finally:
            consumer.unassign()

    def _consume(
        self, consumer: Consumer, topic: str, left: dict[int, int], visit: Visit, entries_max: int
    ) -> Scan:
        seen, deadline = 0, time.monotonic() + self._timeout_s
        while left and seen < entries_max and not self._stop.is_set():
            messages = _next_messages(consumer, min(_CONSUME_MAX, entries_max - seen))
            if messages:
                deadline = time.monotonic() + self._timeout_s
            elif time.monotonic() > deadline:
                raise self._unavailable(f"no record of {topic} within {self._timeout_s:.0f} s")
            for message in messages:
                partition = message.partition()
                if partition not in left:
                    continue
                if message.error() is not None:
                    self._judge(message.error())
                    finished = True
                else:
                    seen += 1
                    finished = visit(_entry(message)) or message.offset() + 1 >= left[partition]
                if finished:
                    del left[partition]
                    consumer.incremental_unassign([TopicPartition(topic, partition)])
        return Scan(seen, not left)

    def _judge(self, error: KafkaError) -> None:
        """An end of a partition is no error: the records up to its end may be gone (compacted)."""
        if error.code() != KafkaError._PARTITION_EOF:
            raise self._unavailable(error.str())

    def _consumer_config(self) -> dict[str, Any]:
        return {
            **access_of(self._brokers).librdkafka(),
            "client.id": _GROUP,
            "group.id": _GROUP,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_uncommitted",
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": 16_384,
        }

    def _drop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()
        self._admin = None


def _next_messages(consumer: Consumer, most: int) -> list[Any]:
    """What is there, at least one message unless none comes in time: `consume` alone waits to be full."""
    first = consumer.poll(_POLL_S)
    return [] if first is None else [first, *consumer.consume(most - 1, 0)]


def _entry(message: Any) -> LogEntry:
    return LogEntry(
        message.topic(),
        message.partition(),
        message.offset(),
        int(message.timestamp()[1]),
        message.key(),
        message.value(),
    )
