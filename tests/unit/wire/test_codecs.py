"""Both codecs: what is encoded comes back, and what is not a frame is refused with a code."""

from typing import Any, get_args, get_type_hints

import msgpack
import pytest
from hypothesis import given, settings

from qim_streams import limits
from qim_streams.errors import ProtocolError
from qim_streams.records import MessageRecord
from qim_streams.wire import CODECS, JSON, MSGPACK, Codec
from qim_streams.wire.events import common_body
from qim_streams.wire.examples import CLIENT_EXAMPLES, SERVER_EXAMPLES
from qim_streams.wire.frames import (
    CLIENT_FRAMES,
    Auth,
    Event,
    HistoryBreak,
    HistoryPage,
    MailboxBatch,
    Message,
    Ping,
    PullMailbox,
    PushEvents,
    SendMessage,
)
from tests.unit.wire.frame_strategies import CLIENT, SERVER

BOTH = pytest.mark.parametrize("codec", CODECS.values(), ids=lambda c: c.subprotocol)


@BOTH
@given(frame=CLIENT)
@settings(max_examples=60, deadline=None)
def test_client_frames_round_trip(codec: Codec, frame: object) -> None:
    """T-F3: decode(encode(x)) = x."""
    back = codec.decode_client(codec.encode(frame))
    assert (type(back), back) == (type(frame), frame)


@BOTH
@given(frame=SERVER)
@settings(max_examples=60, deadline=None)
def test_server_frames_round_trip(codec: Codec, frame: object) -> None:
    """T-F3: decode(encode(x)) = x."""
    back = codec.decode_server(codec.encode(frame))
    assert (type(back), back) == (type(frame), frame)


@BOTH
@pytest.mark.parametrize("name", sorted(CLIENT_EXAMPLES | SERVER_EXAMPLES))
def test_what_may_be_null_may_be_left_out(codec: Codec, name: str) -> None:
    """Null is written by leaving the field out: one that may be null needs a default to be read back."""
    for examples, decode in ((CLIENT_EXAMPLES, codec.decode_client), (SERVER_EXAMPLES, codec.decode_server)):
        frame: Any = examples.get(name)
        if frame is not None:
            hints = get_type_hints(type(frame))
            nullable = [field for field in frame._fields if type(None) in get_args(hints[field])]
            without = frame._replace(**dict.fromkeys(nullable))
            assert decode(codec.encode(without)) == without


def _record(body: bytes = b"hello") -> MessageRecord:
    return MessageRecord(7, 1, "t", "c1", b"m" * 16, b"m" * 16, "ann", 64, "d", "x1", 1, 99, 0, 0, body)


@BOTH
def test_composed_frames_equal_encoded_ones(codec: Codec) -> None:
    """PUSH_EVENTS and MAILBOX_BATCH put together around the common body read as if encoded whole."""
    message = Message(b"m" * 16, "c1", 7, "ann", 0, 0, 99, b"hello")
    for count in (0, 1, 15, 16, 300):
        events = [
            Event(1000 + i, i % 200, bytes([i % 256]) * 16, i % 4, 0, message, "x1" if i % 2 else None)
            for i in range(count)
        ]
        body = common_body(_record())
        encoded = [codec.encode_event(*e[:5], e.client_message_id, body) for e in events]
        assert codec.decode_server(codec.encode_push(encoded)) == PushEvents(events)
        for cursor in (None, "abc.def"):
            batch = codec.encode_batch(5, encoded, 1400, 2**40, cursor is None, cursor)
            expected = MailboxBatch(5, events, 1400, 2**40, cursor is None, cursor)
            assert codec.decode_server(batch) == expected


@BOTH
def test_a_composed_history_page_equals_an_encoded_one(codec: Codec) -> None:
    """HISTORY_PAGE put together from common bodies reads as if encoded whole."""
    bodies = [common_body(_record(b"b%d" % number)) for number in range(300)]
    for count in (0, 1, 15, 16, 300):
        messages = [Message(b"m" * 16, "c1", 7, "ann", 0, 0, 99, b"b%d" % number) for number in range(count)]
        page = HistoryPage(5, "c1", [], [HistoryBreak(3, 2**40, "unused")], count == 1, 2**41, 1, 2**42)
        data = codec.encode_history(page, bodies[:count])
        assert codec.decode_server(data) == page._replace(messages=messages)


def test_common_body_is_copied_untouched() -> None:
    """The gateway adds to the common body; it never reads it."""
    marker = b"\x81\xa1z\xc4\x04\x00\x01\x02\x03"
    assert marker in MSGPACK.encode_push([MSGPACK.encode_event(1, 0, b"e" * 16, 1, 0, None, marker)])


def code_of(codec: Codec, data: bytes) -> str:
    with pytest.raises(ProtocolError) as caught:
        codec.decode_client(data)
    return caught.value.code


