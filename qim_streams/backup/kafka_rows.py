"""The log for backup and restore: bounds, rows with their tombstones, appends, and where a log begins.

Spec: §14.8.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from qim_streams.backup.ports import LogRow
from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.kafka_access import Brokers, access_of
from qim_streams.streaming.producer import LogProducer, OutgoingRecord
from qim_streams.streaming.topics import admin_client

log = logging.getLogger(__name__)

ANSWER_S: Final = 20.0
SILENCE_S: Final = 60.0
BATCH: Final = 1_000
AGAIN_S: Final = 0.2
_POLL_S: Final = 0.5


class KafkaRows:
    """`Logs`. `producer` is started; None: nothing is appended."""

    def __init__(self, brokers: Brokers, producer: LogProducer | None = None) -> None:
        self._brokers, self._producer = brokers, producer
        self._consumer: Consumer | None = None

    async def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """See the port."""
        return await asyncio.to_thread(self._bounds, topic, partition)

    async def rows(self, topic: str, partition: int, start: int) -> AsyncIterator[Sequence[LogRow]]:
        """See the port."""
        begin, end = await self.bounds(topic, partition)
        position = max(start, begin)
        if position >= end:
            return
        consumer = self._opened()
        consumer.assign([TopicPartition(topic, partition, position)])
        silent_s = 0.0
        while position < end:
            batch, reached = await asyncio.to_thread(self._next, consumer, topic, partition)
            if batch:
                yield [row for row in batch if row[0] < end]
            silent_s = 0.0 if reached > position else silent_s + _POLL_S
            position = max(position, reached)
            if silent_s > SILENCE_S:
                raise StoreUnavailable(f"{topic}[{partition}] at {position} of {end}: silence")
        consumer.unassign()

    async def append(
        self, topic: str, partition: int, rows: Sequence[tuple[bytes | None, bytes | None]]
    ) -> None:
        """See the port."""
        assert self._producer is not None
        await self._producer.append([OutgoingRecord(topic, partition, key, value) for key, value in rows])

    async def drop_below(self, topic: str, partition: int, offset: int) -> None:
        """See the port."""
        await asyncio.to_thread(self._drop_below, topic, partition, offset)

    async def close(self) -> None:
        """Let the connection go."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await asyncio.to_thread(consumer.close)

    def _opened(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(
                {
                    **access_of(self._brokers).librdkafka(),
                    "group.id": "qim-backup",  # required by the client; never joined
                    "enable.auto.commit": False,
                    "auto.offset.reset": "error",
                    "enable.partition.eof": True,
                    "isolation.level": "read_uncommitted",
                },
                logger=log,
            )
        return self._consumer

    def _bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Asked again for a while: a topic that was made just now has no leader yet."""
        place, until_s = TopicPartition(topic, partition), time.monotonic() + ANSWER_S
        while True:
            try:
                low, high = self._opened().get_watermark_offsets(place, timeout=ANSWER_S)
                return int(low), int(high)
            except KafkaException as error:
                if time.monotonic() >= until_s:
                    raise StoreUnavailable(f"{topic}[{partition}]: {error}", Outcome.NOT_APPLIED) from error
            time.sleep(AGAIN_S)

    def _next(self, consumer: Consumer, topic: str, partition: int) -> tuple[list[LogRow], int]:
        """Rows, and the position behind them (compaction leaves holes: the end may lie behind the last)."""
        rows: list[LogRow] = []
        for message in consumer.consume(BATCH, timeout=_POLL_S):
            error = message.error()
            if error is None:
                rows.append((int(message.offset() or 0), _bytes(message.key()), _bytes(message.value())))
            elif error.code() != KafkaError._PARTITION_EOF:
                raise StoreUnavailable(f"{topic}[{partition}]: {error.str()}", Outcome.NOT_APPLIED)
        place = consumer.position([TopicPartition(topic, partition)])[0].offset
        return rows, max(place, rows[-1][0] + 1 if rows else 0)

    def _drop_below(self, topic: str, partition: int, offset: int) -> None:
        admin = admin_client(self._brokers)  # it must outlive its futures
        place, until_s = TopicPartition(topic, partition, offset), time.monotonic() + ANSWER_S
        while True:
            try:
                for done in admin.delete_records([place], request_timeout=ANSWER_S).values():
                    done.result(2 * ANSWER_S)
                return
            except (KafkaException, TimeoutError) as error:
                if time.monotonic() >= until_s:
                    raise StoreUnavailable(f"{topic}[{partition}]: {error}", Outcome.UNKNOWN) from error
            time.sleep(AGAIN_S)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
