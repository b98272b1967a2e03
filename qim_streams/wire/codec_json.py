"""The subprotocol ``qim.v1+json``: text messages, one JSON object each.

16-byte ids are 32 lower-case hex digits, bytes are base64url without padding. It is the readable
subprotocol for browsers and debugging; the common body of an event is converted once and the result
kept for the other recipients.

Invariants: only `ProtocolError` leaves a decoder; the nesting of what clients send is limited before the
parser sees it (what servers send is limited by the parser's own recursion bound).
"""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgpack

from qim_streams import limits
from qim_streams.errors import ProtocolError
from qim_streams.wire.codec import NAME_FIELD, check_size, client_frame, server_frame, session_list_fields
from qim_streams.wire.frames import NAME_OF, SCHEMA_OF, ClientFrame, Frame, HistoryPage, Message, ServerFrame
from qim_streams.wire.frames_sessions import ROW
from qim_streams.wire.schema import Schema

BODIES_CACHED_MAX = 64

_dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# A string matches whether or not it ends: else every quote inside an unfinished one would be tried anew.
_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]|[\]}]', re.DOTALL)
_MESSAGE = Schema(Message)
_HISTORY = SCHEMA_OF[HistoryPage]


class JsonCodec:
    """The codec of ``qim.v1+json``; holds no state besides the cache of converted bodies."""

    subprotocol = "qim.v1+json"
    binary = False

    def decode_client(self, data: bytes, size_max: int = limits.FRAME_BYTES_MAX) -> ClientFrame:
        """See `Codec.decode_client`."""
        check_size(data, size_max)
        _check_depth(data)
        return client_frame(_parse(data), text=True)

    def decode_server(self, data: bytes, size_max: int = limits.SERVER_FRAME_BYTES_MAX) -> ServerFrame:
        """See `Codec.decode_server`."""
        check_size(data, size_max)
        return server_frame(_parse(data), text=True)

    def encode(self, frame: Frame) -> bytes:
        """See `Codec.encode`."""
        cls = type(frame)
        return _dump({NAME_FIELD: NAME_OF[cls], **SCHEMA_OF[cls].plain_text(frame)}).encode()

    def encode_event(
        self,
        mailbox_seq: int,
        event_ordinal: int,
        event_id: bytes,
        flags: int,
        mention_type: int,
        client_message_id: str | None,
        common_body: bytes,
    ) -> bytes:
        """See `Codec.encode_event`. Client message ids need no escapes by their alphabet."""
        own = f',"client_message_id":"{client_message_id}"' if client_message_id is not None else ""
        head = (
            f'{{"mailbox_seq":{mailbox_seq},"event_ordinal":{event_ordinal},"event_id":"{event_id.hex()}",'
            f'"flags":{flags},"mention_type":{mention_type}{own},"message":'
        )
        return b"".join((head.encode(), _body_text(common_body), b"}"))

    def encode_push(self, events: Sequence[bytes]) -> bytes:
        """See `Codec.encode_push`."""
        return b'{"t":"PUSH_EVENTS","events":[' + b",".join(events) + b"]}"

    def encode_batch(
        self,
        rid: int,
        events: Sequence[bytes],
        covered_through_seq: int,
        lane_watermark: int,
        has_more: bool,
        cursor: str | None,
    ) -> bytes:
        """See `Codec.encode_batch`."""
        signed = f',"cursor":{_dump(cursor)}' if cursor is not None else ""
        more = "true" if has_more else "false"
        head = (
            f'{{"t":"MAILBOX_BATCH","rid":{rid},"covered_through_seq":{covered_through_seq},'
            f'"lane_watermark":{lane_watermark},"has_more":{more}{signed},"entries":['
        )
        return head.encode() + b",".join(events) + b"]}"

    def encode_history(self, page: HistoryPage, common_bodies: Sequence[bytes]) -> bytes:
        """See `Codec.encode_history`. Bodies of a page are not cached: they would displace live ones."""
        fields = {NAME_FIELD: "HISTORY_PAGE", **_HISTORY.plain_text(page)}
        del fields["messages"]
        messages = b",".join(_converted(body) for body in common_bodies)
        return _dump(fields).encode()[:-1] + b',"messages":[' + messages + b"]}"

    def encode_session_list(
        self,
        rid: int,
        rows: Sequence[bytes],
        projection_mailbox_seq: int,
        projection_complete: bool,
        next_cursor: str | None,
    ) -> bytes:
        """See `Codec.encode_session_list`."""
        fields = session_list_fields(rid, projection_mailbox_seq, projection_complete, next_cursor)
        return _dump(fields).encode()[:-1] + b',"rows":[' + b",".join(map(_row_text, rows)) + b"]}"


def dump_json(value: Any) -> bytes:
    """The bytes of a JSON value, in the form of frames."""
    return _dump(value).encode()


@lru_cache(maxsize=BODIES_CACHED_MAX)
def _body_text(common_body: bytes) -> bytes:
    return _converted(common_body)


def _converted(common_body: bytes) -> bytes:
    raw = msgpack.unpackb(common_body, raw=False, max_map_len=64)
    return _dump(_MESSAGE.plain_text(_MESSAGE.take(raw))).encode()


def _row_text(row: bytes) -> bytes:
    return _dump(ROW.plain_text(ROW.take(msgpack.unpackb(row, raw=False)))).encode()


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("BAD_FRAME", f"not JSON ({type(error).__name__})") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _check_depth(data: bytes) -> None:
    if data.count(b"{") + data.count(b"[") <= limits.FRAME_DEPTH_MAX:
        return
    depth = 0
    for match in _TOKENS.finditer(data):
        token = match[0]
        if token in b"[{":
            depth += 1
            if depth > limits.FRAME_DEPTH_MAX:
                raise ProtocolError("BAD_FRAME", f"nested deeper than {limits.FRAME_DEPTH_MAX}")
        elif token in b"]}":
            depth -= 1
