"""Ports of sync: what a login and a pull need besides the mailbox store.

Spec: §7, §11.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class MailboxAddress(NamedTuple):
    """Whose mailbox, on which device, and where it lies."""

    tenant_id: str
    user_id: str
    device_id: str
    ordinal: int
    shard: int
    lane: int


class ShardEpochs(Protocol):
    """The epoch of a MailboxShard's latest owner."""

    async def current(self, shard: int) -> int:
        """The epoch last granted, 0 when the shard never had an owner."""


class EpochBoundaries(Protocol):
    """What changes of epoch did to positions (`boundaries`)."""

    async def boundary(self, shard: int, lane: int, from_epoch: int, to_epoch: int) -> int | None:
        """The largest mailbox_seq of a lane that means the same in both epochs; None when nobody knows.

        What a cursor claims above it, it claims of something that is gone. Needs from_epoch < to_epoch.
        """


class BodyReader(Protocol):
    """A place that holds MessageRecords: the hot tier or the archive."""

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        """MessageRecord bytes by (tenant, conversation, seq), None where this place has none."""
