"""The internal RPC between gateways (and the admin API) and writers: frames, handshake, no sockets.

A connection is a WebSocket on ``/rpc`` with the header ``X-Qim-Rpc: 1``. Frames are binary msgpack arrays:

1. server: ``[1, server nonce 32]``
2. client: ``[1, client nonce 32, node, proof]``, proof = HMAC-SHA256 of the shared secret over both nonces
3. server: ``[1, proof]``, so that the client knows that it talks to a writer
4. client: ``[[rid, op, ms left, args], ...]``, server: ``[[rid, answer...], ...]``, in any order

Invariants: nothing but the proofs is read before they are right; they are compared in constant time and a
recorded one is worthless on another connection. Any bytes give a value or `ProtocolError`; a frame is
bounded before it is decoded.

Spec: §3, and the promise that no bytes crash a process.
"""

import hmac
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

import msgpack

from qim_streams.commit.outcome import SendOutcome, SendRequest, SendStatus
from qim_streams.errors import ProtocolError
from qim_streams.ids import is_text_id
from qim_streams.membership.commands import GroupCommand, GroupOp, GroupState
from qim_streams.membership.ports import Conversation, Member

VERSION: Final = 1
PATH: Final = "/rpc"
VERSION_HEADER: Final = "X-Qim-Rpc"
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
HANDSHAKE_BYTES_MAX: Final = 1_024
FRAME_BYTES_MAX: Final = 4 * 1024 * 1024  # a 5,000-user change with the longest ids takes 650 kB
FRAME_TARGET_BYTES: Final = 512 * 1024  # a sender starts another frame from here on
_CLIENT_DOMAIN = b"qim.rpc.client.v1\0"
_SERVER_DOMAIN = b"qim.rpc.server.v1\0"

_STATUS: Final = {int(status): status for status in SendStatus}

_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack
_array_header = msgpack.Packer(autoreset=True).pack_array_header


class Op(IntEnum):
    """What a request asks for. The numbers never change."""

    SEND = 1
    GROUP = 2


class GroupStatus(IntEnum):
    """How a group command ended. The numbers never change."""

    DONE = 0
    REFUSED = 1
    NOT_OWNER = 2


def pack(value: object) -> bytes:
    """The bytes of a frame or of a part of one."""
    data: bytes = _pack(value)
    return data


def unpack(data: object, bytes_max: int = FRAME_BYTES_MAX) -> list[Any]:
    """The array of a frame; ProtocolError for anything else."""
    if not isinstance(data, bytes) or len(data) > bytes_max:
        raise ProtocolError("BAD_FRAME", "not a binary frame within the limit")
    try:
        value = msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise ProtocolError("BAD_FRAME", f"not msgpack ({type(error).__name__})") from error
    if not isinstance(value, list):
        raise ProtocolError("BAD_FRAME", "not an array")
    return value


def frame_of(items: Sequence[bytes]) -> bytes:
    """A frame out of packed items."""
    return b"".join((_array_header(len(items)), *items))


# -- handshake


def client_proof(secret: bytes, server_nonce: bytes, client_nonce: bytes, node: str) -> bytes:
    """What a client answers to a server's nonce."""
    return hmac.digest(secret, _CLIENT_DOMAIN + server_nonce + client_nonce + node.encode(), "sha256")


