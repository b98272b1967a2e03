"""The one table of errors that any role may send to a client.

Invariants: numbers and names are unique and never reused; 1xx frames, 2xx identity and session,
3xx sync, 4xx refusals, 5xx failures of ours. `temporary` means that the same request may succeed
later; a terminal error will be answered the same way again until the client changes something.
An error with `closes` is the last frame before the server closes the socket with the WebSocket
close code ``4000 + code``; every other error leaves the connection usable.

Spec: §3, §7, §11.
"""

from typing import Final, NamedTuple

WS_CLOSE_BASE: Final = 4000


class ErrorCode(NamedTuple):
    """A row of the table. `retry_after_ms` is the default delay of a temporary error."""

    code: int
    name: str
    temporary: bool
    closes: bool
    retry_after_ms: int | None
    meaning: str
    remedy: str

    @property
    def ws_close_code(self) -> int:
        """The WebSocket close code that goes with an error that closes."""
        return WS_CLOSE_BASE + self.code


def _terminal(code: int, name: str, meaning: str, remedy: str, *, closes: bool = False) -> ErrorCode:
    return ErrorCode(code, name, False, closes, None, meaning, remedy)


def _temporary(
    code: int, name: str, retry_after_ms: int, meaning: str, remedy: str, *, closes: bool = False
) -> ErrorCode:
    return ErrorCode(code, name, True, closes, retry_after_ms, meaning, remedy)


_FRAMES = (
    _terminal(
        100, "BAD_FRAME", "The bytes are not a frame of this subprotocol.", "Fix the encoder.", closes=True
    ),
    _terminal(101, "UNKNOWN_FRAME", "No frame of this name goes this way.", "Do not send it to this server."),
    _terminal(
        102, "FRAME_TOO_LARGE", "A frame is over the size limit.", "Send less in one frame.", closes=True
    ),
    _terminal(
        103, "FIELD_INVALID", "A field is missing, of a wrong type or out of bounds.", "Fix the named field."
    ),
)

_SESSIONS = (
    _terminal(
        200, "NOT_AUTHENTICATED", "A frame came before AUTH_OK.", "Wait for AUTH_OK first.", closes=True
    ),
    _terminal(
        201, "ALREADY_AUTHENTICATED", "AUTH came again on the same connection.", "Open another connection."
    ),
    _terminal(
        202,
        "BAD_TOKEN",
        "The access token is not acceptable.",
        "Get a new token; do not repeat this one.",
        closes=True,
    ),
    _terminal(
        203, "TOKEN_EXPIRED", "The access token was valid once.", "Get a new token and connect.", closes=True
    ),
    _temporary(
        204,
        "AUTH_TIMEOUT",
        1_000,
        "No AUTH_OK within the deadline.",
        "Connect again with a delay.",
        closes=True,
    ),
    _terminal(
        205,
        "SESSION_REPLACED",
        "The same device connected again elsewhere.",
        "Do not reconnect by itself: a newer session of this device lives.",
        closes=True,
    ),
    _temporary(
        206,
        "TOO_MANY_CONNECTIONS",
        5_000,
        "This gateway is full.",
        "Connect to another gateway, or later.",
        closes=True,
    ),
    _terminal(
        207,
        "AUTH_ATTEMPTS_EXCEEDED",
        "Too many AUTH frames were refused on this connection.",
        "Handle the earlier error, then connect again.",
        closes=True,
    ),
    _temporary(
        208,
        "IDLE_TIMEOUT",
        0,
        "Nothing came for longer than the idle limit.",
        "Connect again; send PING in the interval that AUTH_OK and PONG give.",
        closes=True,
    ),
    _terminal(
        209,
        "LOGGED_IN_ELSEWHERE",
        "Another device of the user has signed on, and the tenant's rule lets only one of the two stay.",
        "Tell the user, and sign on again (without `resumes`) only if he asks for it.",
        closes=True,
    ),
)

