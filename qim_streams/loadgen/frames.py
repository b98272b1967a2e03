"""The hot frames, byte by byte: SEND_MESSAGE out, SEND_ACK and PUSH_EVENTS in.

Everything of a SEND_MESSAGE but four fields is the same for all messages of a process, so its msgpack
bytes are put together from pieces that were packed once. What comes in is parsed into plain dicts
without checking types: the generator trusts its server's framing and checks the bodies instead. All
other frames go through the codecs of ``wire``.

Pure.
"""

import base64
import json
import struct
from collections.abc import Callable
from typing import Any, Protocol

import msgpack

from qim_streams.wire import JSON, MSGPACK
from qim_streams.wire.codec import Codec
from qim_streams.wire.frames import SendMessage

_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack
_U32 = struct.Struct(">I").pack
_RID_HEAD = b"\x85" + _pack("t") + _pack("SEND_MESSAGE") + _pack("rid") + b"\xce"
_CMID = _pack("client_message_id")
_BODY = _pack("body")


class Driver(Protocol):
    """One encoding. `target` comes from `target_of`."""

    codec: Codec

    def target_of(self, conversation_id: str | None, to_user_id: str | None) -> Any:
        """Where a message goes, prepared once."""

    def send_message(self, number: int, client_message_id: bytes, body: bytes, target: Any) -> bytes:
        """SEND_MESSAGE whose rid is `number`."""

    def parse(self, data: bytes) -> dict[str, Any]:
        """A server frame as a dict; ids and bodies of events are bytes."""


class MsgpackDriver:
    """``qim.v1+msgpack``."""

    codec = MSGPACK

    def target_of(self, conversation_id: str | None, to_user_id: str | None) -> bytes:
        """See `Driver`."""
        if to_user_id is not None:
            return bytes(_pack("to_user_id") + _pack(to_user_id))
        return bytes(_pack("conversation_id") + _pack(conversation_id))

    def send_message(self, number: int, client_message_id: bytes, body: bytes, target: bytes) -> bytes:
        """See `Driver`. The id must be shorter than 32 bytes."""
        return b"".join(
            (
                _RID_HEAD,
                _U32(number),
                _CMID,
                bytes((0xA0 | len(client_message_id),)),
                client_message_id,
                _BODY,
                _bin_header(len(body)),
                body,
                target,
            )
        )

    def parse(self, data: bytes) -> dict[str, Any]:
        """See `Driver`."""
        frame: dict[str, Any] = _unpack(data)
        return frame


_unpack: Callable[[bytes], Any] = msgpack.unpackb


def _bin_header(size: int) -> bytes:
    if size < 256:
        return bytes((0xC4, size))
    if size < 65_536:
        return b"\xc5" + size.to_bytes(2, "big")
    return b"\xc6" + size.to_bytes(4, "big")


class JsonDriver:
    """``qim.v1+json``: several times the cost of msgpack, for comparing the two."""

    codec = JSON

    def target_of(self, conversation_id: str | None, to_user_id: str | None) -> tuple[str | None, str | None]:
        """See `Driver`."""
        return conversation_id, to_user_id

    def send_message(
        self, number: int, client_message_id: bytes, body: bytes, target: tuple[str | None, str | None]
    ) -> bytes:
        """See `Driver`."""
        return JSON.encode(SendMessage(number, client_message_id.decode(), body, *target))

    def parse(self, data: bytes) -> dict[str, Any]:
        """See `Driver`."""
        frame: dict[str, Any] = json.loads(data)
        for event in frame.get("events") or frame.get("entries") or ():
            text = event["message"]["body"]
            event["message"]["body"] = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return frame


DRIVERS: dict[str, Driver] = {"msgpack": MsgpackDriver(), "json": JsonDriver()}
