"""How far a user's list is whole; his rows are made whole first where the projection does not vouch for them.

The position is a mailbox_seq of the user's shard: every conversation with an entry up to it has a row. It is
read before the rows, so what it says holds of them; what comes after it comes to a device as an event
(scenario A16).

Spec: §7, §9.
"""

import asyncio
from collections.abc import Sequence

from qim_streams.lru import LruMap
from qim_streams.placement import lane_of_ordinal
from qim_streams.sessions.ports import Position, SessionUser
from qim_streams.sessions.projection_ports import ProjectionStore
from qim_streams.sessions.projection_records import Checkpoint
from qim_streams.sessions.restoring import RestoredStates
from qim_streams.sessions.session_rebuild import SessionRebuild
from qim_streams.sharding.ports import MailboxReader

NEVER = -1  # no epoch
VOUCHED_MAX = 50_000  # users of whom is remembered in which projection epoch their rows were found whole


class Positions:
    """`ProjectionPosition` on the projection's checkpoints and the mailbox store's W.

    That the projection vouches for a user is asked once per epoch: rows only grow, and a store that lost
    them lost the checkpoint, too. Who sees nothing at all asks anew (`doubt`).
    """

    def __init__(
        self,
        mailboxes: MailboxReader,
        projection: ProjectionStore,
        rebuild: SessionRebuild,
        states: RestoredStates,
    ) -> None:
        self._mailboxes, self._projection = mailboxes, projection
        self._rebuild, self._states = rebuild, states
        self._vouched: LruMap[tuple[str, int], int] = LruMap(VOUCHED_MAX, VOUCHED_MAX)

    async def position(self, user: SessionUser, shard: int) -> Position:
        """See the port. States are put back before rows are rebuilt out of them."""
        watermark, (checkpoint,) = await asyncio.gather(
            self.watermark(user, shard), self._projection.checkpoints([shard])
        )
        whole = await self._whole(user, checkpoint)
        if not whole or checkpoint is None:
            return Position(watermark, whole)  # rebuilt out of everything up to W or beyond
        return Position(min(watermark, checkpoint.offset), True)

    async def whole(self, users: Sequence[tuple[SessionUser, int]]) -> list[bool]:
        """See the port. One round trip for users that are known to be whole."""
        shards = sorted({shard for _, shard in users})
        found = dict(zip(shards, await self._projection.checkpoints(shards), strict=True))
        return list(await asyncio.gather(*(self._whole(user, found[shard]) for user, shard in users)))

    async def _whole(self, user: SessionUser, checkpoint: Checkpoint | None) -> bool:
        if checkpoint is None:
            return await self._make_whole(user)
        return await self._is_whole(user, checkpoint)

    async def _is_whole(self, user: SessionUser, checkpoint: Checkpoint) -> bool:
        """Whether the projection vouches for the user's rows, after they were made whole."""
        key = (user.tenant_id, user.ordinal)
        if checkpoint.caught_up and self._vouched.get(key) == checkpoint.epoch:
            return True
        vouched = await self._make_whole(user)
        if vouched:
            self._vouched.put(key, checkpoint.epoch)
        return vouched

    async def _make_whole(self, user: SessionUser) -> bool:
        await self._states.load(user, [])
        return await self._rebuild.ensure(user.tenant_id, user.user_id, user.ordinal)

    def doubt(self, user: SessionUser) -> None:
        """See the port."""
        self._vouched.put((user.tenant_id, user.ordinal), NEVER)

    async def watermark(self, user: SessionUser, shard: int) -> int:
        """See the port."""
        state = await self._mailboxes.watermark(shard)
        return state.lanes[lane_of_ordinal(user.ordinal)]
