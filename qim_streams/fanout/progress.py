"""The table ``conversation_progress``: up to which Outbox offset a partition is dispatched.

One page per partition, absolute: W (the last offset whose dispatches are all acknowledged), when it was
written, and the fence as of W (`ownership.log_fence`). It is written after the acknowledgements, so a phantom
(local, not in the changelog) is true.

Spec: §4, §14.7.
"""

from typing import NamedTuple

from qim_streams.codec import pack_fields, unpack_fields
from qim_streams.mailbox.ports import ChangelogTable
from qim_streams.ownership.log_fence import NO_FENCE

PAGE_KEY = b"page"
NOTHING = -1


class OutboxPage(NamedTuple):
    """W of an Outbox partition, inclusive, and the epoch of the last barrier up to there."""

    dispatched_through: int
    at_ms: int
    fence: int = NO_FENCE
    mapping_version: int = 0  # in force behind W (`sharding.marker`)

    def encode(self) -> bytes:
        """The value's bytes."""
        return pack_fields(tuple(self) if self.mapping_version else tuple(self)[:3])


NO_PAGE = OutboxPage(NOTHING, 0)


def decode_outbox_page(data: bytes) -> OutboxPage:
    """An OutboxPage from its bytes; RecordError if they are not one."""
    through, at_ms, *later = unpack_fields(data, 2, "OutboxPage")[:4]
    return OutboxPage(through, at_ms, *later)


class ConversationProgress:
    """Reads and writes the table; partition = Outbox partition."""

    def __init__(self, table: ChangelogTable) -> None:
        self._table = table

    def read(self, partition: int) -> OutboxPage:
        """W, -1 for none, and the fence."""
        data = self._table.read(partition, PAGE_KEY)
        return NO_PAGE if data is None else decode_outbox_page(data)

    def write(self, partition: int, page: OutboxPage) -> None:
        """Set W; durable after `barrier`."""
        self._table.write_batch(partition, {PAGE_KEY: page.encode()})

    async def barrier(self, partition: int) -> None:
        """Wait until what was written is in the changelog."""
        await self._table.barrier(partition)
