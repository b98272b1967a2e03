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
from qim_streams.mailbox.members import Addressed
from qim_streams.mailbox.watermark import Marks
from qim_streams.placement import lane_of_ordinal
from qim_streams.push.presence import Device, OnlineDevices
from qim_streams.records import (
    KIND_MESSAGE,
    OPERATION_FLAGS,
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

_new = tuple.__new__
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
    for last, dispatch, members in records:
        if dispatch is None:
            continue
        devices = online.among(dispatch.tenant_id, members)
        if not devices:
            continue
        tenant = dispatch.tenant_id
        for shard, recipients in _by_connection_shard(dispatch, devices).items():
            found[shard, tenant].append(_new(Audience, (last, dispatch, recipients)))
            count += len(recipients)
        if count >= recipients_max:
            yield last, found
            found, count = defaultdict(list), 0
    if last >= 0:
        yield last, found


def _by_connection_shard(dispatch: GroupDispatch, devices: Iterable[Device]) -> dict[int, list[Recipient]]:
    message_id, sender, kind = dispatch.message_id, dispatch.sender_ordinal, dispatch.kind
    theirs, ours = (RECIPIENT_FLAGS, SENDER_FLAGS) if kind == KIND_MESSAGE else (OPERATION_FLAGS,) * 2
    found: dict[int, list[Recipient]] = {}
    for _, user_id, ordinal, device_id, shard, connection_id, session_epoch in devices:
        flags, own_id = theirs, None
        if ordinal == sender:
            if device_id == dispatch.sender_device_id:
                continue
            flags, own_id = ours, dispatch.client_message_id
        event = event_id(message_id, user_id, kind)
        fields = (connection_id, session_epoch, event, flags, MENTION_NONE, own_id)
        found.setdefault(shard, []).append(_new(Recipient, fields))
    return found


def build_batches(
    shard: int, epoch: int, audiences: Audiences, bodies: Mapping[bytes, bytes]
) -> Iterator[tuple[int, PushBatch]]:
    """(ConnectionShard, PushBatch) for every audience whose body is in `bodies`, in offset order."""
    for (target, tenant), waiting in audiences.items():
        items: list[PushItem] = []
        size = 0
        for item, nbytes in _items(waiting, bodies):
            if size + nbytes > BATCH_BYTES_MAX and items:
                yield target, PushBatch(tenant, shard, epoch, items, [])
                items, size = [], 0
            items.append(item)
            size += nbytes
        if items:
            yield target, PushBatch(tenant, shard, epoch, items, [])


def _items(waiting: Sequence[Audience], bodies: Mapping[bytes, bytes]) -> list[tuple[PushItem, int]]:
    items = []
    for offset, dispatch, recipients in waiting:
        body = bodies.get(dispatch.message_id)
        if body is None:
            continue
        event, at = EVENT_ORDINAL_MESSAGE, dispatch.committed_at
        fixed = ITEM_BYTES + len(body)
        each = RECIPIENT_BYTES + len(dispatch.client_message_id)
        room = (BATCH_BYTES_MAX - fixed) // each  # recipients beside this body
        if len(recipients) <= room:
            item = _new(PushItem, (offset, event, body, recipients, at))
            items.append((item, fixed + each * len(recipients)))
        elif room > 0:
            for start in range(0, len(recipients), room):
                part = recipients[start : start + room]
                items.append((_new(PushItem, (offset, event, body, part, at)), fixed + each * len(part)))
    return items


def ready_batches(
    shard: int, epoch: int, devices: Iterable[Device], told: Marks
) -> Iterator[tuple[int, PushBatch]]:
    """(ConnectionShard, PushBatch) that tells `devices` what they are pushed from here on, lane by lane."""
    found: dict[_Target, list[PresenceReady]] = defaultdict(list)
    for one in devices:
        found[one.connection_shard, one.tenant_id].append(
            PresenceReady(one.connection_id, one.session_epoch, _from_seq(told, one))
        )
    step = BATCH_BYTES_MAX // READY_BYTES
    for (target, tenant), ready in found.items():
        for start in range(0, len(ready), step):
            yield target, PushBatch(tenant, shard, epoch, [], ready[start : start + step])


def _from_seq(told: Marks, device: Device) -> int:
    return told if isinstance(told, int) else told[lane_of_ordinal(device.ordinal)]
