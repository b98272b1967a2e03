"""The client protocol, without any socket: frames, codecs, error codes, the connection's states.

``frames`` declares every frame, ``codes`` every error; ``codec_msgpack`` and ``codec_json`` turn bytes
into frames and back; ``connection`` says which frame is legal when. ``docs/protocol.md`` is made from
these tables.

Spec: §6, §7.
"""

from typing import Final

from qim_streams.wire.codec import Codec
from qim_streams.wire.codec_json import JsonCodec
from qim_streams.wire.codec_msgpack import MsgpackCodec

MSGPACK: Final[Codec] = MsgpackCodec()
JSON: Final[Codec] = JsonCodec()
CODECS: Final[dict[str, Codec]] = {codec.subprotocol: codec for codec in (MSGPACK, JSON)}
SUBPROTOCOLS: Final[tuple[str, ...]] = tuple(CODECS)
