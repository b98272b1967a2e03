"""Every frame of the client protocol, declared field by field: this file is the schema.

A frame on the wire is a map with ``t`` (its name) and its fields; the classes below are what both
codecs read and write. A field with a default may be absent or null, which mean the same. Fields that a
reader does not know are ignored. ``rid`` names a request; its answer, or the ERROR in its place,
repeats it.

Invariants: `CLIENT_FRAMES` and `SERVER_FRAMES` are the only tables of frames; the document
``docs/protocol.md`` and the fuzz tests are made from them.

Spec: §3, §6, §7.
"""

from typing import Annotated, Final, NamedTuple

from qim_streams import limits
from qim_streams.codec import RECORD_BYTES_MAX
from qim_streams.wire import frames_presence, frames_rooms, frames_sessions
from qim_streams.wire.frames_changes import EditMessage, RecallMessage
from qim_streams.wire.frames_group import (
    Conversation,
    GroupAdd,
    GroupCreate,
    GroupDismiss,
    GroupGet,
    GroupJoin,
    GroupLeave,
    GroupRemove,
    GroupSetRole,
    GroupState,
    GroupUpdate,
    Rid,
)
from qim_streams.wire.frames_presence import PresenceAnswer, PresenceFrame
from qim_streams.wire.frames_push import CLIENT_FRAMES as PUSH_CLIENT_FRAMES
from qim_streams.wire.frames_push import SERVER_FRAMES as PUSH_SERVER_FRAMES
from qim_streams.wire.frames_push import PushAnswer, PushFrame
from qim_streams.wire.frames_rooms import RoomAnswer, RoomFrame
from qim_streams.wire.frames_sessions import SessionAnswer, SessionFrame
from qim_streams.wire.kinds import U32_MAX, Bool, Bytes, Id16, Int, ListOf, OneOf, Text, TextId, Token
from qim_streams.wire.schema import Schema, Struct

_MS_PER_DAY = 86_400_000
_ID = TextId()
_ID16 = Id16()
_SEQ = Int(-1)
_COUNT = Int(0)
_BODY = Bytes(RECORD_BYTES_MAX)
_CURSOR = Token(limits.CURSOR_TOKEN_MAX)
_URL = Token(2_048)
_DELAY = Int(0, _MS_PER_DAY)

# -- sign-on and sync (Spec: §7)


class Auth(NamedTuple):
    """The first frame of a connection."""

    rid: Rid
    access_token: Annotated[str, Token(limits.ACCESS_TOKEN_MAX), "JWT that names tenant and user"]
    device_id: Annotated[str, _ID, "stable id of this device"]
    mailbox_cursor: Annotated[str | None, _CURSOR, "the stored cursor; null or empty: from now on"] = None
    platform: Annotated[str | None, _ID, "ios, web, ...: where a tenant allows one device of each"] = None
    resumes: Annotated[
        int | None, _COUNT, "session_epoch that this device had, when it connects again by itself"
    ] = None


class AuthOk(NamedTuple):
    """The session is open; what is up to `sync_to_seq` is pulled, what comes later is pushed."""

    rid: Rid
    user_id: Annotated[str, _ID, "the user of the token"]
    tenant_id: Annotated[str, _ID, "the tenant of the token"]
    device_id: Annotated[str, _ID, "as given"]
    session_epoch: Annotated[int, _COUNT, "grows with every session of this device"]
    connection_id: Annotated[str, Token(20), "decimal u64; names this connection in logs"]
    shard_epoch: Annotated[int, _COUNT, "epoch of the user's MailboxShard"]
    lane_id: Annotated[int, Int(0, 63), "lane of the user"]
    lane_watermark: Annotated[int, _SEQ, "everything at or below is durable; -1: nothing yet"]
    trim_watermark: Annotated[int, _SEQ, "everything at or below may be gone; -1: nothing trimmed"]
    after_seq: Annotated[int, _SEQ, "where to pull from: last_applied of the cursor"]
    sync_to_seq: Annotated[int, _SEQ, "where to pull to; SYNC_COMPLETE repeats it"]
    has_offline: Annotated[bool, Bool(), "whether the range holds entries"]
    pending_entry_count_hint: Annotated[int, _COUNT, "entries in the range; from 50 on an estimate"]
    pending_bytes_hint: Annotated[int, _COUNT, "bytes of those entries, without bodies; an estimate, too"]
    total_unread: Annotated[int, _COUNT, "unread messages, those of muted conversations included"]
    total_mention: Annotated[int, _COUNT, "unread mentions"]
    muted_unread: Annotated[int, _COUNT, "unread messages of muted conversations"]
    projection_complete: Annotated[
        bool, Bool(), "whether the three totals are exact; false: at least so many"
    ]
    sync_delay_hint_ms: Annotated[int, _DELAY, "wait this long before the first pull"]
    next_ping_interval_ms: Annotated[int, _DELAY, "send PING at least this often"]
    preferred_endpoint: Annotated[str | None, _URL, "where to connect next time"] = None
    push_token_dead: Annotated[
        str | None, Text(64), "why the provider takes this device's push token no more: register another"
    ] = None


