"""What both codecs share: the port, size and shape checks, and errors that name the request.

A codec turns the bytes of one WebSocket message into a frame and back. `decode_client` reads what
clients send (hostile until proven otherwise), `decode_server` what servers send.

Invariants: any bytes give a frame or `ProtocolError`; nothing over the size limit is parsed.
"""

from collections.abc import Sequence
from typing import Any, Protocol, cast

from qim_streams import limits
from qim_streams.errors import ProtocolError
from qim_streams.wire.frames import CLIENT_FRAMES, SERVER_FRAMES, ClientFrame, Frame, HistoryPage, ServerFrame
from qim_streams.wire.kinds import Malformed
from qim_streams.wire.schema import Schema

Encoded = bytes
NAME_FIELD = "t"


class Codec(Protocol):
    """One subprotocol. Event bytes of `encode_event` go into `encode_push` and `encode_batch` unchanged."""

    subprotocol: str
    binary: bool

    def decode_client(self, data: bytes, size_max: int = limits.FRAME_BYTES_MAX) -> ClientFrame:
        """A frame that a client sent; ProtocolError with code, field and rid as far as known."""

    def decode_server(self, data: bytes, size_max: int = limits.SERVER_FRAME_BYTES_MAX) -> ServerFrame:
        """A frame that a server sent."""

    def encode(self, frame: Frame) -> bytes:
        """The bytes of any frame."""

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
        """An event around `common_body` (see ``events``), whose msgpack bytes are used as they are."""

    def encode_push(self, events: Sequence[bytes]) -> bytes:
        """PUSH_EVENTS of encoded events, at most `EVENTS_PER_FRAME_MAX`."""

    def encode_batch(
        self,
        rid: int,
        events: Sequence[bytes],
        covered_through_seq: int,
        lane_watermark: int,
        has_more: bool,
        cursor: str | None,
    ) -> bytes:
        """MAILBOX_BATCH of encoded events."""

    def encode_history(self, page: HistoryPage, common_bodies: Sequence[bytes]) -> bytes:
        """`page`, whose `messages` are empty, with `common_bodies` (see ``events``) as its messages."""

    def encode_session_list(
        self,
        rid: int,
        rows: Sequence[bytes],
        projection_mailbox_seq: int,
        projection_complete: bool,
        next_cursor: str | None,
    ) -> bytes:
        """SESSION_LIST of rows in the binary form (`codec_msgpack.encode_row`), whichever this codec's is."""


def session_list_fields(
    rid: int, projection_mailbox_seq: int, projection_complete: bool, next_cursor: str | None
) -> dict[str, Any]:
    """The fields of a SESSION_LIST before its rows, the same in both encodings."""
    fields: dict[str, Any] = {
        NAME_FIELD: "SESSION_LIST",
        "rid": rid,
        "projection_mailbox_seq": projection_mailbox_seq,
        "projection_complete": projection_complete,
    }
    if next_cursor is not None:
        fields["next_cursor"] = next_cursor
    return fields


def check_size(data: bytes, size_max: int) -> None:
    """ProtocolError FRAME_TOO_LARGE for more than `size_max` bytes."""
    if len(data) > size_max:
        raise ProtocolError("FRAME_TOO_LARGE", f"{len(data)} bytes, the limit is {size_max}")


def client_frame(raw: Any, *, text: bool) -> ClientFrame:
    """The client frame of a parsed message."""
    return cast(ClientFrame, _frame(raw, CLIENT_FRAMES, text=text))


def server_frame(raw: Any, *, text: bool) -> ServerFrame:
    """The server frame of a parsed message."""
    return cast(ServerFrame, _frame(raw, SERVER_FRAMES, text=text))


def _frame(raw: Any, table: dict[str, Schema], *, text: bool) -> Any:
    if type(raw) is not dict:
        raise ProtocolError("BAD_FRAME", "a frame is a map")
    name = raw.get(NAME_FIELD)
    if type(name) is not str:
        raise ProtocolError("BAD_FRAME", "a frame has its name in the field t", field=NAME_FIELD)
    schema = table.get(name)
    if schema is None:
        shown = name if name.isascii() and name.isidentifier() and len(name) <= 32 else "?"
        raise ProtocolError("UNKNOWN_FRAME", f"no frame {shown} goes this way", rid=_rid(raw))
    try:
        return schema.take_text(raw) if text else schema.take(raw)
    except Malformed as error:
        raise ProtocolError(
            "FIELD_INVALID", f"{name}.{error.where} {error.detail}", field=error.where, rid=_rid(raw)
        ) from None


def _rid(raw: dict[Any, Any]) -> int | None:
    rid = raw.get("rid")
    return rid if type(rid) is int and 0 <= rid < 2**32 else None
