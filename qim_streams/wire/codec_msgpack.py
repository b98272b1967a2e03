"""The subprotocol ``qim.v1+msgpack``: binary messages, one msgpack map each.

Allocation. msgpack allocates a list of the length that its header claims before it reads an item, and
nested headers may each claim the rest of the message: 256 KiB of them would cost gigabytes. Frames from
clients are therefore parsed with lists forbidden; a message that holds one (a few frames do) is first
scanned without building anything, under a depth limit, and only then parsed. Frames from servers are
parsed with short lists only (`EVENTS_PER_FRAME_MAX`), which bounds them to 16 MiB in the worst case.

Invariants: only `ProtocolError` leaves a decoder; a common body is copied into a frame byte by byte.
"""

from collections.abc import Sequence
from typing import Any

import msgpack

from qim_streams import limits
from qim_streams.errors import ProtocolError
from qim_streams.wire.codec import NAME_FIELD, check_size, client_frame, server_frame, session_list_fields
from qim_streams.wire.frames import NAME_OF, SCHEMA_OF, ClientFrame, Frame, HistoryPage, ServerFrame
from qim_streams.wire.frames_sessions import ROW, SessionRow

MAP_FIELDS_MAX = 64

_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack
_SMALL = [bytes([value]) for value in range(128)]
_LIST_REFUSED = "max_array_len"


def _key(name: str) -> bytes:
    return bytes(_pack(name))


_SEQ, _ORDINAL, _EVENT_ID = _key("mailbox_seq"), _key("event_ordinal"), _key("event_id") + b"\xc4\x10"
_FLAGS, _MENTION, _CMID, _MESSAGE = (
    _key("flags"),
    _key("mention_type"),
    _key("client_message_id"),
    _key("message"),
)
_MAP6, _MAP7 = b"\x86" + _SEQ, b"\x87" + _SEQ
_PUSH_HEAD = b"\x82" + _key(NAME_FIELD) + _key("PUSH_EVENTS") + _key("events")
_ENTRIES = _key("entries")
_MESSAGES = _key("messages")
_ROWS = _key("rows")
_HISTORY = SCHEMA_OF[HistoryPage]


class MsgpackCodec:
    """The codec of ``qim.v1+msgpack``; holds no state."""

    subprotocol = "qim.v1+msgpack"
    binary = True

    def decode_client(self, data: bytes, size_max: int = limits.FRAME_BYTES_MAX) -> ClientFrame:
        """See `Codec.decode_client`."""
        check_size(data, size_max)
        try:
            raw = _unpack(data, 0)
        except ValueError as error:
            if _LIST_REFUSED not in str(error):
                raise ProtocolError("BAD_FRAME", f"not msgpack ({type(error).__name__})") from None
            raw = _scanned(data)
        else:
            # Maps may nest without lists; no field of a client frame is a map, so this is rare.
            if type(raw) is dict and dict in map(type, raw.values()):
                raw = _scanned(data)
        return client_frame(raw, text=False)

    def decode_server(self, data: bytes, size_max: int = limits.SERVER_FRAME_BYTES_MAX) -> ServerFrame:
        """See `Codec.decode_server`."""
        check_size(data, size_max)
        try:
            raw = _unpack(data, limits.EVENTS_PER_FRAME_MAX)
        except ValueError as error:
            raise ProtocolError("BAD_FRAME", f"not msgpack ({type(error).__name__})") from None
        return server_frame(raw, text=False)

    def encode(self, frame: Frame) -> bytes:
        """See `Codec.encode`."""
        cls = type(frame)
        data: bytes = _pack({NAME_FIELD: NAME_OF[cls], **SCHEMA_OF[cls].plain(frame)})
        return data

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
        """See `Codec.encode_event`."""
        parts = [
            _MAP6 if client_message_id is None else _MAP7,
            _pack(mailbox_seq),
            _ORDINAL,
            _number(event_ordinal),
            _EVENT_ID,
            event_id,
            _FLAGS,
            _number(flags),
            _MENTION,
            _number(mention_type),
            _MESSAGE,
            common_body,
        ]
        if client_message_id is not None:
            parts += (_CMID, _pack(client_message_id))
        return b"".join(parts)

    def encode_push(self, events: Sequence[bytes]) -> bytes:
        """See `Codec.encode_push`."""
        return b"".join((_PUSH_HEAD, _list_header(len(events)), *events))

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
        fields: dict[str, Any] = {
            NAME_FIELD: "MAILBOX_BATCH",
            "rid": rid,
            "covered_through_seq": covered_through_seq,
            "lane_watermark": lane_watermark,
            "has_more": has_more,
        }
        if cursor is not None:
            fields["cursor"] = cursor
        return _with_list(fields, _ENTRIES, events)

    def encode_history(self, page: HistoryPage, common_bodies: Sequence[bytes]) -> bytes:
        """See `Codec.encode_history`."""
        fields = {NAME_FIELD: "HISTORY_PAGE", **_HISTORY.plain(page)}
        del fields["messages"]
        return _with_list(fields, _MESSAGES, common_bodies)

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
        return _with_list(fields, _ROWS, rows)


