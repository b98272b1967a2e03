"""The session list on stores in memory: `SessionWorld` puts it together over a `HistoryWorld`.

The projection's place is taken by `saw`: what qsession would have written of a message.
"""

import asyncio
from collections.abc import Callable, Sequence

from qim_streams.gateway.list_changes import ListChanges
from qim_streams.gateway.session_lists import SessionListFrames
from qim_streams.gateway.session_totals import SessionTotalsTeller
from qim_streams.gateway.signals import OWN, Listeners, Receive, channel_of, message_of
from qim_streams.ids import direct_conversation_id
from qim_streams.mailbox.memory_store import MemoryMailboxStore
from qim_streams.membership.ports import Member, OrdinalDirectory
from qim_streams.placement import lane, mailbox_shard, ordinal_of
from qim_streams.records import KIND_RECALL, STATE_RECALLED, decode_message
from qim_streams.sessions.actions import Actor, Changed, UserActions
from qim_streams.sessions.badges import Badges
from qim_streams.sessions.entering import Entering
from qim_streams.sessions.group_changes import GroupChanges
from qim_streams.sessions.keeping import StateKeeper
from qim_streams.sessions.memory_projection import MemoryProjection
from qim_streams.sessions.ports import SessionUser
from qim_streams.sessions.positions import Positions
from qim_streams.sessions.projection_records import Checkpoint, SessionRow, slot_of
from qim_streams.sessions.reading import ListPage, ListQuery, SessionLists
from qim_streams.sessions.receipts import Receipts
from qim_streams.sessions.restoring import RestoredStates, UserDeletions
from qim_streams.sessions.rows import ListRow, Rows
from qim_streams.sessions.session_rebuild import SessionRebuild
from qim_streams.sessions.tails import Tails
from qim_streams.testing.memory_sessions import MemoryConversationHeads, MemoryUserStates
from qim_streams.testing.memory_tier import MemoryHotTier
from tests.support.history_world import TENANT, HistoryWorld

SHARDS = 4


class MemorySignals:
    """A `SignalBus` of gateways in one process. `told` keeps everything."""

    def __init__(self) -> None:
        self._listeners = Listeners()
        self.told: list[tuple[SessionUser, str, bytes]] = []

    def tell(self, user: SessionUser, but_device: str, data: bytes, what: str = OWN) -> None:
        """See the port."""
        self.told.append((user, but_device, data))
        loop = asyncio.get_running_loop()
        loop.call_soon(self._listeners.deliver, channel_of(user, what), message_of(but_device, data))

    def tell_all(self, user: SessionUser, data: bytes) -> None:
        """See the port."""
        self.tell(user, "", data)

    def listen(self, user: SessionUser, receive: Receive, what: str = OWN) -> None:
        """See the port."""
        self._listeners.add(channel_of(user, what), receive)

    def unlisten(self, user: SessionUser, receive: Receive, what: str = OWN) -> None:
        """See the port."""
        self._listeners.remove(channel_of(user, what), receive)


class NoActivity:
    """`KnownActivity` of nothing: rows are made by `SessionWorld.saw`."""

    async def registered(self, tenant_id: str, ordinal: int) -> list[str]:
        """See the port."""
        return []

    async def activities(
        self, tenant_id: str, user_id: str, conversation_ids: Sequence[str]
    ) -> list[int | None]:
        """See the port."""
        return [None] * len(conversation_ids)


class MemoryMembers:
    """`MemberPages` of a tier."""

    def __init__(self, tier: MemoryHotTier) -> None:
        self._tier = tier

    async def page(
        self, tenant_id: str, conversation_id: str, after_user_id: str, limit: int
    ) -> list[Member]:
        """See the port."""
        members = self._tier.partition(0).members.get((tenant_id, conversation_id), {})
        return [one for name, one in sorted(members.items()) if one.active and name > after_user_id][:limit]


class Directory:
    """`OrdinalDirectory` of the world's users."""

    def __init__(self, world: "SessionWorld") -> None:
        self._world = world

    async def assign(self, tenant_id: str, user_ids: Sequence[str]) -> list[int]:
        """See the port."""
        return [self._world.user(name).ordinal for name in user_ids]

    async def find(self, tenant_id: str, user_ids: Sequence[str]) -> list[int | None]:
        """See the port."""
        return [self._world.user(name).ordinal for name in user_ids]

    async def names(self, tenant_id: str, ordinals: Sequence[int]) -> list[str | None]:
        """See the port."""
        return [self._world.name_of(number) for number in ordinals]


