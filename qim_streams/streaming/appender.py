"""Appending single records now and then, without a worker's producer: commands, and what an operator does.

Spec: §11.
"""

import logging
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.kafka_access import Brokers, access_of

APPEND_S: Final = 15.0

log = logging.getLogger(__name__)


class Appender:
    """Appends single records, each with its acknowledgement; one connection, which the first call opens.

    A producer costs round trips before its first record, and while the line of a split is drawn users wait.
    May be called from several threads.
    """

    def __init__(self, brokers: Brokers, client_id: str, deadline_s: float = APPEND_S) -> None:
        """`deadline_s`: how long a record may be under way."""
        self._brokers, self._client_id, self._deadline_s = brokers, client_id, deadline_s
        self._producer: Producer | None = None

    def append(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> int:
        """Append one record and wait; its offset. Blocking. StoreUnavailable UNKNOWN: it may be there."""
        found: list[Any] = []

        def delivered(error: object, message: object) -> None:
            found.append((error, message))

        try:
            producer = self._opened()
            producer.produce(topic, value, key, partition=partition, on_delivery=delivered)
            producer.flush(self._deadline_s + 5)
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
                    "client.id": self._client_id,
                    "enable.idempotence": True,
                    "acks": "all",
                    "delivery.timeout.ms": int(self._deadline_s * 1000),
                },
                logger=log,
            )
        return self._producer
