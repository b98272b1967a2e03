"""Recognising one message in the records of each log, and judging its levels. Pure.

A record is looked into only when it contains the id's 16 bytes, so a scan costs a substring search per
record. Records that cannot be decoded are somebody else's poison and are passed over.

Spec: §1, §2, §5.
"""

from collections.abc import Sequence

from pyroaring import BitMap

from qim_streams import hlc
from qim_streams.errors import RecordError
from qim_streams.ids import ID_BYTES
from qim_streams.mailbox.pages import decode_page
from qim_streams.notification.records import decode_task
from qim_streams.placement import lane_of_ordinal
from qim_streams.records import (
    OUTBOX_RELAYED,
    GroupDispatch,
    MessageRecord,
    OutboxRecord,
    decode_dispatch,
    decode_message,
    decode_outbox,
    decode_push,
    unpack_ordinals,
)
from qim_streams.trace.model import DispatchPlace, Level, MessageTrace, OutboxPlace, PushPlace, TracedMessage
from qim_streams.trace.ports import LogEntry

HEX_DIGITS = 2 * ID_BYTES


def parse_message_id(text: str) -> bytes | None:
    """The 16 bytes of a message id written as 32 hex digits, None when it is not one."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        return None
    return data if len(data) == ID_BYTES and len(text) == HEX_DIGITS else None


def committed_near(message_id: bytes) -> int:
    """The milliseconds that a message id carries: its commit time, or a little after it."""
    return hlc.millis_of(message_id)


def find_outbox(
    entry: LogEntry, tenant_id: str, message_id: bytes
) -> tuple[OutboxRecord, MessageRecord] | None:
    """The Outbox record of the message, if `entry` is it and of that tenant."""
    if entry.value is None or message_id not in entry.value:
        return None
    try:
        record = decode_outbox(entry.value)
        message = decode_message(record.message)
    except RecordError:
        return None
    matches = message.message_id == message_id and message.tenant_id == tenant_id
    return (record, message) if matches else None


def find_dispatch(entry: LogEntry, tenant_id: str, dispatch_id: bytes) -> GroupDispatch | None:
    """The GroupDispatch with that id, if `entry` is it and of that tenant."""
    if entry.value is None or dispatch_id not in entry.value:
        return None
    try:
        dispatch = decode_dispatch(entry.value)
    except RecordError:
        return None
    return dispatch if (dispatch.dispatch_id, dispatch.tenant_id) == (dispatch_id, tenant_id) else None


def find_page(entry: LogEntry, dispatch_id: bytes) -> int | None:
    """When the page of DispatchProgress with that dispatch was written, if `entry` is it."""
    if entry.value is None or dispatch_id not in entry.value:
        return None
    try:
        page = decode_page(entry.value)
    except RecordError:
        return None
    return page.written_at_ms if any(row.dispatch_id == dispatch_id for row in page.rows) else None


def find_pushes(entry: LogEntry, tenant_id: str, message_id: bytes) -> PushPlace | None:
    """What a push batch carries of the message, None for nothing."""
    if entry.value is None or message_id not in entry.value:
        return None
    try:
        batch = decode_push(entry.value)
    except RecordError:
        return None
    devices = sum(len(item.recipients) for item in batch.items if message_id in item.common_body)
    if batch.tenant_id != tenant_id or not devices:
        return None
    return PushPlace(entry.partition, entry.offset, entry.at_ms, batch.mailbox_shard, devices)


def find_task(entry: LogEntry, tenant_id: str, message_id: bytes) -> bytes | None:
    """The id of a push task of the message, if `entry` is one of that tenant."""
    if entry.value is None or message_id not in entry.value:
        return None
    try:
        task = decode_task(entry.value)
    except RecordError:
        return None
    return task.task_id if (task.message_id, task.tenant_id) == (message_id, tenant_id) else None


def recipients_of(inline: bytes | None, bitmap: bytes | None) -> list[int] | None:
    """The user ordinals of a dispatch, ascending; None when neither form is at hand."""
    if inline is not None:
        return unpack_ordinals(inline)
    if bitmap is None:
        return None
    return list(BitMap.deserialize(bitmap)) if bitmap else []


def sample(ordinals: Sequence[int], count: int) -> list[int]:
    """At most `count` of the ordinals, spread evenly, the first and the last among them."""
    if len(ordinals) <= count:
        return list(ordinals)
    if count <= 1:
        return list(ordinals[:count])
    step = (len(ordinals) - 1) / (count - 1)
    return [ordinals[round(index * step)] for index in range(count)]


def traced_message(message: MessageRecord) -> TracedMessage:
    """What a trace tells of the message: everything but the body."""
    return TracedMessage(
        message.conversation_id,
        message.conversation_seq,
        message.membership_version,
        message.sender_id,
        message.sender_device_id,
        message.client_message_id,
        message.fencing_epoch,
        message.committed_at,
        len(message.body),
    )


def outbox_place(entry: LogEntry, record: OutboxRecord, *, hot: bool) -> OutboxPlace:
    """Where the Outbox record lies."""
    return OutboxPlace(
        entry.partition, entry.offset, entry.at_ms, relayed=bool(record.flags & OUTBOX_RELAYED), hot=hot
    )


def dispatch_place(
    entry: LogEntry, ordinals: Sequence[int] | None, lanes: Sequence[int], found: Sequence[bool]
) -> DispatchPlace:
    """A dispatch and its shard's state. `lanes` is W[64] of the store; `found` tells per sampled mailbox."""
    touched = tuple(sorted({int(lane_of_ordinal(ordinal)) for ordinal in ordinals or ()}))
    relevant = [lanes[lane] for lane in touched] or list(lanes)
    return DispatchPlace(
        shard=entry.partition,
        offset=entry.offset,
        at_ms=entry.at_ms,
        recipients=len(ordinals or ()),
        lanes=touched,
        watermark_min=min(relevant),
        watermark_max=max(relevant),
        covered=min(relevant) >= entry.offset,
        entries_sampled=len(found),
        entries_found=sum(found),
    )


