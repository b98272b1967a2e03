"""Building PushBatches: who gets which event, one batch per ConnectionShard and tenant, bodies once.

Pure. The device that sent a message is skipped; the sender's other devices get it with their own flags
and client_message_id. A batch that would exceed the record limit is split between items, an item with
too many recipients between recipients; an item that alone is too large is left out (it is pulled).

Spec: §6.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from qim_streams.codec import RECORD_BYTES_MAX
from qim_streams.ids import event_id
from qim_streams.mailbox.entries import EVENT_ORDINAL_MESSAGE
from qim_streams.mailbox.members import Addressed, Members
from qim_streams.push.presence import Device, OnlineDevices
from qim_streams.records import (
    RECIPIENT_FLAGS,
    SENDER_FLAGS,
    GroupDispatch,
    PresenceReady,
    PushBatch,
    PushItem,
    Recipient,
)

BATCH_BYTES_MAX = RECORD_BYTES_MAX - 4_096
RECIPIENT_BYTES = 48  # without client_message_id; an upper bound of its encoding
ITEM_BYTES = 64
READY_BYTES = 32
MENTION_NONE = 0
RECIPIENTS_MAX = 5_000  # looked up in one go; then other work of the loop gets its turn

_Target = tuple[int, str]  # ConnectionShard, tenant


class Audience(NamedTuple):
    """An event and the devices of one ConnectionShard that get it."""

    offset: int
    dispatch: GroupDispatch
    recipients: list[Recipient]


Audiences = dict[_Target, list[Audience]]


def find_audiences(
    records: Iterable[Addressed], online: OnlineDevices, recipients_max: int = RECIPIENTS_MAX
) -> Iterator[tuple[int, Audiences]]:
    """Who is online among the members of the records, in parts of about `recipients_max` recipients.

    Yields (last offset looked at, audiences). `online` is read when a part is asked for, not before.
    """
    found: Audiences = defaultdict(list)
    count, last = 0, -1
    for record in records:
        last = record.offset
        dispatch = record.dispatch
        if dispatch is None:
            continue
        for shard, recipients in _by_connection_shard(dispatch, record.members, online).items():
            found[shard, dispatch.tenant_id].append(Audience(last, dispatch, recipients))
            count += len(recipients)
        if count >= recipients_max:
            yield last, found
            found, count = defaultdict(list), 0
    if last >= 0:
        yield last, found


def _by_connection_shard(
    dispatch: GroupDispatch, members: Members, online: OnlineDevices
) -> dict[int, list[Recipient]]:
    found: dict[int, list[Recipient]] = {}
    for device in online.among(dispatch.tenant_id, members):
        recipient = _recipient(dispatch, device)
        if recipient is not None:
            found.setdefault(device.connection_shard, []).append(recipient)
    return found


def _recipient(dispatch: GroupDispatch, device: Device) -> Recipient | None:
    is_sender = device.ordinal == dispatch.sender_ordinal
    if is_sender and device.device_id == dispatch.sender_device_id:
        return None
    return Recipient(
        device.connection_id,
        device.session_epoch,
        event_id(dispatch.message_id, device.user_id),
        SENDER_FLAGS if is_sender else RECIPIENT_FLAGS,
        MENTION_NONE,
        dispatch.client_message_id if is_sender else None,
    )


def build_batches(
    shard: int, epoch: int, audiences: Audiences, bodies: Mapping[bytes, bytes]
) -> Iterator[tuple[int, PushBatch]]:
    """(ConnectionShard, PushBatch) for every audience whose body is in `bodies`, in offset order."""
    for (target, tenant), waiting in audiences.items():
        items: list[PushItem] = []
        size = 0
        for item, nbytes in _items(waiting, bodies):
            if items and size + nbytes > BATCH_BYTES_MAX:
                yield target, PushBatch(tenant, shard, epoch, items, [])
                items, size = [], 0
            items.append(item)
            size += nbytes
        if items:
            yield target, PushBatch(tenant, shard, epoch, items, [])


def _items(waiting: Sequence[Audience], bodies: Mapping[bytes, bytes]) -> Iterator[tuple[PushItem, int]]:
    for offset, dispatch, recipients in waiting:
        body = bodies.get(dispatch.message_id)
        room = BATCH_BYTES_MAX - ITEM_BYTES - len(body or b"")
        each = RECIPIENT_BYTES + len(dispatch.client_message_id)
        if body is None or room < each:
            continue
        for start in range(0, len(recipients), room // each):
            part = recipients[start : start + room // each]
            item = PushItem(offset, EVENT_ORDINAL_MESSAGE, body, part, dispatch.committed_at)
            yield item, ITEM_BYTES + len(body) + each * len(part)


def ready_batches(
    shard: int, epoch: int, devices: Iterable[Device], from_seq: int
) -> Iterator[tuple[int, PushBatch]]:
    """(ConnectionShard, PushBatch) that tells `devices` what they are pushed from here on."""
    found: dict[_Target, list[PresenceReady]] = defaultdict(list)
    for one in devices:
        found[one.connection_shard, one.tenant_id].append(
            PresenceReady(one.connection_id, one.session_epoch, from_seq)
        )
    step = BATCH_BYTES_MAX // READY_BYTES
    for (target, tenant), ready in found.items():
        for start in range(0, len(ready), step):
            yield target, PushBatch(tenant, shard, epoch, [], ready[start : start + step])
