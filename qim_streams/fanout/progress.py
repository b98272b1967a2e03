"""The table ``conversation_progress``: up to which Outbox offset a partition is dispatched.

One page per partition, absolute: W (the last offset whose dispatches are all acknowledged) and when it
was written. It is written after the acknowledgements, so a phantom (local, not in the changelog) is true.

Spec: §4, §14.7.
"""

from typing import NamedTuple

from qim_streams.codec import pack_fields, unpack_fields
from qim_streams.mailbox.ports import ChangelogTable

PAGE_KEY = b"page"
NOTHING = -1


class OutboxPage(NamedTuple):
    """W of an Outbox partition, inclusive."""

    dispatched_through: int
    at_ms: int

    def encode(self) -> bytes:
        """The value's bytes."""
        return pack_fields(tuple(self))


def decode_outbox_page(data: bytes) -> OutboxPage:
    """An OutboxPage from its bytes; RecordError if they are not one."""
    return OutboxPage(*unpack_fields(data, 2, "OutboxPage")[:2])


class ConversationProgress:
    """Reads and writes the table; partition = Outbox partition."""

    def __init__(self, table: ChangelogTable) -> None:
        self._table = table

    def read(self, partition: int) -> int:
        """W, -1 for none."""
        data = self._table.read(partition, PAGE_KEY)
        return NOTHING if data is None else decode_outbox_page(data).dispatched_through

    def write(self, partition: int, dispatched_through: int, at_ms: int) -> None:
        """Set W; durable after `barrier`."""
        self._table.write_batch(partition, {PAGE_KEY: OutboxPage(dispatched_through, at_ms).encode()})

    async def barrier(self, partition: int) -> None:
        """Wait until what was written is in the changelog."""
        await self._table.barrier(partition)
