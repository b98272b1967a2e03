"""What is asked of a RoomWriter and what it answers: plain values that cross the internal RPC. Pure.

An answer starts with a `GroupStatus`: DONE and the fields, REFUSED with code, detail and retry_after_ms, or
NOT_OWNER. Reading raises ProtocolError unless every field has its type.

Spec: §10.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from qim_streams.commit.rpc_protocol import GroupStatus
from qim_streams.errors import AdmissionRefused, ProtocolError
from qim_streams.ids import is_text_id
from qim_streams.rooms.rules import ACTIONS, JOIN_POLICIES

REPLAY_MAX = 200  # messages of a room that are kept to be shown to who joins
ROOM_NAME_MAX = 128
INT_MAX = 2**53 - 1


class RoomOp(IntEnum):
    """Operations of a RoomWriter, beside those of a ConversationWriter. The numbers never change."""

    SEND = 16
    JOIN = 17
    CREATE = 18
    ACT = 19


class RoomSend(NamedTuple):
    """A message to a room. The gateway has authenticated the sender."""

    tenant_id: str
    room_id: str
    sender_id: str
    client_message_id: str
    body: bytes


class RoomJoin(NamedTuple):
    """May this user (None: the operator, who only looks) enter, and what was said last: `limit` messages."""

    tenant_id: str
    room_id: str
    user_id: str | None
    limit: int


class RoomCreate(NamedTuple):
    """A new room. `owner_id` empty: only the operator governs it."""

    tenant_id: str
    room_id: str
    owner_id: str
    name: str
    join_policy: str


class RoomAct(NamedTuple):
    """An action (`rules.ACTIONS`) of a user, or of the operator (None). `seconds` 0: see the rules."""

    tenant_id: str
    room_id: str
    actor_id: str | None
    action: str
    user_id: str
    seconds: int
    text: bytes


class RoomReceipt(NamedTuple):
    """A message is in the log."""

    message_id: bytes
    room_seq: int
    epoch: int
    at_ms: int


class RoomView(NamedTuple):
    """A room as it stands, seen by one user; `records` are encoded RoomRecords of messages, oldest first."""

    epoch: int
    room_seq: int  # of the last message
    name: str
    join_policy: str
    owner_id: str
    created_at: int
    muted_all: bool
    closed: bool
    role: str  # of the user who asks
    muted_until: int
    records: tuple[bytes, ...] = ()


Request = RoomSend | RoomJoin | RoomCreate | RoomAct
R = TypeVar("R", RoomReceipt, RoomView)


def read_request(op: int, args: object) -> Request:
    """The request of an operation and its arguments."""
    fields = list(args) if isinstance(args, list | tuple) else []
    match op, fields:
        case RoomOp.SEND, [_, _, str(), str(), bytes(), *_] if is_text_id(fields[3]):
            request: Request = RoomSend(*fields[:5])
        case RoomOp.JOIN, [_, _, str() | None, int(limit), *_] if 0 <= limit <= REPLAY_MAX:
            request = RoomJoin(*fields[:4])
        case RoomOp.CREATE, [_, _, str(), str(name), str(policy), *_] if (
            policy in JOIN_POLICIES and len(name) <= ROOM_NAME_MAX
        ):
            request = RoomCreate(*fields[:5])
        case RoomOp.ACT, [_, _, str() | None, str(action), str(), int(seconds), bytes(), *_] if (
            action in ACTIONS and 0 <= seconds <= INT_MAX // 1_000
        ):
            request = RoomAct(*fields[:7])
        case _:
            raise ProtocolError("BAD_FRAME", "not a request that a room writer knows")
    if not (is_text_id(request.tenant_id) and is_text_id(request.room_id)):
        raise ProtocolError("BAD_FRAME", "tenant and room are ids")
    return request


def done(value: RoomReceipt | RoomView) -> tuple[object, ...]:
    """The fields of a success."""
    return (int(GroupStatus.DONE), *value)


def refused(error: AdmissionRefused) -> tuple[object, ...]:
    """The fields of a refusal."""
    return (int(GroupStatus.REFUSED), error.code, error.detail, error.retry_after_ms)


NOT_OWNER: tuple[object, ...] = (int(GroupStatus.NOT_OWNER), "SHARD_MOVED", "another writer owns the room", 0)


def read_answer(kind: type[R], fields: Sequence[Any]) -> R:
    """The value of a success; AdmissionRefused for any other answer."""
    try:
        if fields[0] == GroupStatus.DONE:
            return _read(kind, fields[1:])
        code, detail, retry_after_ms = fields[1:4]
    except (IndexError, TypeError, ValueError) as error:
        raise ProtocolError("BAD_FRAME", f"not an answer of a room writer: {error}") from error
    raise AdmissionRefused(code, detail, retry_after_ms=retry_after_ms)


def _read(kind: type[R], fields: Sequence[Any]) -> R:
    names = kind._fields
    values = list(fields[: len(names)])
    if kind is RoomView:
        values[-1] = tuple(values[-1])
    types = [type(value) for value in values]
    wanted = _TYPES[kind]
    if types != wanted:
        raise ValueError(f"{kind.__name__} of {types}")
    return kind._make(values)


_TYPES: dict[type, list[type]] = {
    RoomReceipt: [bytes, int, int, int],
    RoomView: [int, int, str, str, str, int, bool, bool, str, int, tuple],
}
