"""Dispatches for the mailbox tests: message number n, for shard 0, members inline."""

from collections.abc import Sequence
from typing import NamedTuple

from qim_streams import ids
from qim_streams.records import GroupDispatch, pack_ordinals


class Record(NamedTuple):
    """A record of the log."""

    offset: int
    key: bytes | None
    value: bytes | None


def dispatch(number: int, members: Sequence[int] | None = (1, 65), shard: int = 0) -> GroupDispatch:
    """The GroupDispatch of message `number`; the sender has ordinal 1."""
    message_id = number.to_bytes(16, "big")
    return GroupDispatch(
        tenant_id="acme",
        dispatch_id=ids.dispatch_id(message_id, shard),
        message_id=message_id,
        conversation_id="c1",
        conversation_seq=number,
        last_activity_id=message_id,
        sender_id="ann",
        fencing_epoch=1,
        membership_version=1,
        target_mailbox_shard=shard,
        kind=0,
        sender_ordinal=1,
        sender_device_id="phone",
        client_message_id=f"m{number}",
        body_digest=b"8 bytes!",
        outbox_partition=0,
        outbox_offset=number,
        committed_at=1_000 + number,
        bitmap_version=4,
        members=None if members is None else pack_ordinals(list(members)),
    )


def record(offset: int, value: GroupDispatch | bytes | None) -> Record:
    """The record at `offset`."""
    data = value.encode() if isinstance(value, GroupDispatch) else value
    return Record(offset, b"acme\0c1", data)
