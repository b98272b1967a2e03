"""Wire: frames as gateway and client read and write them, in both encodings. Spec: §3, §6, §7."""

from qim_streams import ids
from qim_streams.records import RECIPIENT_FLAGS
from qim_streams.wire import JSON, MSGPACK
from qim_streams.wire.codec import Codec
from qim_streams.wire.frames import (
    ClientFrame,
    MailboxBatch,
    PushEvents,
    SendAck,
    SendMessage,
    ServerFrame,
)
from tests.perf.registry import Case, benchmark
from tests.perf.samples import BODY, CHAT, COMMON_BODY, MESSAGE, NOW_MS, PEER, never_repeated

CLIENT_MESSAGE_ID = "m-000000000017"
EVENTS = 1_000


@benchmark("wire.send_message.decode.msgpack")
def send_msgpack() -> Case[ClientFrame]:
    """A send with a body of 200 bytes; each has an id of its own, as on a socket."""
    return _send(MSGPACK)


@benchmark("wire.send_message.decode.json")
def send_json() -> Case[ClientFrame]:
    """The same in JSON."""
    return _send(JSON)


def _send(codec: Codec) -> Case[ClientFrame]:
    frame = SendMessage(17, CLIENT_MESSAGE_ID, BODY, conversation_id=CHAT)
    data = never_repeated(codec.encode(frame), CLIENT_MESSAGE_ID[2:].encode())

    def check(answer: ClientFrame) -> bool:
        return (
            isinstance(answer, SendMessage)
            and answer._replace(client_message_id=CLIENT_MESSAGE_ID) == frame
            and answer.client_message_id.startswith("m-0000")
        )

    return Case(lambda: codec.decode_client(data()), check)


@benchmark("wire.send_ack.encode.msgpack")
def ack_msgpack() -> Case[bytes]:
    """The answer to a send."""
    return _ack(MSGPACK)


@benchmark("wire.send_ack.encode.json")
def ack_json() -> Case[bytes]:
    """The same in JSON."""
    return _ack(JSON)


def _ack(codec: Codec) -> Case[bytes]:
    frame = SendAck(17, CLIENT_MESSAGE_ID, CHAT, MESSAGE.message_id, 4_711, NOW_MS)
    return Case(lambda: codec.encode(frame), lambda data: codec.decode_server(data) == frame)


@benchmark("wire.push.encode.msgpack")
def push_msgpack() -> Case[bytes]:
    """PUSH_EVENTS with one event around a common body, which is copied."""
    return _push(MSGPACK)


@benchmark("wire.push.encode.json")
def push_json() -> Case[bytes]:
    """The same in JSON, for a recipient after the first: the converted body is kept."""
    return _push(JSON)


def _push(codec: Codec) -> Case[bytes]:
    event_id = ids.event_id(MESSAGE.message_id, PEER)
    return Case(
        lambda: codec.encode_push(
            [codec.encode_event(90_210, 0, event_id, RECIPIENT_FLAGS, 0, None, COMMON_BODY)]
        ),
        lambda data: _is_push(codec.decode_server(data), event_id),
    )


def _is_push(frame: ServerFrame, event_id: bytes) -> bool:
    if not isinstance(frame, PushEvents):
        return False
    (event,) = frame.events
    return (event.mailbox_seq, event.event_id, event.message.body) == (90_210, event_id, BODY)


@benchmark("wire.push.encode.json_first")
def push_json_first() -> Case[bytes]:
    """The same in JSON for the first recipient, as in a direct chat: the body is converted."""
    mark = b"000000000017"
    body = never_repeated(COMMON_BODY.replace(BODY[:12], mark), mark)
    event_id = ids.event_id(MESSAGE.message_id, PEER)

    def check(data: bytes) -> bool:
        frame = JSON.decode_server(data)
        return isinstance(frame, PushEvents) and frame.events[0].message.body[12:] == BODY[12:]

    return Case(
        lambda: JSON.encode_push([JSON.encode_event(90_210, 0, event_id, RECIPIENT_FLAGS, 0, None, body())]),
        check,
    )


@benchmark("wire.mailbox_batch.decode_1000.msgpack")
def batch_msgpack() -> Case[ServerFrame]:
    """A batch of 1,000 entries, read by a client."""
    return _batch(MSGPACK)


@benchmark("wire.mailbox_batch.decode_1000.json")
def batch_json() -> Case[ServerFrame]:
    """The same in JSON."""
    return _batch(JSON)


def _batch(codec: Codec) -> Case[ServerFrame]:
    events = [
        codec.encode_event(seq, 0, seq.to_bytes(16, "big"), RECIPIENT_FLAGS, 0, None, COMMON_BODY)
        for seq in range(EVENTS)
    ]
    data = codec.encode_batch(17, events, EVENTS - 1, EVENTS + 50, False, None)

    def check(frame: ServerFrame) -> bool:
        return (
            isinstance(frame, MailboxBatch)
            and [event.mailbox_seq for event in frame.entries] == list(range(EVENTS))
            and all(event.message.body == BODY for event in frame.entries)
        )

    return Case(lambda: codec.decode_server(data), check)
