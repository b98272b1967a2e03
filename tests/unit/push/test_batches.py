"""PushBatches: who gets what, bodies once, splits at the record limit. Spec: §6."""

import msgpack
import pytest
from pyroaring import BitMap

from qim_streams.codec import RECORD_BYTES_MAX
from qim_streams.ids import event_id
from qim_streams.mailbox.members import Addressed
from qim_streams.push import batches
from qim_streams.push.batches import build_batches, find_audiences, ready_batches
from qim_streams.push.presence import Device
from qim_streams.records import FLAG_COUNTS_UNREAD, MessageRecord, PushBatch, decode_push
from qim_streams.wire.events import common_body
from tests.unit.mailbox.dispatches import dispatch
from tests.unit.push.world import cache, connection, presence


def bodies(*numbers: int, size: int = 4) -> dict[bytes, bytes]:
    return {number.to_bytes(16, "big"): b"b" * size for number in numbers}


def built(records: list[Addressed], found: dict[bytes, bytes], online: object) -> list[tuple[int, PushBatch]]:
    made = []
    for _, audiences in find_audiences(records, online):  # type: ignore[arg-type]
        made += list(build_batches(0, 9, audiences, found))
    return made


def test_one_batch_per_connection_shard_bodies_once() -> None:
    online, _ = cache()
    online.apply(*presence("ann", "phone", 1))
    online.apply(*presence("ben", "phone", 2))
    online.apply(*presence("ben", "web", 3, shard=2))
    online.apply(*presence("eve", "phone", 4))
    records = [Addressed(7, dispatch(1), [1, 65]), Addressed(8, dispatch(2), BitMap([1, 2, 65]))]
    made = dict(built(records, bodies(1, 2), online))
    assert set(made) == {0, 2}
    assert (made[0].tenant_id, made[0].mailbox_shard, made[0].fencing_epoch) == ("acme", 0, 9)
    assert [item.mailbox_seq for item in made[0].items] == [7, 8]
    assert [[one.connection_id for one in item.recipients] for item in made[0].items] == [
        [connection(2)], [connection(4), connection(2)],
    ]  # fmt: skip
    assert [len(item.recipients) for item in made[2].items] == [1, 1]
    assert decode_push(made[0].encode()) == made[0]


def test_the_sending_device_is_skipped_and_the_senders_others_are_marked() -> None:
    """F1: on the sender's other devices the message is his own."""
    online, _ = cache()
    for device, number in (("phone", 1), ("web", 2)):
        online.apply(*presence("ann", device, number))
    online.apply(*presence("ben", "phone", 3))
    ((_, batch),) = built([Addressed(7, dispatch(1), [1, 65])], bodies(1), online)
    web, ben = batch.items[0].recipients
    assert (web.connection_id, web.client_message_id) == (connection(2), "m1")
    assert not web.flags & FLAG_COUNTS_UNREAD
    assert (ben.connection_id, ben.client_message_id) == (connection(3), None)
    assert ben.flags & FLAG_COUNTS_UNREAD
    assert ben.event_id == event_id(dispatch(1).message_id, "ben")
    assert web.event_id == event_id(dispatch(1).message_id, "ann")


def test_nobody_online_nothing_built() -> None:
    online, _ = cache()
    assert built([Addressed(7, dispatch(1), [1, 65]), Addressed(8, None, [])], bodies(1), online) == []


def test_a_missing_body_is_not_pushed() -> None:
    online, _ = cache()
    online.apply(*presence("ben", "phone", 1))
    records = [Addressed(7, dispatch(1), [65]), Addressed(8, dispatch(2), [65])]
    ((_, batch),) = built(records, bodies(2), online)
    assert [item.mailbox_seq for item in batch.items] == [8]


def test_batches_stay_below_the_record_limit() -> None:
    """P16: split between items; every item arrives, in order."""
    online, _ = cache()
    online.apply(*presence("ben", "phone", 1))
    numbers = range(1, 41)
    records = [Addressed(number, dispatch(number), [65]) for number in numbers]
    made = built(records, bodies(*numbers, size=64 * 1024), online)
    assert len(made) == 3
    assert all(len(batch.encode()) <= RECORD_BYTES_MAX for _, batch in made)
    assert [item.mailbox_seq for _, batch in made for item in batch.items] == list(numbers)


def test_an_item_with_many_recipients_is_split_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES_MAX", 400)
    online, _ = cache()
    for number in range(20):
        online.apply(*presence("ben", f"d{number}", number))
    made = built([Addressed(7, dispatch(1), [65])], bodies(1), online)
    got = [one.connection_id for _, batch in made for item in batch.items for one in item.recipients]
    assert sorted(got) == [connection(number) for number in range(20)]
    assert all(len(batch.encode()) <= 400 for _, batch in made)
    huge = {dispatch(1).message_id: b"b" * 400}
    assert built([Addressed(7, dispatch(1), [65])], huge, online) == []


def test_lookups_come_in_bounded_parts_of_whole_records() -> None:
    online, _ = cache()
    for number in range(3):
        online.apply(*presence("ben", f"d{number}", number))
    records = [Addressed(number, dispatch(number), [65]) for number in range(1, 6)]
    parts = list(find_audiences(records, online, recipients_max=5))
    assert [last for last, _ in parts] == [2, 4, 5]
    assert sum(len(a.recipients) for _, found in parts for one in found.values() for a in one) == 15


def test_ready_is_told_per_connection_shard() -> None:
    devices = [Device("acme", "ben", 65, f"d{n}", n % 2, connection(n), 4, ) for n in range(3)]  # fmt: skip
    made = dict(ready_batches(0, 9, devices, 77))
    assert [(one.connection_id, one.session_epoch, one.from_seq) for one in made[0].ready] == [
        (connection(0), 4, 77), (connection(2), 4, 77),
    ]  # fmt: skip
    assert len(made[1].ready) == 1
    assert made[1].items == []
    assert decode_push(made[1].encode()) == made[1]


def test_the_common_body_is_the_message_of_an_event() -> None:
    message = MessageRecord(3, 1, "t", "c", b"m" * 16, b"l" * 16, "ann", 1, "d", "x", 1, 99, 0, 0, b"\xff\0")
    assert msgpack.unpackb(common_body(message)) == {
        "message_id": b"m" * 16, "conversation_id": "c", "conversation_seq": 3, "sender_id": "ann",
        "kind": 0, "state": 0, "committed_at": 99, "body": b"\xff\0",
    }  # fmt: skip
