"""The frames of the session list. They are part of the tables in ``frames``.

Spec: §8 (2), §9.
"""

from typing import Annotated, Final, NamedTuple

from qim_streams import limits
from qim_streams.wire.frames_group import Conversation, Rid
from qim_streams.wire.kinds import U32_MAX, Bool, Bytes, Id16, Int, ListOf, OneOf, Text, TextId, Token
from qim_streams.wire.schema import Schema, Struct

ONLY = ("all", "every", "unread", "muted", "mentioned")
_ID = TextId()
_COUNT = Int(0)
_SEQ = Int(-1)
_CURSOR = Token(limits.SESSION_CURSOR_MAX)
_ROWS_MAX = limits.SESSION_PAGE_MAX + limits.SESSION_PINS_MAX
_PREVIEW = Bytes(limits.SESSION_PREVIEW_BYTES)


class PullSessionList(NamedTuple):
    """Ask for a page of the user's conversations, the newest first."""

    rid: Rid
    cursor: Annotated[str | None, _CURSOR, "next_cursor of the page before; null: the first page"] = None
    limit: Annotated[int, Int(1, limits.SESSION_PAGE_MAX), "most rows of the answer"] = 100
    only: Annotated[str, OneOf(ONLY), "which; every: also those that are hidden"] = "all"
    pinned_first: Annotated[
        bool,
        Bool(),
        "the first page begins with all pinned ones, beyond limit; they come again at their place",
    ] = False


class MarkRead(NamedTuple):
    """The user has read up to here, on any of his devices. It never goes back."""

    rid: Rid
    conversation_id: Conversation
    read_seq: Annotated[int, _COUNT, "inclusive conversation_seq; beyond the end means the end"]


class SetMute(NamedTuple):
    """Mute or unmute a conversation."""

    rid: Rid
    conversation_id: Conversation
    muted: Annotated[bool, Bool(), "whether it is muted"]


class SetPin(NamedTuple):
    """Pin or unpin a conversation."""

    rid: Rid
    conversation_id: Conversation
    pinned: Annotated[bool, Bool(), "whether it is pinned"]


class HideConversation(NamedTuple):
    """Take a conversation off the list until its next message, or put it back."""

    rid: Rid
    conversation_id: Conversation
    hidden: Annotated[bool, Bool(), "whether it is hidden"] = True


class DeleteMessages(NamedTuple):
    """Delete messages for this user only, on all of his devices."""

    rid: Rid
    conversation_id: Conversation
    seqs: Annotated[list[int], ListOf(Int(1), limits.DELETE_SEQS_MAX), "conversation_seqs"]


class ClearConversation(NamedTuple):
    """Delete everything up to a seq, for this user only. Together with `hidden`: delete a conversation."""

    rid: Rid
    conversation_id: Conversation
    up_to_seq: Annotated[int | None, _COUNT, "inclusive; null: everything that is there"] = None
    hidden: Annotated[bool, Bool(), "also take it off the list until its next message"] = False


class Typing(NamedTuple):
    """The user is writing. No answer comes; too many, and those in a large group, are dropped."""

    rid: Rid
    conversation_id: Conversation


class GetReadCount(NamedTuple):
    """Ask how many of the other members have read up to a message."""

    rid: Rid
    conversation_id: Conversation
    conversation_seq: Annotated[int, Int(1), "of the message"]


class GetSessionTotals(NamedTuple):
    """Ask what is unread in all, over the whole list."""

    rid: Rid


class LastMessage(NamedTuple):
    """The newest message of a conversation that the user may see and has not deleted."""

    conversation_seq: Annotated[int, _COUNT, "its number"]
    message_id: Annotated[bytes, Id16(), "its id"]
    sender_id: Annotated[str, _ID, "who sent it"]
    state: Annotated[int, Int(0, 255), "0 normal, 1 edited, 2 recalled"]
    committed_at: Annotated[int, _COUNT, "milliseconds since the epoch"]
    preview: Annotated[bytes, _PREVIEW, "the beginning of the body; empty when recalled"]
    truncated: Annotated[bool, Bool(), "whether the body is longer"] = False


class SessionRow(NamedTuple):
    """A conversation in the list. All values are absolute."""

    conversation_id: Conversation
    kind: Annotated[str, OneOf(("direct", "group")), "what it is"]
    version: Annotated[int, _COUNT, "of the user's own marks: grows with each; 0: he has made none"]
    activity: Annotated[int, _COUNT, "order of the list: milliseconds of the newest message"]
    latest_seq: Annotated[int, _COUNT, "the last number that the user may see; 0: none"]
    unread: Annotated[
        int, Int(0, limits.UNREAD_PRECISE_LIMIT), "messages above read_seq and the user's own last message"
    ]
    unread_exact: Annotated[bool, Bool(), "false: there are more"]
    mentions: Annotated[int, Int(0, limits.UNREAD_PRECISE_LIMIT), "those among them that name the user"]
    read_seq: Annotated[int, _COUNT, "read up to here, inclusive"]
    deleted_to_seq: Annotated[int, _COUNT, "cleared up to here, inclusive"]
    active: Annotated[bool, Bool(), "whether the user is a member now"] = True
    dismissed: Annotated[bool, Bool(), "whether the group has ended"] = False
    muted: Annotated[bool, Bool(), "muted by the user"] = False
    hidden: Annotated[bool, Bool(), "off the list until the next message"] = False
    pinned_at: Annotated[int, _COUNT, "milliseconds; 0: not pinned"] = 0
    name: Annotated[str, Text(limits.GROUP_NAME_MAX), "of a group"] = ""
    peer_user_id: Annotated[str | None, _ID, "the other member of a direct chat"] = None
    peer_read_seq: Annotated[int | None, _COUNT, "how far he has read; null: not known"] = None
    mention_seqs: Annotated[
        list[int] | None, ListOf(Int(1), limits.SESSION_MENTIONS_MAX), "the newest of them; null: none"
    ] = None
    last: Annotated[LastMessage | None, Struct(Schema(LastMessage)), "null: there is none"] = None


