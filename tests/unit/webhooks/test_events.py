"""What an application is told of each record."""

from typing import NamedTuple

import pytest

from qim_streams.errors import RecordError
from qim_streams.membership.ports import Conversation, Member
from qim_streams.membership.rows import head_row, member_row
from qim_streams.mentions import mentions
from qim_streams.notification.records import PushResult
from qim_streams.operations.rules import RECALL_REVISION
from qim_streams.records import MessageRecord, OutboxRecord, Presence, record_key
from qim_streams.webhooks.events import membership_event, message_event, presence_event, push_result_event

ID = bytes(range(16))


class Record(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None


def outbox(body: bytes = b"hello", **changes: object) -> Record:
    message = MessageRecord(
        7, 2, "acme", "room", ID, ID, "ann", 64, "phone", "c-1", 1, 1_700_000_000_000, 0, 0, body
    )._replace(**changes)  # type: ignore[arg-type]
    return Record(5, record_key("acme", "room"), OutboxRecord(message.encode(), 1, 0, None).encode())


def test_a_message() -> None:
    event = message_event(outbox())
    assert event.told() == {
        "id": ID.hex(),
        "type": "message.committed",
        "tenant_id": "acme",
        "conversation_id": "room",
        "conversation_seq": 7,
        "message_id": ID.hex(),
        "client_message_id": "c-1",
        "sender_id": "ann",
        "sender_device_id": "phone",
        "committed_at_ms": 1_700_000_000_000,
        "kind": "message",
        "body": "hello",
    }
    assert event.order_key == "acme\0room"


def test_a_body_that_is_no_text_and_whom_it_names() -> None:
    field = mentions(["bob"], False).encode()
    event = message_event(outbox(b"\xff\x00", extra=(0, field)))
    assert event.fields["body_base64"] == "/wA="
    assert "body" not in event.fields
    assert event.fields["mentions"] == {"users": ["bob"], "everybody": False}


def test_an_edit_names_its_target_and_a_recall_has_no_body() -> None:
    edit = message_event(outbox(b"better", kind=1, state=1, extra=(0, 3, 1)))
    assert (edit.fields["kind"], edit.fields["target_conversation_seq"], edit.fields["body"]) == (
        "edit", 3, "better",
    )  # fmt: skip
    recall = message_event(outbox(b"", kind=2, state=2, extra=(0, 3, RECALL_REVISION)))
    assert recall.fields["kind"] == "recall"
    assert "body" not in recall.fields


@pytest.mark.parametrize("value", [None, b"", b"\x01\x90", b"garbage"])
def test_what_is_no_record_is_said_so(value: bytes | None) -> None:
    with pytest.raises(RecordError):
        message_event(Record(1, b"k", value))


def head(version: int = 4) -> Conversation:
    return Conversation(
        "acme", "room", "group", version, 0, "Room", "members", "invite", "joined", 100, 2, 1, "ann", False
    )


def test_a_head_and_a_member() -> None:
    row = head_row(head())
    event = membership_event(Record(1, row.key, row.value))
    assert event is not None
    assert event.id == "room:4:conversation"
    assert event.fields["conversation"]["members_active"] == 2
    row = member_row(head(), Member("bob", 65, "member", False, ((1, 9),)))
    event = membership_event(Record(2, row.key, row.value))
    assert event is not None
    assert (event.id, event.tenant) == ("room:4:member:bob", "acme")
    assert event.fields["member"] == {"user_id": "bob", "role": "member", "active": False}
    assert membership_event(Record(3, row.key, None)) is None


def test_a_device_comes_and_goes() -> None:
    key = record_key("acme", "ann", "phone")
    here = presence_event(Record(8, key, Presence("acme", "ann", 64, "phone", 1, 77, 3, 123).encode()))
    gone = presence_event(Record(9, key, None))
    assert here is not None
    assert gone is not None
    assert (here.fields["online"], gone.fields["online"]) == (True, False)
    assert here.id == "ann:phone:4d:3"
    assert here.id != gone.id
    with pytest.raises(RecordError, match="the key is not"):
        presence_event(Record(9, b"ann", None))


def test_what_became_of_a_notification() -> None:
    """In order per user; one outcome of one notification is one event, however often it was written."""
    result = PushResult(
        "acme", "ben", "phone", b"n" * 16, ID, "room", 7, "apns", "dead", "Unregistered", 5, 9
    )
    event = push_result_event(Record(5, result.key, result.encode()))
    assert event is not None
    assert event.told() == {
        "id": f"{(b'n' * 16).hex()}:dead",
        "type": "push.result",
        "tenant_id": "acme",
        "notification_id": (b"n" * 16).hex(),
        "user_id": "ben",
        "device_id": "phone",
        "conversation_id": "room",
        "conversation_seq": 7,
        "message_id": ID.hex(),
        "provider": "apns",
        "outcome": "dead",
        "reason": "Unregistered",
        "committed_at_ms": 5,
        "at_ms": 9,
    }
    assert event.order_key == "acme\0ben"
    again = push_result_event(Record(9, result.key, result._replace(at=10).encode()))
    assert again is not None
    assert again.id == event.id
    assert push_result_event(Record(5, result.key, None)) is None
    with pytest.raises(RecordError):
        push_result_event(Record(5, result.key, b"nonsense"))
