"""Reading the room log at a takeover: `RoomLogReader` on Kafka.

Spec: §10, §11.
"""

import asyncio

from confluent_kafka import KafkaException, TopicPartition

from qim_streams.commit.kafka_reader import ANSWER_TIMEOUT_S, KafkaLogReader
from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.kafka_access import Brokers
from qim_streams.rooms.appends import TOPIC


class KafkaRoomReader(KafkaLogReader):
    """One consumer, used by one takeover at a time."""

    def __init__(self, brokers: Brokers) -> None:
        super().__init__(brokers, TOPIC)

    async def span(self, partition: int) -> tuple[int, int]:
        """See the port."""
        async with self._turn:
            try:
                return await asyncio.to_thread(self._span, partition)
            except KafkaException as error:
                what = f"{TOPIC}[{partition}]: {error.args[0].str()}"
                raise StoreUnavailable(what, Outcome.NOT_APPLIED) from error

    def _span(self, partition: int) -> tuple[int, int]:
        place = TopicPartition(TOPIC, partition)
        low, high = self._opened().get_watermark_offsets(place, timeout=ANSWER_TIMEOUT_S)
        return int(low), int(high)