def test_refusals_of_msgpack() -> None:
    """Each kind of damage has its code."""
    pack = msgpack.packb
    assert code_of(MSGPACK, b"") == "BAD_FRAME"
    assert code_of(MSGPACK, b"\xc1") == "BAD_FRAME"
    assert code_of(MSGPACK, pack([1])) == "BAD_FRAME"
    assert code_of(MSGPACK, pack({"t": 5})) == "BAD_FRAME"
    assert code_of(MSGPACK, pack({"t": "AUTH_OK", "rid": 1})) == "UNKNOWN_FRAME"
    assert code_of(MSGPACK, pack({"t": "PING", "rid": 1}) + b"\x00") == "BAD_FRAME"
    assert code_of(MSGPACK, pack({"t": "PING", "rid": -1})) == "FIELD_INVALID"
    assert code_of(MSGPACK, pack({"t": "PING", "rid": True})) == "FIELD_INVALID"
    assert code_of(MSGPACK, pack({"t": "PING"})) == "FIELD_INVALID"
    assert code_of(MSGPACK, b"\x00" * (limits.FRAME_BYTES_MAX + 1)) == "FRAME_TOO_LARGE"


def test_refusals_of_json() -> None:
    """Each kind of damage has its code."""
    assert code_of(JSON, b"") == "BAD_FRAME"
    assert code_of(JSON, b"\xff") == "BAD_FRAME"
    assert code_of(JSON, b"[]") == "BAD_FRAME"
    assert code_of(JSON, b'{"t":"PING","rid":NaN}') == "BAD_FRAME"
    assert code_of(JSON, b'{"t":"PING","rid":1.0}') == "FIELD_INVALID"
    assert code_of(JSON, b'{"t":"PING","rid":' + b"9" * 5000 + b"}") == "BAD_FRAME"
    send = b'{"t":"SEND_MESSAGE","rid":1,"client_message_id":"x","conversation_id":"c","body":%s}'
    for body in (b'"a+b_"', b'"QQ=="', b'"Q"', b'"\\u00e9"', b"5", b'"QQ\\n"'):
        assert code_of(JSON, send % body) == "FIELD_INVALID"
    assert JSON.decode_client(send % b'"QQ"') == SendMessage(1, "x", b"A", "c")
    name = b'{"t":"GROUP_CREATE","rid":1,"members":[],"name":"\\ud800"}'
    assert code_of(JSON, name) == "FIELD_INVALID"


def test_error_names_request_and_field() -> None:
    """The client can match the refusal to what it sent."""
    with pytest.raises(ProtocolError) as caught:
        MSGPACK.decode_client(msgpack.packb({"t": "AUTH", "rid": 9, "access_token": "x", "device_id": ""}))
    assert (caught.value.rid, caught.value.field) == (9, "device_id")
    bad = msgpack.packb({"t": "GROUP_ADD", "rid": 3, "conversation_id": "c", "user_ids": ["a", "b c"]})
    with pytest.raises(ProtocolError) as caught:
        MSGPACK.decode_client(bad)
    assert (caught.value.rid, caught.value.field) == (3, "user_ids[1]")


@BOTH
def test_absent_and_null_mean_the_default(codec: Codec) -> None:
    """Optional fields may be left out; fields of a newer peer are ignored."""
    raw = {"t": "PULL_MAILBOX", "rid": 1, "after_seq": -1, "up_to_seq": 5, "limit_bytes": None, "new": 1}
    import json

    data = msgpack.packb(raw) if codec.binary else json.dumps(raw).encode()
    assert codec.decode_client(data) == PullMailbox(1, -1, 5)
    assert PullMailbox(1, -1, 5).limit_bytes == limits.PULL_BYTES_MAX
    assert codec.decode_client(codec.encode(Auth(1, "tok", "dev"))) == Auth(1, "tok", "dev", None)


def test_no_frame_claims_a_list_it_does_not_hold() -> None:
    """T-X2: headers that promise gigabytes are refused before anything is built."""
    import tracemalloc

    bombs = [
        b"\x82\xa1t\xa9GROUP_ADD\xa8user_ids" + b"\xdd\x00\x03\xff\xff" * 50_000,
        b"\xdd\xff\xff\xff\xff" + b"\xc0" * 200_000,
        b"\xdf\xff\xff\xff\xff" + b"\xc0" * 200_000,
        b"\x91" * 262_144,
        b"\x81\xa1a" * 87_000,
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
    ]
    tracemalloc.start()
    for bomb in bombs:
        assert code_of(MSGPACK, bomb) == "BAD_FRAME"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * limits.FRAME_BYTES_MAX


def test_json_nesting_is_refused_before_parsing() -> None:
    """T-X2: 1,000-deep nesting, and quotes that never end, cost linear time."""
    assert code_of(JSON, b"[" * 200_000) == "BAD_FRAME"
    assert code_of(JSON, b'{"a":' * 1_000) == "BAD_FRAME"
    assert code_of(JSON, b'[[[[[[[[[["' + b'\\"' * 100_000) == "BAD_FRAME"
    deep_text = b'{"t":"PING","rid":1,"x":"' + b"[{" * 1_000 + b'"}'
    assert JSON.decode_client(deep_text) == Ping(1)


def test_deep_maps_are_refused() -> None:
    """Depth counts also where no list is involved."""
    value: object = 1
    for _ in range(limits.FRAME_DEPTH_MAX):
        value = {"a": value}
    assert code_of(MSGPACK, msgpack.packb({"t": "PING", "rid": 1, "x": value})) == "BAD_FRAME"


def test_table_of_client_frames_is_closed() -> None:
    """A server frame sent by a client is refused by name."""
    assert "AUTH_OK" not in CLIENT_FRAMES