_SYNC = (
    _terminal(
        300,
        "CURSOR_INVALID",
        "The cursor is forged, damaged, of another device, or beyond what exists.",
        "Drop the cursor and AUTH again with an empty one, then rebuild.",
    ),
    _terminal(
        301,
        "CURSOR_EXPIRED",
        "Entries after the cursor are no longer in the mailbox.",
        "Keep local messages, AUTH again with an empty cursor, then rebuild from history.",
    ),
    _temporary(
        302,
        "CURSOR_REBASED",
        0,
        "The cursor is of an older shard epoch; `new_cursor` replaces it.",
        "Store `new_cursor` and AUTH again with it; expect events from `replay_from_seq` on.",
    ),
    _temporary(
        303,
        "SYNC_INCOMPLETE",
        0,
        "SYNC_COMPLETE names another sync_to_seq, or pulls do not cover it without a gap.",
        "Pull what is missing up to the sync_to_seq of AUTH_OK, then SYNC_COMPLETE again.",
    ),
    _terminal(
        304,
        "PULL_OUT_OF_RANGE",
        "The range ends before it starts, starts before -1, or ends beyond what may be pulled now.",
        "Before ONLINE_READY pull up to sync_to_seq, afterwards up to lane_watermark.",
    ),
    _temporary(
        305,
        "PULL_WINDOW_EXCEEDED",
        50,
        "More than 4 PULL_MAILBOX are unanswered.",
        "Wait for a MAILBOX_BATCH, then send the next.",
    ),
    _temporary(
        306,
        "BODY_UNAVAILABLE",
        2_000,
        "The body of an entry can be read neither from the hot tier nor from the archive.",
        "Pull the same range again later; nothing was skipped.",
    ),
    _temporary(
        307,
        "HISTORY_UNSETTLED",
        200,
        "The only messages after the anchor are not settled: they will be there, or will never have been.",
        "Pull the same page again later; nothing was skipped.",
    ),
)