class PullMailbox(NamedTuple):
    """Ask for the entries with after_seq < mailbox_seq <= up_to_seq. Up to 4 may be unanswered."""

    rid: Rid
    after_seq: Annotated[int, _SEQ, "exclusive start"]
    up_to_seq: Annotated[int, _SEQ, "inclusive end"]
    limit_entries: Annotated[int, Int(1, limits.PULL_ENTRIES_MAX), "most entries of the answer"] = (
        limits.PULL_ENTRIES_MAX
    )
    limit_bytes: Annotated[int, Int(1, limits.PULL_BYTES_MAX), "most bytes of entries of the answer"] = (
        limits.PULL_BYTES_MAX
    )


class SyncComplete(NamedTuple):
    """All of (after_seq, sync_to_seq] was pulled and applied."""

    rid: Rid
    sync_to_seq: Annotated[int, _SEQ, "exactly the value of AUTH_OK"]


class OnlineReady(NamedTuple):
    """The barrier is lifted: PUSH_EVENTS follow."""

    rid: Rid
    cursor: Annotated[str, _CURSOR, "covers everything up to sync_to_seq; store it"]


# -- messages


class Message(NamedTuple):
    """A message as every recipient sees it."""

    message_id: Annotated[bytes, _ID16, "unique; sorts by time"]
    conversation_id: Conversation
    conversation_seq: Annotated[int, _COUNT, "order inside the conversation, from 1"]
    sender_id: Annotated[str, _ID, "who sent it"]
    kind: Annotated[int, Int(0, 65_535), "0: message; 1 edit, 2 recall of the message `target_seq`"]
    state: Annotated[int, Int(0, 255), "0 normal, 1 edited, 2 recalled; of an edit or recall: its target's"]
    committed_at: Annotated[int, _COUNT, "milliseconds since the epoch"]
    body: Annotated[bytes, _BODY, "opaque; empty once recalled; of an edit: its target's, by now"]
    target_seq: Annotated[int | None, _COUNT, "edit and recall: the conversation_seq that they change"] = None


class Event(NamedTuple):
    """A message as one user's mailbox has it. The same event has the same `event_id` on every way."""

    mailbox_seq: Annotated[int, _SEQ, "position in the mailbox; order of events"]
    event_ordinal: Annotated[int, Int(0, 65_535), "order inside one mailbox_seq"]
    event_id: Annotated[bytes, _ID16, "drop an event whose id was applied before"]
    flags: Annotated[int, Int(0, 255), "1: counts as unread, 2: moves the conversation up"]
    mention_type: Annotated[int, Int(0, 255), "0: none, 1: names you, 2: names everybody"]
    message: Annotated[Message, Struct(Schema(Message)), "the message"]
    client_message_id: Annotated[str | None, _ID, "on the sender's own devices only"] = None


class SendMessage(NamedTuple):
    """Send a message, to a conversation or to a user. Legal from AUTH_OK on."""

    rid: Rid
    client_message_id: Annotated[str, _ID, "unique per sender; a retry repeats it"]
    body: Annotated[bytes, _BODY, "opaque; the server's limit is usually 65536 bytes"]
    conversation_id: Annotated[str | None, _ID, "a group or a known direct chat"] = None
    to_user_id: Annotated[str | None, _ID, "or a user: the direct chat, made at the first message"] = None
    mentions: Annotated[list[str] | None, ListOf(_ID, limits.MENTIONS_MAX), "users that it names"] = None
    mention_all: Annotated[bool, Bool(), "it names everybody; in a group administrators may"] = False


class SendAck(NamedTuple):
    """The message is committed: durable in the log, and on its way to every member."""

    rid: Rid
    client_message_id: Annotated[str, _ID, "as given"]
    conversation_id: Conversation
    message_id: Annotated[bytes, _ID16, "the same for every retry"]
    conversation_seq: Annotated[int, _COUNT, "the same for every retry"]
    committed_at: Annotated[int, _COUNT, "milliseconds since the epoch"]