_ROWS = ListOf(Struct(Schema(SessionRow)), _ROWS_MAX)


class SessionList(NamedTuple):
    """Answer to PULL_SESSION_LIST. What is above `projection_mailbox_seq` of the first page is an event."""

    rid: Rid
    rows: Annotated[list[SessionRow], _ROWS, "the newest first"]
    projection_mailbox_seq: Annotated[int, _SEQ, "every entry up to here is in the list"]
    projection_complete: Annotated[bool, Bool(), "whether all conversations are known to be listed"]
    next_cursor: Annotated[
        str | None, _CURSOR, "of the next page, also where a filter left this one short; null: no more"
    ] = None


class SessionState(NamedTuple):
    """Answer to MARK_READ, SET_MUTE and the like: the conversation as it is now."""

    rid: Rid
    row: Annotated[SessionRow, Struct(Schema(SessionRow)), "the conversation"]
    projection_mailbox_seq: Annotated[int, _SEQ, "the row is at least as new as this entry"]


class SessionDelta(NamedTuple):
    """Another device has changed something, or a group took the user in, let him go, was renamed or ended.

    May be lost.

    Apply it only if (projection_mailbox_seq, version) is greater than that of the last one, else drop all.
    """

    projection_mailbox_seq: Annotated[int, _SEQ, "the rows are at least as new as this entry"]
    version: Annotated[int, _COUNT, "grows with every change of the user, whichever conversation"]
    rows: Annotated[list[SessionRow], _ROWS, "the conversations as they are now"]


class SessionTotals(NamedTuple):
    """What is unread in all: the answer to GET_SESSION_TOTALS, or (without rid) after a change of the user.

    All devices of the user are told, the one that made the change as well. May be lost. Apply it only if
    (projection_mailbox_seq, version) is greater than that of the last one on this connection, else drop it
    whole. That order is its own, and not that of SESSION_DELTA.
    """

    projection_mailbox_seq: Annotated[int, _SEQ, "every entry up to here is counted"]
    version: Annotated[int, _COUNT, "every change of the user up to this one is in it; 0: none"]
    total_unread: Annotated[int, _COUNT, "in all listed conversations"]
    total_mention: Annotated[int, _COUNT, "those among them that name the user"]
    muted_unread: Annotated[int, _COUNT, "those among them in muted conversations"]
    badge: Annotated[int, _COUNT, "total_unread without muted_unread: what an icon shows"]
    complete: Annotated[bool, Bool(), "whether all is counted; false: there may be more"]
    rid: Annotated[int | None, Int(0, U32_MAX), "the request"] = None


class ReadReceipt(NamedTuple):
    """The other member of a direct chat has read. May be lost; peer_read_seq of a row says the same."""

    conversation_id: Conversation
    user_id: Annotated[str, _ID, "who has read"]
    read_seq: Annotated[int, _COUNT, "up to here, inclusive"]


class ReadCount(NamedTuple):
    """Answer to GET_READ_COUNT."""

    rid: Rid
    conversation_id: Conversation
    conversation_seq: Annotated[int, Int(1), "as asked"]
    read: Annotated[int, _COUNT, "other members who have read up to there"]
    others: Annotated[int, _COUNT, "other members that were looked at"]
    exact: Annotated[bool, Bool(), "false: the group has more"]
    user_ids: Annotated[list[str], ListOf(_ID, limits.READERS_SHOWN_MAX), "some of the readers, by id"]


class UserTyping(NamedTuple):
    """Somebody else is writing in a conversation. Lossy."""

    conversation_id: Conversation
    user_id: Annotated[str, _ID, "who"]


SessionFrame = (
    PullSessionList
    | MarkRead
    | SetMute
    | SetPin
    | HideConversation
    | DeleteMessages
    | ClearConversation
    | Typing
    | GetReadCount
    | GetSessionTotals
)
SessionAnswer = (
    SessionList | SessionState | SessionDelta | SessionTotals | ReadReceipt | ReadCount | UserTyping
)
ROW: Final = Schema(SessionRow)

CLIENT_FRAMES: Final[dict[str, Schema]] = {
    "PULL_SESSION_LIST": Schema(PullSessionList),
    "MARK_READ": Schema(MarkRead),
    "SET_MUTE": Schema(SetMute),
    "SET_PIN": Schema(SetPin),
    "HIDE_CONVERSATION": Schema(HideConversation),
    "DELETE_MESSAGES": Schema(DeleteMessages),
    "CLEAR_CONVERSATION": Schema(ClearConversation),
    "TYPING": Schema(Typing),
    "GET_READ_COUNT": Schema(GetReadCount),
    "GET_SESSION_TOTALS": Schema(GetSessionTotals),
}
SERVER_FRAMES: Final[dict[str, Schema]] = {
    "SESSION_LIST": Schema(SessionList),
    "SESSION_STATE": Schema(SessionState),
    "SESSION_DELTA": Schema(SessionDelta),
    "SESSION_TOTALS": Schema(SessionTotals),
    "READ_RECEIPT": Schema(ReadReceipt),
    "READ_COUNT": Schema(ReadCount),
    "USER_TYPING": Schema(UserTyping),
}