def server_proof(secret: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """What a server answers to a client's nonce."""
    return hmac.digest(secret, _SERVER_DOMAIN + client_nonce + server_nonce, "sha256")


def read_challenge(data: object) -> bytes:
    """The server's nonce out of its first frame; ProtocolError."""
    fields = unpack(data, HANDSHAKE_BYTES_MAX)
    if len(fields) < 2 or fields[0] != VERSION or not _bytes_of(fields[1], NONCE_BYTES):
        raise ProtocolError("BAD_FRAME", f"not a challenge of version {VERSION}")
    return bytes(fields[1])


def check_client(secret: bytes, server_nonce: bytes, data: object) -> tuple[str, bytes]:
    """(node, our proof) for a client's answer; ProtocolError NOT_AUTHENTICATED for a wrong one."""
    fields = unpack(data, HANDSHAKE_BYTES_MAX)
    well_formed = (
        len(fields) >= 4
        and fields[0] == VERSION
        and _bytes_of(fields[1], NONCE_BYTES)
        and is_text_id(fields[2])
        and _bytes_of(fields[3], PROOF_BYTES)
    )
    if not well_formed:
        raise ProtocolError("BAD_FRAME", f"not an authentication of version {VERSION}")
    expected = client_proof(secret, server_nonce, fields[1], fields[2])
    if not hmac.compare_digest(expected, fields[3]):
        raise ProtocolError("NOT_AUTHENTICATED", "internal_secret differs between the two processes")
    return fields[2], server_proof(secret, server_nonce, fields[1])


def check_server(secret: bytes, server_nonce: bytes, client_nonce: bytes, data: object) -> None:
    """ProtocolError NOT_AUTHENTICATED unless the server has the secret too."""
    fields = unpack(data, HANDSHAKE_BYTES_MAX)
    if len(fields) < 2 or not _bytes_of(fields[1], PROOF_BYTES):
        raise ProtocolError("BAD_FRAME", "not a proof")
    if not hmac.compare_digest(server_proof(secret, server_nonce, client_nonce), fields[1]):
        raise ProtocolError("NOT_AUTHENTICATED", "internal_secret differs between the two processes")


def _bytes_of(value: object, size: int) -> bool:
    return isinstance(value, bytes) and len(value) == size


# -- sends


def read_send(args: object) -> SendRequest:
    """A SendRequest out of its arguments; ProtocolError unless every field has its type."""
    if not isinstance(args, list) or len(args) < 9:
        raise ProtocolError("BAD_FRAME", "a send has nine arguments or ten")
    tenant, chat, sender, ordinal, device, client_message_id, body, to_user, kind = args[:9]
    target_seq = args[9] if len(args) > 9 else 0  # an older gateway sends none
    typed = (
        type(tenant) is str
        and type(chat) is str
        and type(sender) is str
        and type(ordinal) is int
        and type(device) is str
        and type(client_message_id) is str
        and type(body) is bytes
        and (to_user is None or type(to_user) is str)
        and type(kind) is int
        and 0 <= ordinal < 2**32
        and 0 <= kind < 2**16
        and type(target_seq) is int
        and 0 <= target_seq < 2**53
    )
    if not typed:
        raise ProtocolError("BAD_FRAME", "an argument of a send has a wrong type")
    return SendRequest(
        tenant, chat, sender, ordinal, device, client_message_id, body, to_user, kind, target_seq
    )


def read_outcome(fields: Sequence[Any]) -> SendOutcome:
    """A SendOutcome out of an answer without its rid; ProtocolError."""
    try:
        status, message_id, seq, committed_at, code, detail, retry_after_ms = fields[:7]
        return SendOutcome(_STATUS[status], message_id, seq, committed_at, code, detail, retry_after_ms)
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError("BAD_FRAME", f"not an answer to a send: {error}") from error


# -- groups


def group_args(command: GroupCommand) -> tuple[object, ...]:
    """The arguments of a group command."""
    return (
        int(command.op),
        command.tenant_id,
        command.actor_id,
        command.conversation_id,
        list(command.user_ids),
        command.role,
        dict(command.fields),
        command.after_user_id,
        command.limit,
    )


def read_group(args: object) -> GroupCommand:
    """A GroupCommand out of its arguments; ProtocolError unless every field has its type."""
    if not isinstance(args, list) or len(args) < 9:
        raise ProtocolError("BAD_FRAME", "a group command has nine arguments")
    op, tenant, actor, chat, users, role, fields, after, limit = args[:9]
    typed = (
        isinstance(tenant, str)
        and (actor is None or isinstance(actor, str))
        and isinstance(chat, str)
        and isinstance(users, list)
        and all(isinstance(user, str) for user in users)
        and isinstance(role, str)
        and isinstance(fields, dict)
        and all(isinstance(part, str) for pair in fields.items() for part in pair)
        and isinstance(after, str)
        and isinstance(limit, int)
        and op in set(GroupOp)
    )
    if not typed:
        raise ProtocolError("BAD_FRAME", "an argument of a group command has a wrong type")
    return GroupCommand(GroupOp(op), tenant, actor, chat, tuple(users), role, fields, after, limit)


def group_answer(state: GroupState) -> tuple[object, ...]:
    """The fields of a GroupState in an answer."""
    head = state.conversation
    chat = tuple(getattr(head, name) for name in Conversation.__slots__)
    members = [(m.user_id, m.ordinal, m.role, m.active, m.intervals) for m in state.members]
    return (int(GroupStatus.DONE), chat, members, state.next_user_id)


def read_group_answer(fields: Sequence[Any]) -> GroupState | tuple[GroupStatus, str, str, int | None]:
    """A GroupState, or (status, code, detail, retry_after_ms), out of an answer without its rid."""
    try:
        status = GroupStatus(fields[0])
        if status is not GroupStatus.DONE:
            code, detail, retry_after_ms = fields[1:4]
            return status, code, detail, retry_after_ms
        members = tuple(
            Member(user, ordinal, role, active, tuple((joined, left) for joined, left in intervals))
            for user, ordinal, role, active, intervals in fields[2]
        )
        return GroupState(Conversation(*fields[1]), members, fields[3])
    except (IndexError, TypeError, ValueError) as error:
        raise ProtocolError("BAD_FRAME", f"not an answer to a group command: {error}") from error
