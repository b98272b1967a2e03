"""Mentions: bytes of the field, who is named how, and what an edit or a recall leaves of them."""

import pytest

from qim_streams import limits
from qim_streams.errors import RecordError
from qim_streams.mentions import (
    MENTION_ALL,
    MENTION_NONE,
    MENTION_USER,
    NOBODY,
    Mentions,
    decode_mentions,
    field_of,
    mentions,
    mentions_of,
    type_in_body,
)
from qim_streams.operations.rules import RECALL_REVISION, Operation, revise
from qim_streams.records import KIND_EDIT, KIND_RECALL, MessageRecord, decode_message
from qim_streams.wire.events import common_body

ID = bytes(16)


def message(named: bytes = b"", body: bytes = b"hi", **more: object) -> MessageRecord:
    extra = (0, named) if named else ()
    made = MessageRecord(1, 1, "t", "team", ID, ID, "ben", 7, "d", "m", 1, 1, 0, 0, body, extra)
    return made._replace(**more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "named",
    [NOBODY, Mentions(("ann",)), Mentions(("ann", "ben.x~1")), Mentions((), True), Mentions(("ann",), True)],
)
def test_bytes_come_back(named: Mentions) -> None:
    assert decode_mentions(named.encode()) == named
    record = decode_message(message(named.encode()).encode())
    assert mentions_of(record) == named


def test_each_user_once_in_order() -> None:
    assert mentions(["ben", "ann", "ben"], False) == Mentions(("ben", "ann"))
    assert mentions([], False).encode() == b""


@pytest.mark.parametrize(
    "damaged",
    [b"\x00", b"\x02", b"\x00\0", b"\x00ann", b"\x00\0ann\0", b"\x00\0a b", b"\x00\0\xff", b"ann"],
)
def test_anything_else_is_refused(damaged: bytes) -> None:
    with pytest.raises(RecordError):
        decode_mentions(damaged)
    assert mentions_of(message(damaged)) == NOBODY, "the message is shown, and names nobody"


def test_mentions_are_bounded() -> None:
    many = Mentions(tuple(f"u{number}" for number in range(limits.MENTIONS_MAX + 1)))
    with pytest.raises(RecordError):
        decode_mentions(many.encode())
    assert decode_mentions(many._replace(users=many.users[1:]).encode()).users == many.users[1:]


def test_the_type_is_read_off_the_common_body() -> None:
    body = common_body(message(Mentions(("ann",), True).encode()))
    assert (type_in_body(body, "ann"), type_in_body(body, "cleo")) == (MENTION_USER, MENTION_ALL)
    plain = common_body(message(body=b"xx\xa8mentions\xc4\x04\x00\0ann"))
    assert type_in_body(plain, "ann") == MENTION_NONE, "what a sender writes into his body says nothing"
    assert type_in_body(common_body(message()), "ann") == MENTION_NONE


def test_an_edit_keeps_them_and_a_recall_names_nobody() -> None:
    named = Mentions(("ann",)).encode()
    edited = revise(message(named), Operation(KIND_EDIT, 1, 1, b"new"))
    assert edited is not None
    assert (edited.extra, mentions_of(edited), edited.body) == ((1, named), Mentions(("ann",)), b"new")
    recalled = revise(edited, Operation(KIND_RECALL, 1, RECALL_REVISION, b""))
    assert recalled is not None
    assert (field_of(recalled), mentions_of(recalled)) == (named, NOBODY)
    assert type_in_body(common_body(recalled), "ann") == MENTION_NONE
