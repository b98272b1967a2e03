"""Opening a session: where the mailbox stands, the verdict on the cursor, the range to sync.

Invariants: `sync_to_seq` is W[lane] as the store holds it, so everything at or below is readable by any
reader of that store; the position is read once per AUTH and the verdict depends on nothing else.

Spec: §7, §8, §11.
"""

import asyncio
from typing import Final, NamedTuple

from qim_streams.errors import SyncVerdict
from qim_streams.mailbox.ports import MailboxStore
from qim_streams.sync.cursor import CursorSigner
from qim_streams.sync.ports import EpochBoundaries, MailboxAddress, ShardEpochs
from qim_streams.sync.session import SyncSession
from qim_streams.sync.verdict import Ok, Rebased, ShardPosition, judge, refusal

PENDING_ROWS_MAX: Final = 50  # the hints of AUTH_OK count no further


class Opening(NamedTuple):
    """What AUTH_OK says about the mailbox, and the session that goes with it."""

    session: SyncSession
    here: ShardPosition
    after_seq: int
    sync_to_seq: int
    pending_entries: int
    pending_bytes: int


class SameLogBoundaries:
    """`EpochBoundaries` of the present form: the mailbox store is outside of the owner.

    A takeover changes neither the dispatch log nor the mailboxes, and a mailbox_seq is an offset of
    that log: every position means the same afterwards. A shard whose log was created anew needs an
    implementation that knows where the old one ended.
    """

    async def boundary(self, shard: int, from_epoch: int, to_epoch: int) -> int | None:
        """No bound: all positions are kept. See `EpochBoundaries.boundary`."""
        return 2**53 - 1


class SyncService:
    """Opens sessions and signs cursors."""

    def __init__(
        self,
        mailboxes: MailboxStore,
        epochs: ShardEpochs,
        boundaries: EpochBoundaries,
        signer: CursorSigner,
    ) -> None:
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
        return Opening(session, here, after, sync_to, len(rows), sum(len(row.value) for row in rows))

    def cursor(self, address: MailboxAddress, here: ShardPosition, last_applied: int) -> str:
        """A cursor of this session's epoch."""
        return self._signer.issue(address, here.shard_epoch, last_applied)

    async def _position(self, address: MailboxAddress) -> ShardPosition:
        # The epoch first: positions read afterwards belong to it or to a newer one, whose takeover
        # then rebases the cursors of this session. The other way round a cursor could be too new.
        epoch = await self._epochs.current(address.shard)
        state, trim = await asyncio.gather(
            self._mailboxes.watermark(address.shard),
            self._mailboxes.trim_watermark(address.shard, address.tenant_id, address.ordinal),
        )
        return ShardPosition(address.shard, epoch, state.lanes[address.lane], trim)

    async def _judge(self, address: MailboxAddress, token: str, here: ShardPosition) -> int:
        cursor = self._signer.open(token, address)
        boundary = None
        if cursor is not None and cursor.shard == here.shard and cursor.shard_epoch < here.shard_epoch:
            boundary = await self._boundaries.boundary(here.shard, cursor.shard_epoch, here.shard_epoch)
        verdict = judge(cursor, here, boundary)
        if isinstance(verdict, Ok):
            return verdict.after_seq
        if isinstance(verdict, Rebased):
            raise SyncVerdict(
                "CURSOR_REBASED",
                f"the shard is at epoch {here.shard_epoch}",
                new_cursor=self.cursor(address, here, verdict.last_applied),
                replay_from_seq=verdict.replay_from_seq,
            )
        raise refusal(verdict)
