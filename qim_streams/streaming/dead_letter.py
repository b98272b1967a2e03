"""The dead-letter topic: where a poison record goes, whole, with cause and coordinates.

A record that cannot be processed costs itself and nothing else: the role sends it here, waits for the
acknowledgement, and counts the record as done. Original bytes are kept (a value too large for one record
is cut, which `value_bytes` beside it shows). Nothing of the value or key goes into a log.

Layout of a dead letter: version byte, msgpack array of the fields of `DeadLetter` in their order.

Spec: §11; every record type has a version byte.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from qim_streams import codec
from qim_streams.errors import RecordError
from qim_streams.streaming import metrics
from qim_streams.streaming.producer import LogProducer, OutgoingRecord

log = logging.getLogger(__name__)

DEAD_LETTER_TOPIC: Final = "qim.dead-letter.v1"
MESSAGE_CHARS_MAX: Final = 1_000
KEY_BYTES_MAX: Final = 4_096
VALUE_BYTES_MAX: Final = codec.RECORD_BYTES_MAX - 16_384


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that a role could not process. `value_bytes` is the size of the original value."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    value_bytes: int
    cause: str
    message: str
    role: str
    at_ms: int

    @property
    def truncated(self) -> bool:
        """Whether `value` is only the beginning of the original."""
        return len(self.value or b"") < self.value_bytes

    def encode(self) -> bytes:
        """The bytes of the record."""
        return codec.pack_fields(
            (
                self.topic,
                self.partition,
                self.offset,
                self.key,
                self.value,
                self.value_bytes,
                self.cause,
                self.message,
                self.role,
                self.at_ms,
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> "DeadLetter":
        """The dead letter of `data`; RecordError when it is not one."""
        fields = codec.unpack_fields(data, 10, "dead letter")[:10]
        kinds = (str, int, int, bytes | None, bytes | None, int, str, str, str, int)
        if not all(isinstance(value, kind) for value, kind in zip(fields, kinds, strict=True)):
            raise RecordError("dead letter: a field has the wrong type")
        return cls(*fields)

    @classmethod
    def of(
        cls, topic: str, partition: int, record: Any, error: BaseException, role: str, at_ms: int
    ) -> "DeadLetter":
        """The dead letter of a consumed `record` that raised `error`; sizes are cut to their bounds."""
        value, key = record.value, record.key
        return cls(
            topic=topic,
            partition=partition,
            offset=record.offset,
            key=None if key is None else bytes(key[:KEY_BYTES_MAX]),
            value=None if value is None else bytes(value[:VALUE_BYTES_MAX]),
            value_bytes=len(value or b""),
            cause=type(error).__name__,
            message=str(error)[:MESSAGE_CHARS_MAX],
            role=role,
            at_ms=at_ms,
        )


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
