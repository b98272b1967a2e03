"""The log of mappings on Kafka: one partition of ``qim.mapping.v1``.

Spec: §11.
"""

import asyncio
import logging
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from qim_streams.commit.kafka_reader import KafkaLogReader
from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.kafka_access import Brokers, access_of
from qim_streams.sharding.mapping_log import MAPPING_TOPIC

log = logging.getLogger(__name__)

PARTITION: Final = 0
APPEND_S: Final = 15.0


class Appender:
    """Appends single records, each with its acknowledgement; one connection, which the first call opens.

    A producer costs round trips before its first record, and while the line of a split is drawn users wait.
    May be called from several threads.
    """

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._producer: Producer | None = None

    def append(self, topic: str, partition: int, key: bytes, value: bytes) -> int:
        """Append one record and wait; its offset. Blocking. StoreUnavailable UNKNOWN: it may be there."""
        found: list[Any] = []

        def delivered(error: object, message: object) -> None:
            found.append((error, message))

        try:
            producer = self._opened()
            producer.produce(topic, value, key, partition=partition, on_delivery=delivered)
            producer.flush(APPEND_S + 5)
        except (KafkaException, BufferError) as error:
            self._producer = None
            raise StoreUnavailable(f"{topic}[{partition}]: {error}", Outcome.UNKNOWN) from error
        refused, message = found[0] if found else ("no answer", None)
        if refused is not None or message is None:
            self._producer = None  # what went wrong may stay with it
            raise StoreUnavailable(f"{topic}[{partition}]: {refused}", Outcome.UNKNOWN)
        return int(message.offset())

    def _opened(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(
                {
                    **access_of(self._brokers).librdkafka(),
                    "client.id": "qim-shard",
                    "enable.idempotence": True,
                    "acks": "all",
                    "delivery.timeout.ms": int(APPEND_S * 1000),
                },
                logger=log,
            )
        return self._producer


class KafkaMappingLog:
    """`MappingLog`. Connects on first use; close it after use."""

    def __init__(self, brokers: Brokers, appender: Appender | None = None) -> None:
        self._appender = appender if appender is not None else Appender(brokers)
        self._reader = KafkaLogReader(brokers, MAPPING_TOPIC)

    async def read(self, start: int) -> tuple[list[bytes], int]:
        """See the port."""
        values: list[bytes] = []
        async for batch in self._reader.read(PARTITION, start):
            values += [value for _, _, value in batch]
            start = batch[-1][0] + 1
        return values, start

    async def append(self, key: bytes, value: bytes) -> None:
        """See the port."""
        await asyncio.to_thread(self._appender.append, MAPPING_TOPIC, PARTITION, key, value)

    async def close(self) -> None:
        """Let the connection go."""
        await self._reader.close()


def append_record(brokers: Brokers, topic: str, partition: int, key: bytes, value: bytes) -> int:
    """Append one record by a connection of its own; see `Appender.append`."""
    return Appender(brokers).append(topic, partition, key, value)