def judge(trace: MessageTrace) -> list[Level]:
    """The levels that the message has reached. Spec: §1."""
    if trace.message is None or trace.outbox is None:
        return [Level("COMMITTED", None, None, None, "not found in the Outbox")]
    committed_at, outbox = trace.message.committed_at, trace.outbox

    def level(name: str, reached: bool | None, at_ms: int | None, detail: str) -> Level:
        return Level(name, reached, at_ms, None if at_ms is None else at_ms - committed_at, detail)

    where = f"outbox[{outbox.partition}] offset {outbox.offset}" + (", relayed" if outbox.relayed else "")
    levels = [level("COMMITTED", True, outbox.at_ms, where)]
    levels += [level("DISPATCHED", *_dispatched(trace)), level("MAILBOXED", *_mailboxed(trace))]
    devices = sum(push.devices for push in trace.pushes)
    first_push = min((push.at_ms for push in trace.pushes), default=None)
    levels.append(level("PUSHED", bool(devices), first_push, f"handed to gateways for {devices} devices"))
    if trace.notified is not None:
        told = trace.notified
        detail = f"handed to providers for {told.sent} of {told.tasks} devices without presence"
        levels.append(level("NOTIFIED", bool(told.sent) or None, None, detail))
    if trace.archive is not None:
        place = trace.archive
        detail = f"{'in' if place.present else 'not in'} the archive, watermark {place.watermark}"
        levels.append(level("ARCHIVED", place.present and place.covered, None, detail))
    return levels


def _dispatched(trace: MessageTrace) -> tuple[bool | None, int | None, str]:
    found, expected = len(trace.dispatches), trace.shards_expected
    last = max((place.at_ms for place in trace.dispatches), default=None)
    if expected is None:
        return (True if found else None), last, f"{found} shards; how many it should be is not known"
    complete = found == len(expected)
    return complete, last if complete else None, f"{found} of {len(expected)} shards"


def _mailboxed(trace: MessageTrace) -> tuple[bool | None, int | None, str]:
    places, expected = trace.dispatches, trace.shards_expected
    if not places:
        return (None if expected is None else not expected), None, "no dispatch, so no mailbox to look into"
    covered = sum(place.covered for place in places)
    sampled = sum(place.entries_sampled for place in places)
    found = sum(place.entries_found for place in places)
    total = len(places if expected is None else expected)
    detail = f"W covers it in {covered} of {total} shards; {found} of {sampled} sampled mailboxes have it"
    reached = covered == total and found == sampled
    times = [mailboxed_by(place, trace.pushes) for place in places]
    known = [at_ms for at_ms in times if at_ms is not None]
    return reached, max(known) if reached and len(known) == total else None, detail


def mailboxed_by(place: DispatchPlace, pushes: Sequence[PushPlace]) -> int | None:
    """When the entries of a shard were durable and covered, at the latest.

    W itself has no time. A push of the shard comes after W has moved, its page after the pushes.
    """
    after = [push.at_ms for push in pushes if push.mailbox_shard == place.shard]
    if place.done_at_ms is not None:
        after.append(place.done_at_ms)
    return min(after, default=None)
