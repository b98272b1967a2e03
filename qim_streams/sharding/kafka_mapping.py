"""The log of mappings on Kafka: one partition of ``qim.mapping.v1``.

Spec: §11.
"""

import asyncio
from typing import Final

from qim_streams.commit.kafka_reader import KafkaLogReader
from qim_streams.kafka_access import Brokers
from qim_streams.sharding.mapping_log import MAPPING_TOPIC
from qim_streams.streaming.appender import Appender

PARTITION: Final = 0
CLIENT_ID: Final = "qim-shard"


class KafkaMappingLog:
    """`MappingLog`. Connects on first use; close it after use."""

    def __init__(self, brokers: Brokers, appender: Appender | None = None) -> None:
        self._appender = appender if appender is not None else Appender(brokers, CLIENT_ID)
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
