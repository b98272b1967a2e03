"""Every fixed bound of the system in one place. Bounds that an operator may move are settings.

Spec: §5 (2000), §7 (window 4), and the promise that everything is bounded.
"""

FRAME_BYTES_MAX = 256 * 1024  # a client frame, before it is decoded
FRAME_DEPTH_MAX = 8
FRAMES_BEFORE_AUTH_MAX = 1
BODY_BYTES_MAX = 64 * 1024  # default of the setting message_body_bytes_max
PULL_WINDOW = 4
PULL_ENTRIES_MAX = 1_000  # per MAILBOX_BATCH
PULL_BYTES_MAX = 192 * 1024  # per MAILBOX_BATCH, bodies included
HISTORY_WINDOW = 4  # unanswered PULL_HISTORY of a connection
HISTORY_MESSAGES_MAX = 500  # per HISTORY_PAGE
HISTORY_BYTES_MAX = 192 * 1024  # per HISTORY_PAGE: common bodies
WRITEBATCH_ENTRIES_MAX = 2_000  # mailbox_writebatch_max_entries
INLINE_MEMBERS_MAX = 32  # members that travel inside Outbox and dispatch records
LUA_ARGUMENTS_MAX = 4_000  # unpack() fails near 8,000
GROUP_MEMBERS_PER_CHANGE_MAX = 5_000  # users in one add or remove request
GROUP_NAME_MAX = 128
CURSOR_TOKEN_MAX = 512
ACCESS_TOKEN_MAX = 8 * 1024
EVENTS_PER_FRAME_MAX = 2_000  # entries or events in one server frame
SERVER_FRAME_BYTES_MAX = 2 * 1024 * 1024  # what a client must be able to receive
GROUP_PAGE_MAX = 1_000  # members in one GROUP_STATE
AUTH_ATTEMPTS_MAX = 3  # AUTH frames on one connection: cursor refused, rebased, empty
DEVICES_MAX = 32  # devices of a user with a session; the one unseen for longest gives way
API_BODY_BYTES_MAX = 1024 * 1024  # a request to the admin API: 5,000 user ids fit
API_CONNECTIONS_MAX = 256  # of the admin API, those that have asked for nothing yet included
API_REQUESTS_MAX = 64  # requests of operators at once, those whose body is being read included
TOKEN_TTL_MAX_S = 30 * 86_400  # of an access token minted by the admin API
EPOCH_BOUNDARIES_MAX = 1_000  # takeovers of a MailboxShard that old cursors are resolved through
MEMBERSHIP_VERSION_RETENTION_MS = 16 * 86_400_000  # above Outbox (7 d) plus dispatch log (8 d)
UNREAD_PRECISE_LIMIT = 200  # unread is exact up to here, above it is this number and unread_exact=false
SESSION_PAGE_MAX = 200  # conversations in one SESSION_LIST
SESSION_PREVIEW_BYTES = 256  # of the last message's body in a session row
SESSION_DELETES_MAX = 500  # messages of one conversation that a user has deleted one by one
DELETE_SEQS_MAX = 200  # of one DELETE_MESSAGES
SESSION_PINS_MAX = 100  # pinned conversations of a user
SESSION_CURSOR_MAX = 256  # characters of the cursor of a session list
PUSH_TOKEN_MAX = 4_096  # characters of a provider's token of a device
MENTIONS_MAX = 50  # users that one message names
SESSION_MENTIONS_MAX = 20  # unread mentions of a conversation that a session row names
PRESENCE_WATCH_MAX = 100  # users of one WATCH_PRESENCE
PRESENCE_WATCHED_MAX = 200  # users that a connection watches
PRESENCE_MEMBERS_MAX = 1_000  # members of a conversation among whom they are looked for
TYPING_INTERVAL_MS = 2_000  # TYPING of a user in a conversation: one in this time, the rest is dropped
TYPING_MEMBERS_MAX = 100  # in a larger group nobody hears of typing
READERS_SHOWN_MAX = 100  # users that a READ_COUNT names
TEXT_ID_MAX = 128  # characters of an id
ROOM_NAME_MAX = 128
ROOM_REPLAY_MAX = 200  # messages of a room that a joiner is shown
ROOM_PARTS_MAX = 64  # rooms in one ROOM_BATCH
ROOMS_PER_CONNECTION_MAX = 16
ROOM_EVENT_TEXT_MAX = 2_048  # bytes of an announcement
READERS_COUNTED_MAX = 2_000  # members that it looks at; in a larger group the count is not exact