class MailboxBatch(NamedTuple):
    """Answer to PULL_MAILBOX: all entries of (after_seq, covered_through_seq], seqs never split."""

    rid: Rid
    entries: Annotated[
        list[Event], ListOf(Struct(Schema(Event)), limits.EVENTS_PER_FRAME_MAX), "ascending by seq, ordinal"
    ]
    covered_through_seq: Annotated[int, _SEQ, "there is nothing else up to here"]
    lane_watermark: Annotated[int, _SEQ, "how far one may pull now, once online"]
    has_more: Annotated[bool, Bool(), "covered_through_seq < up_to_seq: pull on from there"]
    cursor: Annotated[
        str | None, _CURSOR, "store it after applying all batches so far; null: the covered part has a gap"
    ] = None


class PushEvents(NamedTuple):
    """Events of the live stream. They never move the cursor."""

    events: Annotated[
        list[Event], ListOf(Struct(Schema(Event)), limits.EVENTS_PER_FRAME_MAX), "ascending by seq, ordinal"
    ]


class LiveLost(NamedTuple):
    """The live stream has a gap: pull from the cursor to `lane_watermark` or further; it then goes on."""

    reason: Annotated[str, OneOf(("slow_reader", "held_overflow", "stream_gap")), "why"]
    lane_watermark: Annotated[int, _SEQ, "pull at least up to here"]


# -- history (Spec: §5, §8)


class PullHistory(NamedTuple):
    """Ask for a page of a conversation, also of one that was left or dismissed. Up to 4 may be unanswered."""

    rid: Rid
    conversation_id: Conversation
    direction: Annotated[str, OneOf(("newer", "older")), "where the page goes from the anchor"]
    anchor: Annotated[
        int | None,
        _COUNT,
        "exclusive conversation_seq; null: the beginning (newer) or the end (older)",
    ] = None
    limit: Annotated[int, Int(1, limits.HISTORY_MESSAGES_MAX), "most messages of the answer"] = 100
    limit_bytes: Annotated[
        int, Int(1, limits.HISTORY_BYTES_MAX), "most bytes of them; one message comes in any case"
    ] = limits.HISTORY_BYTES_MAX


class HistoryBreak(NamedTuple):
    """Numbers of a page's range that hold no message for this user."""

    from_seq: Annotated[int, _COUNT, "inclusive start"]
    to_seq: Annotated[int, _COUNT, "inclusive end"]
    reason: Annotated[
        str,
        OneOf(("before_join", "not_member", "deleted", "unused", "unreadable")),
        "not for you (before the first join, between leave and rejoin), deleted by you, no message has it, "
        "or it is damaged",
    ]


class HistoryPage(NamedTuple):
    """Answer to PULL_HISTORY: every number from the anchor to `next_anchor` is a message or in a break."""

    rid: Rid
    conversation_id: Conversation
    messages: Annotated[
        list[Message],
        ListOf(Struct(Schema(Message)), limits.HISTORY_MESSAGES_MAX),
        "ascending by conversation_seq in either direction",
    ]
    breaks: Annotated[
        list[HistoryBreak], ListOf(Struct(Schema(HistoryBreak)), limits.EVENTS_PER_FRAME_MAX), "ascending"
    ]
    has_more: Annotated[bool, Bool(), "whether more is to be read behind next_anchor"]
    next_anchor: Annotated[int, _COUNT, "the page covers up to here, inclusive; anchor of the next page"]
    oldest_visible_seq: Annotated[int, _COUNT, "nothing below is for this user"]
    latest_seq: Annotated[int, _COUNT, "the last number that this user may read now; 0: none"]


# -- keeping and ending a connection


class Ping(NamedTuple):
    """Sign of life, from either side."""

    rid: Rid


class Pong(NamedTuple):
    """Answer to PING."""

    rid: Rid
    next_ping_interval_ms: Annotated[int | None, _DELAY, "from the server: send PING at least this often"] = (
        None
    )


