"""The frames of chat rooms: stream 3. They are part of the tables in ``frames``.

Messages of a room are numbered by (epoch, room_seq). Within an epoch a missing number is a message that this
device will not get (it was too slow, or away for longer than the window); a new epoch says that another
process writes the room now: numbers go on where they stood, unless the room was lost and made anew.

Spec: §10.
"""

from typing import Annotated, Final, NamedTuple

from qim_streams import limits
from qim_streams.wire.frames_group import Rid
from qim_streams.wire.kinds import Bool, Bytes, Id16, Int, ListOf, OneOf, Text, TextId
from qim_streams.wire.schema import Schema, Struct

_ID = TextId()
_COUNT = Int(0)
_NAME = Text(limits.ROOM_NAME_MAX)
_USER = Text(limits.TEXT_ID_MAX)  # an id, or empty: the operator, nobody
_BODY = Bytes(64 * 1024)
_JOIN = OneOf(("open", "members"))
_ROLE = OneOf(("owner", "moderator", "member", ""))
ACTIONS: Final = (
    "mute", "unmute", "mute_all", "unmute_all", "kick", "add_moderator", "add_member", "remove", "announce",
    "close",
)  # fmt: skip
EVENTS: Final = (*ACTIONS, "members", "owner")

Room = Annotated[str, _ID, "the room"]
Epoch = Annotated[int, _COUNT, "of the room's writer: a new one says that another process writes it now"]


class CreateRoom(NamedTuple):
    """Make a room; the sender becomes its owner. Making the same one again changes nothing."""

    rid: Rid
    room_id: Room
    name: Annotated[str, _NAME, "for people"] = ""
    join_policy: Annotated[str, _JOIN, "who may enter: everybody, or its members"] = "open"


class JoinRoom(NamedTuple):
    """Enter a room, or enter again after a new connection: then with the position that one has."""

    rid: Rid
    room_id: Room
    replay_limit: Annotated[int, Int(0, limits.ROOM_REPLAY_MAX), "the newest messages to show, at most"] = 50
    replay_epoch: Annotated[int, _COUNT, "with replay_from: its epoch"] = 0
    replay_from: Annotated[int, _COUNT, "room_seq that the device has; only what is newer is shown"] = 0


class LeaveRoom(NamedTuple):
    """Leave a room."""

    rid: Rid
    room_id: Room


class SendRoom(NamedTuple):
    """Say something in a room that this connection has joined."""

    rid: Rid
    room_id: Room
    client_message_id: Annotated[str, _ID, "unique per sender; a retry repeats it"]
    body: Annotated[bytes, _BODY, "opaque"]


class ControlRoom(NamedTuple):
    """Govern a room, as far as the sender's role permits."""

    rid: Rid
    room_id: Room
    action: Annotated[str, OneOf(ACTIONS), "what to do"]
    user_id: Annotated[str, _USER, "whom it is about, where it is about somebody"] = ""
    seconds: Annotated[
        int, Int(0, 10**9), "how long; 0: for ever (mute), or sent out and free to come back (kick)"
    ] = 0
    text: Annotated[bytes, Bytes(limits.ROOM_EVENT_TEXT_MAX), "of an announcement; opaque"] = b""


class RoomMessage(NamedTuple):
    """A message of a room."""

    room_seq: Annotated[int, Int(1), "its number in the room"]
    message_id: Annotated[bytes, Id16(), "unique"]
    sender_id: Annotated[str, _ID, "who said it"]
    at: Annotated[int, _COUNT, "when, ms since 1970"]
    body: Annotated[bytes, _BODY, "opaque"]
    client_message_id: Annotated[str, _ID, "of the send"]


_MESSAGES = ListOf(Struct(Schema(RoomMessage)), limits.EVENTS_PER_FRAME_MAX)


class RoomPart(NamedTuple):
    """What one room has for a ROOM_BATCH."""

    room_id: Room
    epoch: Epoch
    messages: Annotated[list[RoomMessage], _MESSAGES, "ascending; a number that is missing is lost"]


class Joined(NamedTuple):
    """The answer to JOIN_ROOM. Everything above room_seq comes as ROOM_BATCH."""

    rid: Rid
    room_id: Room
    epoch: Epoch
    room_seq: Annotated[int, _COUNT, "number of the last message before this answer"]
    member_count: Annotated[int, _COUNT, "connections in the room, a few seconds old"]
    name: Annotated[str, _NAME, "for people"]
    join_policy: Annotated[str, _JOIN, "who may enter"]
    owner_id: Annotated[str, _USER, "who owns it; empty: the operator"]
    role: Annotated[str, _ROLE, "of this user"]
    muted_all: Annotated[bool, Bool(), "whether only owner and moderators may talk"]
    muted_until: Annotated[int, _COUNT, "until when this user is muted, ms; 0: not"]
    parts: Annotated[
        list[RoomPart],
        ListOf(Struct(Schema(RoomPart)), limits.ROOM_PARTS_MAX),
        "what was said last, by epoch",
    ]


