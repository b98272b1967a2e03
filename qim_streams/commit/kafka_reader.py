"""Reads a partition of a log from an offset to its end, outside of any consumer group.

Invariants: what is returned is gapless from the start asked for to the end as of the call, or an error; one
blocking consumer, used by one reader at a time, on a thread. A consumer that failed is not asked again: one
that met a topic while it was being made says "unknown partition" of it for as long as it lives.

Spec: §14.4.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from qim_streams.errors import InvariantViolation, Outcome, StoreUnavailable
from qim_streams.kafka_access import Brokers, access_of

log = logging.getLogger(__name__)

BATCH_MAX = 1_000
ANSWER_TIMEOUT_S = 10.0
POLL_S = 0.2
SILENCE_MAX_S = 30.0  # without a record while there are some
LogRow = tuple[int, bytes, bytes]  # offset, key, value


class KafkaLogReader:
    """Rows (offset, key, value) of one topic. Close it after use."""

    def __init__(self, brokers: Brokers, topic: str) -> None:
        self._topic = topic
        self._turn = asyncio.Lock()
        self._config = {
            **access_of(brokers).librdkafka(),
            "group.id": "qim-log-reader",  # required by the client; never joined
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": False,
            "isolation.level": "read_uncommitted",
            # A long poll that is under way holds up the first fetch of the next partition.
            "fetch.wait.max.ms": 10,
        }
        self._consumer: Consumer | None = None

    async def read(self, partition: int, start: int) -> AsyncIterator[list[LogRow]]:
        """Batches from `start` to the end as of this call; errors as in `commit.ports.OutboxReader`."""
        async with self._turn:
            try:
                end = await asyncio.to_thread(self._open, partition, start)
                position, heard_s = start, time.monotonic()
                while position < end:
                    batch = await asyncio.to_thread(self._next, min(BATCH_MAX, end - position))
                    if batch:
                        position, heard_s = batch[-1][0] + 1, time.monotonic()
                        yield batch
                    elif time.monotonic() - heard_s > SILENCE_MAX_S:
                        where = f"{self._topic}[{partition}] at {position} of {end}"
                        raise StoreUnavailable(
                            f"{where}: no record in {SILENCE_MAX_S:.0f} s", Outcome.NOT_APPLIED
                        )
                if end > start:
                    await asyncio.to_thread(self._leave)
            except KafkaException as error:
                raise await self._failed(partition, error) from error

    async def begin(self, partition: int) -> int:
        """The first offset that the partition still has. StoreUnavailable when the log does not answer."""
        return (await self.span(partition))[0]

    async def span(self, partition: int) -> tuple[int, int]:
        """The first offset that the partition still has, and the end. Errors as in `begin`."""
        async with self._turn:
            try:
                return await asyncio.to_thread(self._span, partition)
            except KafkaException as error:
                raise await self._failed(partition, error) from error

    async def close(self) -> None:
        """Let the connection go."""
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await asyncio.to_thread(consumer.close)

    async def _failed(self, partition: int, error: KafkaException) -> StoreUnavailable:
        await self.close()  # the next call gets another consumer
        return StoreUnavailable(f"{self._topic}[{partition}]: {error.args[0].str()}", Outcome.NOT_APPLIED)

    def _span(self, partition: int) -> tuple[int, int]:
        place = TopicPartition(self._topic, partition)
        low, high = self._opened().get_watermark_offsets(place, timeout=ANSWER_TIMEOUT_S)
        return int(low), int(high)

    def _opened(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(self._config, logger=log)
        return self._consumer

    def _open(self, partition: int, start: int) -> int:
        """The end of the log; the consumer stands at `start`."""
        place = TopicPartition(self._topic, partition, start)
        low, high = self._opened().get_watermark_offsets(place, timeout=ANSWER_TIMEOUT_S)
        if low > start or high < start:
            raise InvariantViolation(
                f"{self._topic}[{partition}]: the hot tier knows it up to offset {start - 1}, and it holds "
                f"{low} to {high - 1}: the log was created anew, or the hot tier was emptied after its "
                "retention; restore the one that was lost, or start with both empty"
            )
        if high > start:
            self._opened().assign([place])
        return int(high)

    def _next(self, count: int) -> list[LogRow]:
        # The call ends when it has `count` records, so that must not be more than there are; where compaction
        # has made holes it ends by its timeout.
        assert self._consumer is not None, "opened before"
        return [_row(message) for message in self._consumer.consume(count, timeout=POLL_S)]

    def _leave(self) -> None:
        assert self._consumer is not None, "opened before"
        self._consumer.unassign()


def _row(message: Message) -> LogRow:
    error = message.error()
    if error is not None:
        raise KafkaException(error)
    return message.offset(), message.key() or b"", message.value() or b""
