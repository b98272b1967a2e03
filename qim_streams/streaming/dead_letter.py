"""The dead-letter topic: where a poison record goes, whole, with cause and coordinates.

A record that cannot be processed costs itself and nothing else: the role sends it here, waits for the
acknowledgement, and counts the record as done. Original bytes are kept (a value too large for one record
is cut, which `value_bytes` beside it shows). Nothing of the value or key goes into a log.

What a dead letter is: ``dead_letter_record``.

Spec: §11.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from qim_streams.streaming import metrics
from qim_streams.streaming.dead_letter_record import DeadLetter
from qim_streams.streaming.producer import LogProducer, OutgoingRecord

log = logging.getLogger(__name__)

DEAD_LETTER_TOPIC: Final = "qim.dead-letter.v1"


class DeadLetterSink:
    """Sends dead letters of one role and waits until they are durable."""

    def __init__(
        self,
        producer: LogProducer,
        role: str,
        partitions: int,
        now_ms: Callable[[], int],
        topic: str = DEAD_LETTER_TOPIC,
    ) -> None:
        self._producer, self._role, self._partitions = producer, role, partitions
        self._now_ms, self._topic = now_ms, topic

    async def send(self, topic: str, partition: int, record: Any, error: BaseException) -> None:
        """As `send_many` for one record."""
        await self.send_many(topic, [(partition, record, error)])

    async def send_many(self, topic: str, poison: Sequence[tuple[int, Any, BaseException]]) -> None:
        """Send (partition, record, what it raised) of `topic`; returns when all are acknowledged.

        Raises what `LogProducer.append` raises: then nothing may be counted as done.
        """
        if not poison:
            return
        at_ms = self._now_ms()
        letters = [
            DeadLetter.of(topic, partition, record, error, self._role, at_ms)
            for partition, record, error in poison
        ]
        await self._producer.append(
            [
                OutgoingRecord(self._topic, letter.partition % self._partitions, letter.key, letter.encode())
                for letter in letters
            ]
        )
        metrics.DEAD_LETTERS.labels(self._role, topic).inc(len(letters))
        for letter in letters:
            log.error(
                "dead letter: %s[%d] offset %d: %s: %s",
                letter.topic,
                letter.partition,
                letter.offset,
                letter.cause,
                letter.message,
            )
