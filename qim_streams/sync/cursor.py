"""Cursors: a position in a mailbox, signed for one device.

A cursor is 57 bytes in base64url: version, key id, shard, shard_epoch, last_applied and an HMAC-SHA256
over these and over tenant, user and device. The identity is not inside: a cursor of another device has
a wrong signature, and no cursor tells whose it is.

Invariants: a token that any bit was changed of is refused; the signature is compared in constant time;
a token longer than a cursor is not decoded; keys are chosen by id, so a rotation needs no second try.

Spec: §7, §14.9.
"""

import hashlib
import hmac
import struct
from typing import Final, NamedTuple

from qim_streams.sync.ports import MailboxAddress
from qim_streams.wire.kinds import Malformed, from_base64url, to_base64url

_VERSION: Final = 1
_BODY = struct.Struct(">B4sIQq")  # version, key id, shard, shard_epoch, last_applied
_MAC_BYTES: Final = 32
_TOKEN_BYTES: Final = _BODY.size + _MAC_BYTES  # 57: a multiple of 3, so no base64 digit has unused bits
TOKEN_LENGTH: Final = _TOKEN_BYTES * 4 // 3
_MAC_DOMAIN: Final = b"qim.cursor.v1\0"
_KEY_DOMAIN: Final = b"qim.cursor-key.v1\0"


class Cursor(NamedTuple):
    """A position: everything of `shard` up to `last_applied` is on the device."""

    shard: int
    shard_epoch: int
    last_applied: int


class CursorSigner:
    """Signs cursors with the current key; accepts the previous one as well."""

    def __init__(self, key: bytes, previous: bytes | None = None) -> None:
        self._key, self._key_id = key, _key_id(key)
        self._keys = {_key_id(one): one for one in (previous, key) if one}

    def issue(self, address: MailboxAddress, shard_epoch: int, last_applied: int) -> str:
        """The cursor of a device at `last_applied`."""
        body = _BODY.pack(_VERSION, self._key_id, address.shard, shard_epoch, last_applied)
        return to_base64url(body + _mac(self._key, address, body))

    def open(self, token: str, address: MailboxAddress) -> Cursor | None:
        """The position of a cursor issued for this tenant, user and device; None for anything else."""
        if len(token) != TOKEN_LENGTH:
            return None
        try:
            raw = from_base64url(token)
        except Malformed:
            return None
        body, signature = raw[: _BODY.size], raw[_BODY.size :]
        version, key_id, shard, shard_epoch, last_applied = _BODY.unpack(body)
        key = self._keys.get(key_id)
        if version != _VERSION or key is None:
            return None
        if not hmac.compare_digest(signature, _mac(key, address, body)):
            return None
        return Cursor(shard, shard_epoch, last_applied)


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(_KEY_DOMAIN + key).digest()[:4]


def _mac(key: bytes, address: MailboxAddress, body: bytes) -> bytes:
    # Ids contain no NUL and the body has a fixed size, so the text says one thing only.
    who = "\0".join((address.tenant_id, address.user_id, address.device_id, ""))
    return hmac.digest(key, _MAC_DOMAIN + who.encode() + body, "sha256")
