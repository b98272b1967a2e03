"""Opening a session: where the mailbox stands, the verdict on the cursor, the range to sync.

Invariants: `sync_to_seq` is W[lane] as the store holds it, so everything at or below is readable by any
reader of that store; the position is read once per AUTH and the verdict depends on nothing else. While a
store that lost writes has not come back to where it was, nobody gets a position.

Spec: §7, §8, §11.
"""

import asyncio
from typing import Final, NamedTuple

from qim_streams.errors import Outcome, StoreUnavailable, SyncVerdict
from qim_streams.sharding import rules
from qim_streams.sharding.follower import Mappings
from qim_streams.sharding.ports import MailboxReader
from qim_streams.sync.cursor import Cursor, CursorSigner
from qim_streams.sync.ports import EpochBoundaries, MailboxAddress, ShardEpochs
from qim_streams.sync.session import SyncSession
from qim_streams.sync.verdict import Ok, Rebased, ShardPosition, judge, refusal

NO_EPOCH: Final = 0  # older than any that was granted
PENDING_ROWS_MAX: Final = 50  # the hints of AUTH_OK count so many; what lies behind them is estimated


class Opening(NamedTuple):
    """What AUTH_OK says about the mailbox, and the session that goes with it."""

    session: SyncSession
    here: ShardPosition
    after_seq: int
    sync_to_seq: int
    pending_entries: int  # exact below `PENDING_ROWS_MAX`, else an estimate; so are the bytes
    pending_bytes: int


class SyncService:
    """Opens sessions and signs cursors."""

    def __init__(
        self,
        mailboxes: MailboxReader,
        epochs: ShardEpochs,
        boundaries: EpochBoundaries,
        signer: CursorSigner,
        mappings: Mappings | None = None,
    ) -> None:
        """`mappings`: where shards may be split; `mailboxes` joins what splits have parted."""
        self._mappings = mappings
        self._mailboxes, self._epochs, self._boundaries = mailboxes, epochs, boundaries
        self._signer = signer

    async def open(self, address: MailboxAddress, token: str | None) -> Opening:
        """Judge the cursor (None or empty: from now) and open a session.

        SyncVerdict CURSOR_INVALID, CURSOR_EXPIRED or CURSOR_REBASED; StoreError when nothing is known.
        """
        here = await self._position(address)
        sync_to = here.lane_watermark
        if not token:
            session = SyncSession(None, sync_to, here.trim)
            return Opening(session, here, sync_to, sync_to, 0, 0)
        after = await self._judge(address, token, here)
        rows = await self._mailboxes.read(
            address.shard, address.tenant_id, address.ordinal, after, sync_to, PENDING_ROWS_MAX
        )
        session = SyncSession(after, sync_to, here.trim)
        more = 1.0
        if len(rows) == PENDING_ROWS_MAX:  # as many again in each stretch of the same length
            more = self._distance(address.shard, after, sync_to) / max(
                1, self._distance(address.shard, after, rows[-1].mailbox_seq)
            )
        nbytes = sum([len(row.value) for row in rows])
        return Opening(session, here, after, sync_to, round(more * len(rows)), round(more * nbytes))

    def cursor(self, address: MailboxAddress, shard_epoch: int, last_applied: int) -> str:
        """A cursor. `shard_epoch`: the newest that the session has seen; W reached `last_applied` in it."""
        return self._signer.issue(address, shard_epoch, last_applied)

    async def _position(self, address: MailboxAddress) -> ShardPosition:
        # The epoch first, and the epoch that moved W where that is newer: what was granted after both
        # reads has its boundary at this W or above it, so a cursor of this session is never cut short.
        epoch = await self._epochs.current(address.shard)
        state, trim = await asyncio.gather(
            self._mailboxes.watermark(address.shard),
            self._mailboxes.trim_watermark(address.shard, address.tenant_id, address.ordinal),
        )
        watermark = state.lanes[address.lane]
        if not max(epoch, state.epoch) or watermark < state.promised:
            # A store that lost writes, or never had an owner: an empty mailbox would be an empty success.
            why = f"s:{address.shard}: mailboxes stand at {watermark} and are being written again"
            raise StoreUnavailable(why, Outcome.NOT_APPLIED)
        return ShardPosition(address.shard, max(epoch, state.epoch), watermark, trim)

    async def _judge(self, address: MailboxAddress, token: str, here: ShardPosition) -> int:
        cursor, boundary = self._signer.open(token, address), None
        if cursor is not None and cursor.shard != here.shard:
            cursor, boundary = await self._carried(address, cursor, here)
        elif cursor is not None and cursor.shard_epoch < here.shard_epoch:
            boundary = await self._boundary(address, cursor.shard, cursor.shard_epoch, here.shard_epoch)
        if cursor is not None and here.lane_watermark < cursor.last_applied <= (boundary or -1):
            # It stands, but the replay after a loss has not come to it: not a position that never was.
            why = f"s:{here.shard}: mailboxes stand at {here.lane_watermark} and are being written again"
            raise StoreUnavailable(why, Outcome.NOT_APPLIED)
        verdict = judge(cursor, here, boundary)
        if isinstance(verdict, Ok):
            return verdict.after_seq
        if isinstance(verdict, Rebased):
            raise SyncVerdict(
                "CURSOR_REBASED",
                f"the shard is at epoch {here.shard_epoch}",
                new_cursor=self.cursor(address, here.shard_epoch, verdict.last_applied),
                replay_from_seq=verdict.replay_from_seq,
            )
        raise refusal(verdict)

    async def _carried(
        self, address: MailboxAddress, cursor: Cursor, here: ShardPosition
    ) -> tuple[Cursor, int | None]:
        """A cursor of a shard that the user came from, as one of his present shard, and its boundary.

        Numbers mean the same in both; what lies above the split's end was never his there. One of a shard
        that he did not come from is left as it is, and is INVALID.
        """
        parts = () if self._mappings is None else self._mappings.current.parts(here.shard)
        part = next((one for one in parts if one.shard == cursor.shard), None)
        if part is None:
            await self._look_for_news()
            return cursor, None
        epoch = await self._epochs.current(cursor.shard)
        if cursor.shard_epoch > epoch:
            return cursor, None  # never granted
        boundary: int | None = part.through
        if cursor.shard_epoch < epoch:
            boundary = await self._boundary(address, cursor.shard, cursor.shard_epoch, epoch)
        return Cursor(here.shard, NO_EPOCH, min(cursor.last_applied, part.through)), boundary

    async def _look_for_news(self) -> None:
        """StoreUnavailable if a split was settled that this process had not heard of: then look again."""
        if self._mappings is None:
            return
        before = self._mappings.current.version
        if (await self._mappings.load()).version != before:
            raise StoreUnavailable("shards were split just now: sign on again", Outcome.NOT_APPLIED)

    async def _boundary(
        self, address: MailboxAddress, shard: int, from_epoch: int, to_epoch: int
    ) -> int | None:
        """What changes of a shard's epoch mean to this user's positions."""
        found = await self._boundaries.boundary(shard, address.lane, from_epoch, to_epoch)
        if self._mappings is None:
            return found
        return rules.boundary_within(self._mappings.current.parts(address.shard), shard, found)

    def _distance(self, shard: int, after_seq: int, up_to_seq: int) -> int:
        """How many positions of the shard's users there are in between."""
        if self._mappings is None:
            return up_to_seq - after_seq
        return rules.distance(self._mappings.current.parts(shard), after_seq, up_to_seq)
