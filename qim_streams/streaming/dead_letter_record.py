"""A dead letter: a record that could not be processed, with cause and coordinates.

Layout: version byte, msgpack array of the fields of `DeadLetter` in their order. Pure.

Spec: §11; every record type has a version byte.
"""

from dataclasses import dataclass
from typing import Any, Final

from qim_streams import codec
from qim_streams.errors import RecordError

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