_REFUSALS = (
    _temporary(400, "RATE_LIMITED", 1_000, "A rate limit says not now.", "Repeat after `retry_after_ms`."),
    _temporary(
        401,
        "TOO_MANY_IN_FLIGHT",
        100,
        "Too many requests of this connection are unanswered.",
        "Wait for answers.",
    ),
    _terminal(402, "BODY_TOO_LARGE", "The message body is over the limit.", "Send a smaller body."),
    _terminal(
        403, "NO_CONVERSATION", "There is no such conversation.", "Check the id; create the group first."
    ),
    _terminal(404, "NOT_MEMBER", "You are not a member of the conversation.", "Join or be added first."),
    _terminal(
        405, "NOT_ALLOWED", "Your role or the group's policy does not permit this.", "Ask an administrator."
    ),
    _terminal(406, "DISMISSED", "The group was dismissed.", "Stop sending to it."),
    _terminal(
        407,
        "CLIENT_MESSAGE_ID_CONFLICT",
        "This client_message_id was used for another message, which stands.",
        "Use a new client_message_id for a new message.",
    ),
    _terminal(408, "GROUP_TOO_LARGE", "The change would exceed the member limit.", "Add fewer users."),
    _terminal(
        409, "CONVERSATION_EXISTS", "A conversation with this id exists.", "Choose another id, or none."
    ),
    _temporary(
        410,
        "MEMBERSHIP_CONFLICT",
        100,
        "Another change of the group came first.",
        "Read the group, then repeat.",
    ),
    _temporary(
        411,
        "QUOTA_EXCEEDED",
        1_000,
        "The tenant's fan-out quota is used up.",
        "Repeat after `retry_after_ms`.",
    ),
    _terminal(
        412,
        "TARGET_NOT_FOUND",
        "The conversation has no message of this conversation_seq.",
        "Name a message that you have seen.",
    ),
    _terminal(
        413,
        "TARGET_NOT_A_MESSAGE",
        "The conversation_seq is that of an edit or recall.",
        "Name the message itself: the `target_seq` of the edit.",
    ),
    _terminal(414, "TARGET_RECALLED", "The message was recalled, which stands.", "Show it as recalled."),
    _terminal(
        415,
        "CHANGE_TOO_LATE",
        "The time in which this message could be edited or recalled is over.",
        "Send another message; owners and admins of a group may recall for longer.",
    ),
    _terminal(
        416,
        "TOO_MANY_EDITS",
        "The message was edited as often as is possible.",
        "Recall it and send another.",
    ),
    _temporary(
        417,
        "TARGET_UNSETTLED",
        200,
        "The message is still being committed.",
        "Repeat after `retry_after_ms`, with the same client_message_id.",
    ),
    _temporary(
        418,
        "CONVERSATION_BUSY",
        200,
        "The conversation has had as many messages as it may have for now.",
        "Repeat after `retry_after_ms`, with the same client_message_id.",
    ),
    _terminal(
        419,
        "REFUSED_BY_APPLICATION",
        "The application was asked and does not permit the message; `detail` is its reason.",
        "Show the reason; send another message.",
    ),
    _temporary(
        420,
        "APPLICATION_UNAVAILABLE",
        2_000,
        "The application has to permit the message and could not be asked.",
        "Repeat after `retry_after_ms`, with the same client_message_id.",
    ),
    _terminal(430, "NO_ROOM", "There is no such room.", "Check the id; create the room first."),
    _terminal(431, "ROOM_CLOSED", "The room is closed.", "Leave it."),
    _terminal(432, "ROOM_EXISTS", "A room with this id exists.", "Choose another id."),
    _terminal(
        433, "MUTED", "You are muted in this room, or everybody is.", "Wait until a moderator lifts it."
    ),
    _terminal(434, "BANNED", "You were sent out of this room.", "Do not come back before the time is over."),
    _terminal(435, "NOT_IN_ROOM", "This connection has not joined the room.", "JOIN_ROOM first."),
    _terminal(
        436, "TOO_MANY_ROOMS", "This connection is in as many rooms as is possible.", "Leave one first."
    ),
)

_FAILURES = (
    _temporary(
        500,
        "OVERLOADED",
        1_000,
        "A queue of the server is full. Nothing was done.",
        "Repeat after `retry_after_ms`.",
    ),
    _temporary(
        501,
        "OUTCOME_UNKNOWN",
        500,
        "No answer in time: the message may or may not be committed.",
        "Repeat with the same client_message_id; a committed message answers the same.",
    ),
    _temporary(
        502, "STORE_UNAVAILABLE", 1_000, "A store cannot be reached now.", "Repeat after `retry_after_ms`."
    ),
    _temporary(
        503,
        "SHARD_MOVED",
        1_000,
        "The owner of the data is changing.",
        "Repeat after `retry_after_ms`, with the same client_message_id for a send.",
    ),
    _temporary(
        504,
        "SHUTTING_DOWN",
        1_000,
        "This gateway is about to stop.",
        "Connect to another gateway, or again after `retry_after_ms`.",
    ),
    _temporary(
        505,
        "INTERNAL",
        2_000,
        "Something failed that should not.",
        "Repeat a few times with a growing delay, then report it.",
        closes=True,
    ),
)

TABLE: Final[tuple[ErrorCode, ...]] = (*_FRAMES, *_SESSIONS, *_SYNC, *_REFUSALS, *_FAILURES)
BY_NAME: Final[dict[str, ErrorCode]] = {row.name: row for row in TABLE}
BY_CODE: Final[dict[int, ErrorCode]] = {row.code: row for row in TABLE}


def code_of(name: str) -> ErrorCode:
    """The row of an error name; INTERNAL for a name that has none, so that an answer always exists."""
    return BY_NAME.get(name, BY_NAME["INTERNAL"])
