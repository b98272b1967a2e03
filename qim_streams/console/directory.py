"""Who and what there is: tenants, users, their devices and lists, conversations, and their messages.

Read-only, page by page, bounded. Bodies of messages are not shown, nor previews of them: an operator finds a
message by its numbers, and where it got stuck by its trace.

Spec: §2, §8.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from qim_streams.archive.tiers import Records
from qim_streams.console.refusals import ConsoleRefusal
from qim_streams.errors import AdmissionRefused, RecordError
from qim_streams.membership.ports import Conversation
from qim_streams.placement import lane_of_ordinal
from qim_streams.presence.book import PresenceBook
from qim_streams.records import decode_message
from qim_streams.sessions.ports import SessionUser
from qim_streams.sessions.reading import EVERY, ListPage, ListQuery
from qim_streams.sessions.rules import is_hidden
from qim_streams.sharding.ports import MailboxReader
from qim_streams.sharding.rules import Placement

KINDS: Final = ("message", "edit", "recall")
STATES: Final = ("normal", "edited", "recalled")


@dataclass(frozen=True, slots=True)
class UserRow:
    """A user: his ordinal, the lane that follows from it, and his MailboxShard."""

    user_id: str
    ordinal: int
    lane: int
    shard: int


@dataclass(frozen=True, slots=True)
class UserPage:
    """Users in no particular order. `next_cursor` null: there are no more."""

    users: list[UserRow]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device with a session. `ended_by`: the device whose login ended it."""

    device_id: str
    session_epoch: int
    last_seen_ms: int
    platform: str | None
    ended_by: str | None


@dataclass(frozen=True, slots=True)
class UserView(UserRow):
    """A user with his devices and the state of his mailbox. `watermark`: W of his lane."""

    online: bool
    last_seen_ms: int
    devices: list[DeviceRow]
    watermark: int
    trimmed_through: int
    shard_epoch: int


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A conversation in a user's list. `unread` is exact up to 200."""

    conversation_id: str
    kind: str
    name: str
    peer_user_id: str | None
    activity_ms: int
    unread: int
    unread_exact: bool
    read_seq: int
    latest_seq: int
    muted: bool
    pinned: bool
    hidden: bool


@dataclass(frozen=True, slots=True)
class SessionPage:
    """A page of a user's list, newest first. `whole` false: more may be missing than what follows."""

    sessions: list[SessionRow]
    next_cursor: str | None
    whole: bool


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """A conversation that was lately archived from."""

    conversation_id: str
    kind: str
    name: str
    last_seq: int
    members_active: int
    dismissed: bool
    created_at: int
    active_at_ms: int
    outbox_partition: int


@dataclass(frozen=True, slots=True)
class ConversationPage:
    """The newest first. `next_cursor` null: there are no more."""

    conversations: list[ConversationRow]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message without its body. `problem`: its record cannot be read."""

    conversation_seq: int
    message_id: str | None
    sender_id: str | None = None
    sender_device_id: str | None = None
    committed_at: int | None = None
    kind: str | None = None
    state: str | None = None
    body_bytes: int | None = None
    membership_version: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages by falling number; numbers that were given out and not used have no row."""

    messages: list[MessageRow]
    next_before_seq: int | None = field(default=None)


class Active(NamedTuple):
    """A conversation in the index of what was lately archived from."""

    conversation_id: str
    active_at_ms: int
    partition: int


class UserIndex(Protocol):
    """Tenants, users and devices, in the hot tier. StoreUnavailable."""

    async def tenants(self) -> list[str]:
        """Tenants that have users with conversations, ascending, at most a thousand."""

    async def users(
        self, tenant_id: str, cursor: str | None, limit: int, contains: str
    ) -> tuple[list[tuple[str, int]], str | None]:
        """About `limit` users with their ordinals, and where to go on. ProtocolError: a wrong cursor."""

    async def ordinal(self, tenant_id: str, user_id: str) -> int | None:
        """The ordinal of a user; None when there is none."""

    async def devices(self, tenant_id: str, user_id: str) -> list[DeviceRow]:
        """Devices with a session."""


class ConversationIndex(Protocol):
    """Which conversations there are. StoreUnavailable."""

    async def active(
        self, tenant_id: str, cursor: str | None, limit: int, contains: str
    ) -> tuple[list[Active], str | None]:
        """The newest first. ProtocolError: a wrong cursor."""

    async def heads(self, tenant_id: str, conversation_ids: Sequence[str]) -> list[Conversation | None]:
        """Their heads."""


class Lists(Protocol):
    """Session lists."""

    async def page(self, user: SessionUser, shard: int, query: ListQuery) -> ListPage:
        """A page. AdmissionRefused, StoreError."""


