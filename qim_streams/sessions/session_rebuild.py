"""SessionRebuild: a user's rows made again, when he is asked for and the projection does not vouch for them.

The projection vouches for a user whose shard has caught up with the log as it was when the projection epoch
began, if that epoch is the first one (everything was projected) or he was rebuilt in it, out of a mailbox
that had caught up with the same: after a loss mailboxes are written again, and what lies below the epoch is
in no list until it is in them. An empty list is never believed. Everybody else gets his rows from

* his mailbox up to W: every conversation with a message in it, by its newest one;
* UserConversationState, the durable set: conversations whose messages have left the mailbox, by their heads.
  One that he has left, and of which his mailbox has nothing any more, goes to the end of the list.

Rows only grow, so a rebuild may run beside the projection, twice, or end in its middle. While a shard has not
caught up (or nobody projects it) every reading rebuilds, from where the last one of this process ended:
the list is right, at a price. The rebuild after which the projection vouches reads everything.

Spec: §9.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from qim_streams.lru import LruMap
from qim_streams.mailbox.ports import StoredEntry
from qim_streams.placement import lane_of_ordinal
from qim_streams.records import FLAG_AFFECTS_ORDER, KIND_MESSAGE, decode_entry
from qim_streams.sessions import projection_metrics as metrics
from qim_streams.sessions.projection_ports import KnownActivity, ProjectionStore, Rebuilds
from qim_streams.sessions.projection_records import (
    FIRST_EPOCH,
    NOTHING,
    Checkpoint,
    SessionRow,
    activity_of,
    slot_of,
)
from qim_streams.sharding.ports import MailboxReader
from qim_streams.shared_work import shared

ENTRIES_PER_READ = 1_000
AT_ONCE_MAX = 8
USERS_KNOWN_MAX = 20_000
LEFT_LONG_AGO = 1  # an activity below all others

ShardOf = Callable[[str, str, int], int]
"""The MailboxShard of (tenant, user, ordinal)."""


class _ReadThrough(NamedTuple):
    """A mailbox was read up to `seq` for the rows of a projection epoch (None: nobody projects)."""

    epoch: int | None
    seq: int


class SessionRebuild:
    """Rebuilds users of any shard. Stateless but for how far it has read the mailboxes of some users."""

    def __init__(
        self,
        *,
        store: ProjectionStore,
        rebuilds: Rebuilds,
        mailboxes: MailboxReader,
        known: KnownActivity,
        shard_of: ShardOf,
    ) -> None:
        self._store, self._rebuilds = store, rebuilds
        self._mailboxes, self._known, self._shard_of = mailboxes, known, shard_of
        self._read: LruMap[tuple[str, int], _ReadThrough] = LruMap(USERS_KNOWN_MAX, USERS_KNOWN_MAX)
        self._running: dict[tuple[str, int], asyncio.Task[bool]] = {}
        self._room = asyncio.Semaphore(AT_ONCE_MAX)

    async def is_complete(self, tenant_id: str, user_id: str, ordinal: int) -> bool:
        """Whether the projection vouches for the user's rows as they stand: projection_complete."""
        (checkpoint,) = await self._store.checkpoints([self._shard_of(tenant_id, user_id, ordinal)])
        return await self._vouches(checkpoint, tenant_id, ordinal)

    async def ensure(self, tenant_id: str, user_id: str, ordinal: int) -> bool:
        """Make the user's rows hold everything that his mailbox shows now, unless they are vouched for.

        Returns whether the projection vouches for them from now on. StoreError: nothing is known; repeat.
        """
        shard, user = self._shard_of(tenant_id, user_id, ordinal), (tenant_id, ordinal)
        (checkpoint,) = await self._store.checkpoints([shard])
        if await self._vouches(checkpoint, tenant_id, ordinal):
            return True
        running = self._running.get(user)
        if running is None:
            work = self._rebuild(shard, checkpoint, tenant_id, user_id, ordinal)
            running = self._running[user] = shared(work, "session-rebuild")
            running.add_done_callback(lambda _: self._running.pop(user, None))
        return await asyncio.shield(running)

    async def _vouches(self, checkpoint: Checkpoint | None, tenant_id: str, ordinal: int) -> bool:
        if checkpoint is None or not checkpoint.caught_up:
            return False
        if await self._rebuilds.rebuilt_in(tenant_id, ordinal) == checkpoint.epoch:
            return True
        return checkpoint.epoch == FIRST_EPOCH and await self._rebuilds.has_rows(tenant_id, ordinal)

    async def _rebuild(
        self, shard: int, checkpoint: Checkpoint | None, tenant_id: str, user_id: str, ordinal: int
    ) -> bool:
        async with self._room:
            user = (tenant_id, ordinal)
            epoch = None if checkpoint is None else checkpoint.epoch
            covered = (await self._mailboxes.watermark(shard)).lanes[lane_of_ordinal(ordinal)]
            vouched = checkpoint is not None and checkpoint.caught_up and covered >= checkpoint.target
            start = NOTHING if vouched else await self._read_before(user, epoch, covered)
            rows = await self._of_mailbox(shard, tenant_id, ordinal, start, covered)
            rows += await self._of_states(tenant_id, user_id, ordinal, {row.conversation_id for row in rows})
            await self._store.write({slot_of(tenant_id, ordinal): rows} if rows else {})
            self._read.put(user, _ReadThrough(epoch, covered))
            metrics.REBUILDS.inc()
            if checkpoint is not None and vouched:
                await self._rebuilds.note_rebuilt(tenant_id, ordinal, checkpoint.epoch)
            return vouched

    async def _read_before(self, user: tuple[str, int], epoch: int | None, covered: int) -> int:
        """Up to where the mailbox is in the rows already, if neither of them was lost since.

        The first epoch begins again when everything was lost: its number and its rows prove nothing.
        """
        read = self._read.get(user)
        if epoch == FIRST_EPOCH or read is None or read.epoch != epoch or read.seq > covered:
            return NOTHING
        return read.seq if await self._rebuilds.has_rows(*user) else NOTHING

    async def _of_mailbox(
        self, shard: int, tenant_id: str, ordinal: int, at: int, covered: int
    ) -> list[SessionRow]:
        """Rows of what the mailbox holds above `at`."""
        rows: dict[str, SessionRow] = {}
        while at < covered:
            found = await self._mailboxes.read(shard, tenant_id, ordinal, at, covered, ENTRIES_PER_READ)
            _fold(rows, ordinal, found)
            if len(found) < ENTRIES_PER_READ:
                break
            # The last mailbox_seq may be cut between two of its events: it is read again.
            at = max(at + 1, found[-1].mailbox_seq - 1)
        return list(rows.values())

    async def _of_states(
        self, tenant_id: str, user_id: str, ordinal: int, found: set[str]
    ) -> list[SessionRow]:
        others = [one for one in await self._known.registered(tenant_id, ordinal) if one not in found]
        activities = await self._known.activities(tenant_id, user_id, others)
        return [
            SessionRow(ordinal, conversation, activity or LEFT_LONG_AGO, 0)
            for conversation, activity in zip(others, activities, strict=True)
        ]


def _fold(rows: dict[str, SessionRow], ordinal: int, found: Sequence[StoredEntry]) -> None:
    for stored in found:
        entry = decode_entry(stored.value)
        if entry.kind != KIND_MESSAGE or not entry.flags & FLAG_AFFECTS_ORDER:
            continue
        activity, seq = activity_of(entry.message_id), entry.conversation_seq
        row = rows.get(entry.conversation_id)
        if row is not None:
            activity, seq = max(activity, row.activity), min(seq, row.first_seq)
        rows[entry.conversation_id] = SessionRow(ordinal, entry.conversation_id, activity, seq)
