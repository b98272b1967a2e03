"""One example of every frame, for the document and for tests.

The values are made up; tokens and cursors are not real ones.
"""

from typing import Final

from qim_streams.wire.frames import (
    Auth,
    AuthOk,
    ClientFrame,
    Error,
    Event,
    Goodbye,
    HistoryBreak,
    HistoryPage,
    LiveLost,
    MailboxBatch,
    Message,
    OnlineReady,
    Ping,
    Pong,
    PullHistory,
    PullMailbox,
    PushEvents,
    SendAck,
    SendMessage,
    ServerFrame,
    SyncComplete,
)
from qim_streams.wire.frames_changes import EditMessage, RecallMessage
from qim_streams.wire.frames_group import (
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
    MemberRow,
)
from qim_streams.wire.frames_sessions import (
    ClearConversation,
    DeleteMessages,
    HideConversation,
    LastMessage,
    MarkRead,
    PullSessionList,
    ReadReceipt,
    SessionDelta,
    SessionList,
    SessionRow,
    SessionState,
    SetMute,
    SetPin,
)

_MESSAGE_ID = bytes.fromhex("01890a5d5c3f00000001000700000000")
_EVENT_ID = bytes.fromhex("7c0f1e9bb2a44d6e8a55aa0b3c1d2e4f")
_AT = 1_760_000_000_123
_MESSAGE = Message(_MESSAGE_ID, "team", 42, "ann", 0, 0, _AT, b"hi")
_EVENT = Event(1_041, 0, _EVENT_ID, 3, 0, _MESSAGE)
_ROW = SessionRow(
    "team",
    "group",
    _AT,
    _AT,
    42,
    3,
    True,
    1,
    39,
    0,
    name="The team",
    last=LastMessage(42, _MESSAGE_ID, "ann", 0, _AT, b"hi"),
)
_CURSOR = "AQEx.c2lnbmF0dXJl"

CLIENT_EXAMPLES: Final[dict[str, ClientFrame]] = {
    "AUTH": Auth(1, "eyJhbGciOi.example.token", "phone-1", _CURSOR),
    "PULL_MAILBOX": PullMailbox(2, 1_000, 1_041, 500, 65_536),
    "SYNC_COMPLETE": SyncComplete(3, 1_041),
    "SEND_MESSAGE": SendMessage(4, "phone-1-000017", b"hi", "team"),
    "EDIT_MESSAGE": EditMessage(16, "phone-1-000018", "team", 42, b"hi, all"),
    "RECALL_MESSAGE": RecallMessage(17, "phone-1-000019", "team", 42),
    "PULL_HISTORY": PullHistory(15, "team", "older", 43, 50),
    "PING": Ping(5),
    "PONG": Pong(9),
    "GROUP_CREATE": GroupCreate(6, ["ben", "cleo"], "team", "The team"),
    "GROUP_ADD": GroupAdd(7, "team", ["dora"]),
    "GROUP_REMOVE": GroupRemove(8, "team", ["ben"]),
    "GROUP_JOIN": GroupJoin(9, "team"),
    "GROUP_LEAVE": GroupLeave(10, "team"),
    "GROUP_DISMISS": GroupDismiss(11, "team"),
    "GROUP_SET_ROLE": GroupSetRole(12, "team", "cleo", "admin"),
    "GROUP_UPDATE": GroupUpdate(13, "team", send_policy="admins"),
    "GROUP_GET": GroupGet(14, "team", None, 2),
    "PULL_SESSION_LIST": PullSessionList(16, None, 50, "all", True),
    "MARK_READ": MarkRead(17, "team", 42),
    "SET_MUTE": SetMute(18, "team", True),
    "SET_PIN": SetPin(19, "team", True),
    "HIDE_CONVERSATION": HideConversation(20, "team", True),
    "DELETE_MESSAGES": DeleteMessages(21, "team", [40, 41]),
    "CLEAR_CONVERSATION": ClearConversation(22, "team", 42, True),
}

SERVER_EXAMPLES: Final[dict[str, ServerFrame]] = {
    "AUTH_OK": AuthOk(
        rid=1,
        user_id="ben",
        tenant_id="acme",
        device_id="phone-1",
        session_epoch=_AT,
        connection_id="12884901889",
        shard_epoch=3,
        lane_id=17,
        lane_watermark=1_041,
        trim_watermark=-1,
        after_seq=1_000,
        sync_to_seq=1_041,
        has_offline=True,
        pending_entry_count_hint=2,
        pending_bytes_hint=180,
        total_unread=0,
        total_mention=0,
        muted_unread=0,
        projection_complete=False,
        sync_delay_hint_ms=0,
        next_ping_interval_ms=30_000,
    ),
    "MAILBOX_BATCH": MailboxBatch(2, [_EVENT], 1_041, 1_044, False, _CURSOR),
    "ONLINE_READY": OnlineReady(3, _CURSOR),
    "SEND_ACK": SendAck(4, "phone-1-000017", "team", _MESSAGE_ID, 42, _AT),
    "PUSH_EVENTS": PushEvents([_EVENT]),
    "LIVE_LOST": LiveLost("slow_reader", 1_050),
    "GROUP_STATE": GroupState(
        14,
        "team",
        "group",
        "The team",
        3,
        "members",
        "invite",
        "joined",
        3,
        [MemberRow("ann", "owner"), MemberRow("ben", "member")],
        False,
        "ben",
    ),
    "HISTORY_PAGE": HistoryPage(
        15, "team", [_MESSAGE], [HistoryBreak(31, 41, "not_member")], True, 31, 12, 42
    ),
    "SESSION_LIST": SessionList(16, [_ROW], 1_041, True, f"{_AT}.team"),
    "SESSION_STATE": SessionState(17, _ROW, 1_041),
    "SESSION_DELTA": SessionDelta(1_041, _AT, [_ROW]),
    "READ_RECEIPT": ReadReceipt("team", "ben", 42),
    "PING": Ping(9),
    "PONG": Pong(5, 30_000),
    "ERROR": Error(
        301,
        "CURSOR_EXPIRED",
        False,
        "last_applied is below the trim watermark",
        1,
        rebuild_required=True,
    ),
    "GOODBYE": Goodbye("shutting_down", 1_000),
}
