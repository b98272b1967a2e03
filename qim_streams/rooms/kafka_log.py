"""Reading the room log at a takeover: `RoomLogReader` on Kafka.

Spec: §10, §11.
"""

from qim_streams.commit.kafka_reader import KafkaLogReader
from qim_streams.kafka_access import Brokers
from qim_streams.rooms.appends import TOPIC


class KafkaRoomReader(KafkaLogReader):
    """One consumer, used by one takeover at a time."""

    def __init__(self, brokers: Brokers) -> None:
        super().__init__(brokers, TOPIC)
