"""The log of dead letters on Kafka, and appends of records that are given back.

Reading goes through the trace's reader (no group, nothing committed), appending through a producer that lives
as long as one append: it happens when an operator says so.

Spec: §11.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from qim_streams.console.dead_letters import Stored
from qim_streams.errors import RecordError
from qim_streams.kafka_access import Brokers
from qim_streams.streaming.appender import Appender
from qim_streams.streaming.dead_letter import DEAD_LETTER_TOPIC
from qim_streams.streaming.dead_letter_record import DeadLetter
from qim_streams.trace.kafka_log import KafkaLogReader
from qim_streams.trace.ports import LogEntry
from qim_streams.trace.progress import FAR_FUTURE_MS

APPEND_S: Final = 10.0


class KafkaLetterLog:
    """`LetterLog` on Kafka. The reader stays the caller's."""

    def __init__(self, brokers: Brokers, reader: KafkaLogReader) -> None:
        self._brokers, self._reader = brokers, reader

    async def ranges(self) -> list[tuple[int, int]]:
        """See `LetterLog.ranges`."""
        partitions = list(range(await self._reader.partitions(DEAD_LETTER_TOPIC)))
        begins = await self._reader.offsets_at(DEAD_LETTER_TOPIC, partitions, 0)
        ends = await self._reader.offsets_at(DEAD_LETTER_TOPIC, partitions, FAR_FUTURE_MS)
        return [(begins[one], ends[one]) for one in partitions]

    async def read(self, spans: Mapping[int, tuple[int, int]]) -> list[Stored]:
        """See `LetterLog.read`."""
        found: list[Stored] = []

        def visit(entry: LogEntry) -> bool:
            end = spans[entry.partition][1]
            if entry.offset < end:
                found.append(decoded(entry.partition, entry.offset, entry.value))
            return entry.offset + 1 >= end

        starts = {partition: begin for partition, (begin, _) in spans.items()}
        most = sum(end - begin for begin, end in spans.values()) + len(spans)
        await self._reader.scan(DEAD_LETTER_TOPIC, starts, visit, most)
        return found

    async def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> int:
        """See `LetterLog.append`."""
        appender = Appender(self._brokers, "qim-console", APPEND_S)
        return await asyncio.to_thread(appender.append, topic, partition, key, value)


def decoded(partition: int, offset: int, value: bytes | None) -> Stored:
    """A record of the log of dead letters."""
    try:
        return Stored(partition, offset, DeadLetter.decode(value or b""))
    except RecordError:
        return Stored(partition, offset, None)