class RoomLeft(NamedTuple):
    """The answer to LEAVE_ROOM: nothing of the room comes any more."""

    rid: Rid
    room_id: Room


class RoomState(NamedTuple):
    """A room as it stands: the answer to CREATE_ROOM and CONTROL_ROOM."""

    rid: Rid
    room_id: Room
    epoch: Epoch
    room_seq: Annotated[int, _COUNT, "number of the last message"]
    name: Annotated[str, _NAME, "for people"]
    join_policy: Annotated[str, _JOIN, "who may enter"]
    owner_id: Annotated[str, _USER, "who owns it; empty: the operator"]
    muted_all: Annotated[bool, Bool(), "whether only owner and moderators may talk"]
    closed: Annotated[bool, Bool(), "whether it has ended"]


class RoomAck(NamedTuple):
    """The message of a SEND_ROOM is in the room's log."""

    rid: Rid
    room_id: Room
    client_message_id: Annotated[str, _ID, "of the send"]
    message_id: Annotated[bytes, Id16(), "unique"]
    epoch: Epoch
    room_seq: Annotated[int, Int(1), "its number in the room"]
    at: Annotated[int, _COUNT, "when, ms since 1970"]


class RoomBatch(NamedTuple):
    """Messages of the rooms that this connection is in; at most so many a second as the operator says."""

    rooms: Annotated[list[RoomPart], ListOf(Struct(Schema(RoomPart)), limits.ROOM_PARTS_MAX), "by room"]


class RoomEvent(NamedTuple):
    """Something happened to a room. Never dropped on a living connection, except `members`, which repeats.

    `owner`: another process writes the room; what its predecessor acknowledged last may be missing.
    """

    room_id: Room
    event: Annotated[str, OneOf(EVENTS), "what"]
    epoch: Epoch
    room_seq: Annotated[int, _COUNT, "number of the last message before it; 0: not known"]
    actor_id: Annotated[str, _USER, "who did it; empty: the operator"] = ""
    user_id: Annotated[str, _USER, "whom it is about; empty: everybody"] = ""
    until: Annotated[int, _COUNT, "until when, ms since 1970; 0: does not end"] = 0
    text: Annotated[bytes, Bytes(limits.ROOM_EVENT_TEXT_MAX), "of an announcement"] = b""
    member_count: Annotated[int | None, _COUNT, "with `members`: connections in the room"] = None


RoomFrame = CreateRoom | JoinRoom | LeaveRoom | SendRoom | ControlRoom
RoomAnswer = Joined | RoomLeft | RoomState | RoomAck | RoomBatch | RoomEvent

CLIENT_FRAMES: Final[dict[str, Schema]] = {
    "CREATE_ROOM": Schema(CreateRoom),
    "JOIN_ROOM": Schema(JoinRoom),
    "LEAVE_ROOM": Schema(LeaveRoom),
    "SEND_ROOM": Schema(SendRoom),
    "CONTROL_ROOM": Schema(ControlRoom),
}
SERVER_FRAMES: Final[dict[str, Schema]] = {
    "JOINED": Schema(Joined),
    "ROOM_LEFT": Schema(RoomLeft),
    "ROOM_STATE": Schema(RoomState),
    "ROOM_ACK": Schema(RoomAck),
    "ROOM_BATCH": Schema(RoomBatch),
    "ROOM_EVENT": Schema(RoomEvent),
}

_MESSAGE_ID = bytes.fromhex("01890a5d5c3f00000001000700000000")
_AT = 1_760_000_000_123
_PART = RoomPart("lobby", 1_760_000_000, [RoomMessage(7, _MESSAGE_ID, "ann", _AT, b"hi", "phone-1-000020")])

CLIENT_EXAMPLES: Final[dict[str, RoomFrame]] = {
    "CREATE_ROOM": CreateRoom(25, "lobby", "The lobby"),
    "JOIN_ROOM": JoinRoom(26, "lobby", 50, 1_760_000_000, 5),
    "LEAVE_ROOM": LeaveRoom(27, "lobby"),
    "SEND_ROOM": SendRoom(28, "lobby", "phone-1-000020", b"hi"),
    "CONTROL_ROOM": ControlRoom(29, "lobby", "mute", "eve", 600),
}
SERVER_EXAMPLES: Final[dict[str, RoomAnswer]] = {
    "JOINED": Joined(26, "lobby", 1_760_000_000, 7, 312, "The lobby", "open", "ann", "", False, 0, [_PART]),
    "ROOM_LEFT": RoomLeft(27, "lobby"),
    "ROOM_STATE": RoomState(29, "lobby", 1_760_000_000, 7, "The lobby", "open", "ann", False, False),
    "ROOM_ACK": RoomAck(28, "lobby", "phone-1-000020", _MESSAGE_ID, 1_760_000_000, 8, _AT),
    "ROOM_BATCH": RoomBatch([_PART]),
    "ROOM_EVENT": RoomEvent("lobby", "mute", 1_760_000_000, 8, "ann", "eve", _AT + 600_000),
}
