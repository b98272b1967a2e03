"""The Outbox and the membership change log on Kafka, through the idempotent log producer.

Invariants: partitions are explicit; records are handed over in the very call, so order is the order of
calls; nothing is repeated here.

Spec: §3.4, §4.
"""

from collections.abc import Awaitable, Callable, Sequence

from qim_streams.commit.ports import OutboxAppend
from qim_streams.membership.ports import MembershipRow
from qim_streams.streaming.producer import LogProducer, OutgoingRecord

OUTBOX_TOPIC = "qim.outbox.v1"
MEMBERSHIP_TOPIC = "qim.membership.v1"


class KafkaOutbox:
    """`Outbox` on a started `LogProducer`."""

    def __init__(self, producer: LogProducer) -> None:
        self._producer = producer

    def append(self, records: Sequence[OutboxAppend]) -> Awaitable[list[int]]:
        """See the port."""
        return self._producer.append_nowait(
            [OutgoingRecord(OUTBOX_TOPIC, one.partition, one.key, one.value) for one in records]
        )


class KafkaMembershipLog:
    """`MembershipLog` on a started `LogProducer`. `partition_of(tenant, conversation)` is the topic's."""

    def __init__(self, producer: LogProducer, partition_of: Callable[[str, str], int]) -> None:
        self._producer, self._partition_of = producer, partition_of

    def append(self, rows: Sequence[MembershipRow]) -> Awaitable[list[int]]:
        """See the port."""
        return self._producer.append_nowait(
            [
                OutgoingRecord(
                    MEMBERSHIP_TOPIC,
                    self._partition_of(row.tenant_id, row.conversation_id),
                    row.key,
                    row.value,
                )
                for row in rows
            ]
        )
