"""ROOM_BATCH out of parts that are encoded once for all connections of a gateway.

Invariants: the bytes are those that the codec makes of the same frame; a part is copied, not encoded, for the
second connection, and a frame of one part is not even copied.

Spec: §10.
"""

from collections.abc import Sequence
from typing import Any

import msgpack

from qim_streams.wire.codec import NAME_FIELD, Codec
from qim_streams.wire.codec_json import dump_json
from qim_streams.wire.frames_rooms import RoomPart
from qim_streams.wire.schema import Schema

_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack
_PART = Schema(RoomPart)
_HEAD: bytes = b"\x82" + bytes(_pack(NAME_FIELD)) + bytes(_pack("ROOM_BATCH")) + bytes(_pack("rooms"))
_array_header = msgpack.Packer(autoreset=True).pack_array_header


def encode_part(codec: Codec, part: RoomPart) -> bytes:
    """The bytes of a part, in the encoding of `codec`."""
    if codec.binary:
        packed: Any = _pack(_PART.plain(part))
        return bytes(packed)
    return dump_json(_PART.plain_text(part))


def batch_of(codec: Codec, parts: Sequence[bytes]) -> bytes:
    """The frame of encoded parts, at most `limits.ROOM_PARTS_MAX`."""
    if codec.binary:
        return b"".join((_HEAD, _array_header(len(parts)), *parts))
    return b'{"t":"ROOM_BATCH","rooms":[' + b",".join(parts) + b"]}"