def encode_row(row: SessionRow) -> bytes:
    """A row of the session list for `encode_session_list`; it may be kept and used again."""
    data: bytes = _pack(ROW.plain(row))
    return data


def _with_list(fields: dict[str, Any], name: bytes, items: Sequence[bytes]) -> bytes:
    """The map of `fields` (at most 14: the header of a map is then one byte) and a list of encoded items."""
    size = bytes([0x80 | (len(fields) + 1)])
    return b"".join((size, _pack(fields)[1:], name, _list_header(len(items)), *items))


def _unpack(data: bytes, list_max: int) -> Any:
    return msgpack.unpackb(
        data,
        raw=False,
        max_array_len=list_max,
        max_map_len=MAP_FIELDS_MAX,
        max_ext_len=0,
        strict_map_key=True,
    )


def _scanned(data: bytes) -> Any:
    check_shape(data)
    try:
        return _unpack(data, limits.GROUP_MEMBERS_PER_CHANGE_MAX)
    except ValueError as error:
        raise ProtocolError("BAD_FRAME", f"not msgpack ({type(error).__name__})") from None


def _number(value: int) -> bytes:
    return _SMALL[value] if 0 <= value < 128 else bytes(_pack(value))


def _list_header(count: int) -> bytes:
    if count < 16:
        return bytes([0x90 | count])
    return b"\xdc" + count.to_bytes(2, "big")


# -- the scan: lengths of msgpack items by their first byte

_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8}
_FIXED |= {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_CONTAINER = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}


def check_shape(data: bytes) -> None:
    """ProtocolError BAD_FRAME unless `data` is one msgpack value, complete, at most 8 deep.

    Builds nothing: time and memory are linear in the size, whatever the headers claim. Extension types
    are refused.
    """
    size, at = len(data), 0
    open_items = [1]  # items still to come, per level
    while open_items:
        if open_items[-1] == 0:
            open_items.pop()
            continue
        open_items[-1] -= 1
        if at >= size:
            raise ProtocolError("BAD_FRAME", "msgpack ends too early")
        at, items = _item(data, at)
        if items >= 0:
            if items > size - at:
                raise ProtocolError("BAD_FRAME", "msgpack ends too early")
            if len(open_items) > limits.FRAME_DEPTH_MAX:
                raise ProtocolError("BAD_FRAME", f"nested deeper than {limits.FRAME_DEPTH_MAX}")
            open_items.append(items)
    if at != size:
        raise ProtocolError("BAD_FRAME", "bytes after the frame" if at < size else "msgpack ends too early")


def _item(data: bytes, at: int) -> tuple[int, int]:
    """Where the next item starts, and how many items this one contains (-1: it is no container)."""
    first = data[at]
    at += 1
    if first < 0x80 or first >= 0xE0:
        return at, -1
    if first < 0x90:
        return at, 2 * (first & 15)
    if first < 0xA0:
        return at, first & 15
    if first < 0xC0:
        return at + (first & 31), -1
    if first in _FIXED:
        return at + _FIXED[first], -1
    if first in _SIZED:
        width = _SIZED[first]
        return at + width + int.from_bytes(data[at : at + width], "big"), -1
    if first in _CONTAINER:
        width, each = _CONTAINER[first]
        return at + width, each * int.from_bytes(data[at : at + width], "big")
    raise ProtocolError("BAD_FRAME", "a msgpack type that no frame uses")