class SessionWorld:
    """Lists and actions over `past`; every shard is projected to the end unless `stands` says otherwise."""

    def __init__(self, past: HistoryWorld | None = None, mailboxes: MemoryMailboxStore | None = None) -> None:
        self.past = past or HistoryWorld()
        self.mailboxes = mailboxes or MemoryMailboxStore()
        self.now_ms = 1_000
        self.projection = MemoryProjection()
        self.projection.stands = {shard: Checkpoint(0, 2**40, -1) for shard in range(SHARDS)}
        self.states = MemoryUserStates(self.projection, lambda: self.now_ms)
        self.signals = MemorySignals()
        self.told: list[tuple[Actor, Changed]] = []
        self._ordinals: dict[str, int] = {}
        restored = RestoredStates(self.states, self.past.archive)
        self.deletions = UserDeletions(restored)
        rebuild = SessionRebuild(
            store=self.projection,
            rebuilds=self.projection,
            mailboxes=self.mailboxes,
            known=NoActivity(),
            shard_of=lambda tenant, user, _: mailbox_shard(tenant, user, SHARDS),
        )
        rows = Rows(
            MemoryConversationHeads(self.past.tier), Tails(self.past.store, self.past.archive), self.states
        )
        positions = Positions(self.mailboxes, self.projection, rebuild, restored)
        self.lists = SessionLists(self.states, self.past.archive, rows, positions)
        self.badges = Badges(self.states, self.past.archive, rows, positions)
        self.tell: Callable[[Actor, Changed], object] = lambda actor, changed: self.told.append(
            (actor, changed)
        )
        self.actions = UserActions(
            self.states, self.lists, lambda actor, changed: self.tell(actor, changed), lambda: self.now_ms
        )

    def frames(self, ordinals: OrdinalDirectory) -> SessionListFrames:
        """The gateway's side."""
        receipts = Receipts(
            MemoryMembers(self.past.tier), MemoryConversationHeads(self.past.tier), self.states, self.clock
        )
        totals = SessionTotalsTeller(self.badges, self.signals, self.clock)
        changes = GroupChanges(ordinals, MemoryMembers(self.past.tier), self.signals)
        made = SessionListFrames(
            self.lists,
            self.actions,
            receipts,
            self.signals,
            totals,
            ListChanges(self.lists, self.states, totals),
            ordinals,
            Entering(ordinals, self.projection, changes, self.clock),
        )
        self.tell = made.tell
        return made

    def keeper(self) -> StateKeeper:
        """Who carries states into the archive."""
        return StateKeeper(
            self.states,
            self.states,
            self.projection,
            self.past.archive,
            Directory(self),
            self.past.store,
            lambda: self.now_ms,
        )

    def clock(self) -> int:
        """The time, in milliseconds."""
        return self.now_ms

    # -- users

    def user(self, name: str, ordinal: int | None = None) -> SessionUser:
        """A user; his ordinal is made up unless it is given."""
        known = self._ordinals.setdefault(
            name, ordinal_of(len(self._ordinals), lane(TENANT, name)) if ordinal is None else ordinal
        )
        return SessionUser(TENANT, name, known)

    def name_of(self, ordinal: int) -> str | None:
        """Whose ordinal it is."""
        return next((name for name, number in self._ordinals.items() if number == ordinal), None)

    def actor(self, name: str, device: str = "phone") -> Actor:
        """A device of a user."""
        return Actor(self.user(name), mailbox_shard(TENANT, name, SHARDS), device)

    # -- conversations

    def direct(self, one: str, other: str) -> str:
        """The direct chat of two users; its id."""
        chat = direct_conversation_id(TENANT, one, other)
        self.past.group({one: ((0, None),), other: ((0, None),)}, chat=chat)
        state = self.past.tier.partition(0)
        state.heads[TENANT, chat].kind = "direct"
        state.members[TENANT, chat] = {
            name: Member(name, self.user(name).ordinal, "member", True, ((0, None),)) for name in (one, other)
        }
        return chat

    def say(
        self,
        chat: str,
        sender: str,
        count: int = 1,
        *,
        kind: int = 0,
        body: bytes = b"x",
        pending: bool = False,
    ) -> int:
        """Messages of a member get the next numbers; the last one."""
        seq = self.past.say(count, body, chat, pending=pending)
        rows = self.past.tier.partition(0).records[TENANT, chat]
        for at in range(seq - count + 1, seq + 1):
            rows[at] = decode_message(rows[at])._replace(sender_id=sender, kind=kind).encode()
        return seq

    def recall(self, chat: str, seq: int, by: str) -> int:
        """A message is recalled: an operation with a number of its own, and the target changes."""
        rows = self.past.tier.partition(0).records[TENANT, chat]
        record = rows.get(seq) or self.past.archive.messages[TENANT, chat, seq]
        rows[seq] = decode_message(record)._replace(state=STATE_RECALLED, body=b"").encode()
        return self.say(chat, by, kind=KIND_RECALL, body=b"")

    async def saw(self, name: str, chat: str, activity: int, *, wide: bool = False) -> None:
        """What qsession writes of a message for a user."""
        user = self.user(name)
        row = SessionRow(user.ordinal, chat, activity, 1, wide)
        await self.projection.write({slot_of(TENANT, user.ordinal): [row]})

    # -- reading

    async def row(self, name: str, chat: str) -> ListRow:
        """A conversation in a user's list."""
        (found,) = [row for row in (await self.page(name)).rows if row.view.conversation_id == chat]
        return found

    async def unread(self, name: str, chat: str) -> tuple[int, bool]:
        """(how many, exact)."""
        row = await self.row(name, chat)
        return row.unread.messages, row.unread.exact

    async def page(self, name: str, cursor: str | None = None, limit: int = 100, **query: object) -> ListPage:
        """A page of a user's list."""
        shard = mailbox_shard(TENANT, name, SHARDS)
        return await self.lists.page(self.user(name), shard, ListQuery(cursor, limit, **query))  # type: ignore[arg-type]