class Directory:
    """Looks things up. `placement` reads which shard a user is in."""

    def __init__(
        self,
        users: UserIndex,
        conversations: ConversationIndex,
        records: Records,
        presence: PresenceBook,
        lists: Lists,
        mailboxes: MailboxReader,
        placement: Callable[[], Awaitable[Placement]],
        now_ms: Callable[[], int],
    ) -> None:
        self._users, self._conversations, self._records = users, conversations, records
        self._presence, self._lists, self._mailboxes = presence, lists, mailboxes
        self._placement, self._now_ms = placement, now_ms

    async def tenants(self) -> list[str]:
        """See `UserIndex.tenants`."""
        return await self._users.tenants()

    # -- users

    async def users(self, tenant_id: str, cursor: str | None, limit: int, contains: str) -> UserPage:
        """A page of users whose ids have `contains` in them."""
        found, following = await self._users.users(tenant_id, cursor, limit, contains)
        placement = await self._placement()
        return UserPage([_row(placement, tenant_id, *one) for one in sorted(found)], following)

    async def user(self, tenant_id: str, user_id: str) -> UserView:
        """A user. ConsoleRefusal NO_USER when nobody has that id."""
        user = await self._known(tenant_id, user_id)
        row = _row(await self._placement(), tenant_id, user_id, user.ordinal)
        (seen,) = await self._presence.seen([user], self._now_ms())
        state = await self._mailboxes.watermark(row.shard)
        return UserView(
            row.user_id,
            row.ordinal,
            row.lane,
            row.shard,
            seen.online,
            seen.last_seen_ms,
            await self._users.devices(tenant_id, user_id),
            state.lanes[row.lane],
            await self._mailboxes.trim_watermark(row.shard, tenant_id, user.ordinal),
            state.epoch,
        )

    async def sessions(self, tenant_id: str, user_id: str, cursor: str | None, limit: int) -> SessionPage:
        """A page of the user's session list, hidden conversations included."""
        user = await self._known(tenant_id, user_id)
        shard = (await self._placement()).home(tenant_id, user_id, user.ordinal)
        page = await self._lists.page(user, shard, ListQuery(cursor, limit, EVERY))
        return SessionPage(
            [
                SessionRow(
                    row.view.conversation_id,
                    row.view.kind,
                    row.view.name,
                    row.view.peer_id,
                    row.activity,
                    row.unread.messages,
                    row.unread.exact,
                    row.view.state.read_seq,
                    row.view.end,
                    row.view.state.muted,
                    bool(row.view.state.pinned_at),
                    is_hidden(row.view.state, row.view.end),
                )
                for row in page.rows
            ],
            page.next_cursor,
            page.position.complete,
        )

    async def _known(self, tenant_id: str, user_id: str) -> SessionUser:
        ordinal = await self._users.ordinal(tenant_id, user_id)
        if ordinal is None:
            raise ConsoleRefusal(
                "NO_USER",
                "nobody of this tenant has that id: users exist from their first message or group on",
            )
        return SessionUser(tenant_id, user_id, ordinal)

    # -- conversations

    async def conversations(
        self, tenant_id: str, cursor: str | None, limit: int, contains: str, kind: str | None
    ) -> ConversationPage:
        """A page of those that were lately archived from; one that is filtered by kind may be short."""
        found, following = await self._conversations.active(tenant_id, cursor, limit, contains)
        heads = await self._conversations.heads(tenant_id, [one.conversation_id for one in found])
        rows = [
            ConversationRow(
                one.conversation_id,
                head.kind,
                head.name,
                head.seq,
                head.members_active,
                head.dismissed,
                head.created_at,
                one.active_at_ms,
                one.partition,
            )
            for one, head in zip(found, heads, strict=True)
            if head is not None and kind in (None, head.kind)
        ]
        return ConversationPage(rows, following)

    async def messages(
        self, tenant_id: str, conversation_id: str, before_seq: int | None, limit: int
    ) -> MessagePage:
        """Messages below `before_seq` (None: from the newest on), without bodies. NO_CONVERSATION."""
        (head,) = await self._conversations.heads(tenant_id, [conversation_id])
        if head is None:
            raise AdmissionRefused("NO_CONVERSATION", "there is no such conversation")
        top = head.seq if before_seq is None else min(head.seq, before_seq - 1)
        seqs = list(range(top, max(0, top - limit), -1))
        records = await self._records.records([(tenant_id, conversation_id, seq) for seq in seqs])
        rows = [_message(seq, data) for seq, data in zip(seqs, records, strict=True) if data is not None]
        return MessagePage(rows, seqs[-1] if seqs and seqs[-1] > 1 else None)


def _row(placement: Placement, tenant_id: str, user_id: str, ordinal: int) -> UserRow:
    shard = placement.home(tenant_id, user_id, ordinal)
    return UserRow(user_id, ordinal, lane_of_ordinal(ordinal), shard)


def _message(seq: int, data: bytes) -> MessageRow:
    try:
        record = decode_message(data)
    except RecordError as error:
        return MessageRow(seq, None, problem=str(error)[:200])
    return MessageRow(
        seq,
        record.message_id.hex(),
        record.sender_id,
        record.sender_device_id,
        record.committed_at,
        KINDS[record.kind] if record.kind < len(KINDS) else str(record.kind),
        STATES[record.state] if record.state < len(STATES) else str(record.state),
        len(record.body),
        record.membership_version,
    )