class Error(NamedTuple):
    """A request failed (with its `rid`), or the connection did (without)."""

    code: Annotated[int, Int(0, 999), "number of the error table"]
    name: Annotated[str, Token(64), "name of the error table"]
    temporary: Annotated[bool, Bool(), "whether the same request may succeed later"]
    detail: Annotated[str, Text(512), "for people"]
    rid: Annotated[int | None, Int(0, U32_MAX), "the request"] = None
    retry_after_ms: Annotated[int | None, _DELAY, "not before"] = None
    field: Annotated[str | None, Text(128), "the field that is wrong"] = None
    client_message_id: Annotated[str | None, _ID, "of a refused send, edit or recall"] = None
    rebuild_required: Annotated[bool | None, Bool(), "with CURSOR_EXPIRED"] = None
    new_cursor: Annotated[str | None, _CURSOR, "with CURSOR_REBASED"] = None
    replay_from_seq: Annotated[int | None, _SEQ, "with CURSOR_REBASED"] = None


class Goodbye(NamedTuple):
    """The server closes on purpose after this frame."""

    reason: Annotated[str, OneOf(("shutting_down", "moved")), "why"]
    retry_after_ms: Annotated[int, _DELAY, "wait this long, with jitter, before connecting again"]
    preferred_endpoint: Annotated[str | None, _URL, "where"] = None


ClientFrame = (
    Auth
    | PullMailbox
    | SyncComplete
    | SendMessage
    | EditMessage
    | RecallMessage
    | PullHistory
    | Ping
    | Pong
    | GroupCreate
    | GroupAdd
    | GroupRemove
    | GroupJoin
    | GroupLeave
    | GroupDismiss
    | GroupSetRole
    | GroupUpdate
    | GroupGet
    | PushFrame
    | PresenceFrame
    | SessionFrame
    | RoomFrame
)
ServerFrame = (
    AuthOk
    | MailboxBatch
    | OnlineReady
    | SendAck
    | PushEvents
    | LiveLost
    | GroupState
    | HistoryPage
    | PushAnswer
    | PresenceAnswer
    | SessionAnswer
    | RoomAnswer
    | Ping
    | Pong
    | Error
    | Goodbye
)
Frame = ClientFrame | ServerFrame

CLIENT_FRAMES: Final[dict[str, Schema]] = {
    "AUTH": Schema(Auth),
    "PULL_MAILBOX": Schema(PullMailbox),
    "SYNC_COMPLETE": Schema(SyncComplete),
    "SEND_MESSAGE": Schema(SendMessage),
    "EDIT_MESSAGE": Schema(EditMessage),
    "RECALL_MESSAGE": Schema(RecallMessage),
    "PULL_HISTORY": Schema(PullHistory),
    "PING": Schema(Ping),
    "PONG": Schema(Pong),
    "GROUP_CREATE": Schema(GroupCreate),
    "GROUP_ADD": Schema(GroupAdd),
    "GROUP_REMOVE": Schema(GroupRemove),
    "GROUP_JOIN": Schema(GroupJoin),
    "GROUP_LEAVE": Schema(GroupLeave),
    "GROUP_DISMISS": Schema(GroupDismiss),
    "GROUP_SET_ROLE": Schema(GroupSetRole),
    "GROUP_UPDATE": Schema(GroupUpdate),
    "GROUP_GET": Schema(GroupGet),
    **PUSH_CLIENT_FRAMES,
    **frames_presence.CLIENT_FRAMES,
    **frames_sessions.CLIENT_FRAMES,
    **frames_rooms.CLIENT_FRAMES,
}
SERVER_FRAMES: Final[dict[str, Schema]] = {
    "AUTH_OK": Schema(AuthOk),
    "MAILBOX_BATCH": Schema(MailboxBatch),
    "ONLINE_READY": Schema(OnlineReady),
    "SEND_ACK": Schema(SendAck),
    "PUSH_EVENTS": Schema(PushEvents),
    "LIVE_LOST": Schema(LiveLost),
    "GROUP_STATE": Schema(GroupState),
    "HISTORY_PAGE": Schema(HistoryPage),
    **PUSH_SERVER_FRAMES,
    **frames_presence.SERVER_FRAMES,
    **frames_sessions.SERVER_FRAMES,
    **frames_rooms.SERVER_FRAMES,
    "PING": Schema(Ping),
    "PONG": Schema(Pong),
    "ERROR": Schema(Error),
    "GOODBYE": Schema(Goodbye),
}
NAME_OF: Final[dict[type, str]] = {
    schema.cls: name for table in (CLIENT_FRAMES, SERVER_FRAMES) for name, schema in table.items()
}
SCHEMA_OF: Final[dict[type, Schema]] = {
    schema.cls: schema for table in (CLIENT_FRAMES, SERVER_FRAMES) for schema in table.values()
}
