"""ChangeWriter: how a planned change of a conversation gets into the store and the change log.

The way of a change, for a caller that holds the conversation's turn:

1. compute the new bitmaps of the shards that change;
2. apply with the version as the condition; an unknown outcome is settled by repeating the same change;
3. append the rows to the change log and wait for the acknowledgement;
4. mark the conversation settled.

Between 2 and 4 the store remembers that the change log lacks something; `settle_all` of the partition's
next owner makes it good.

Invariants: rows of one conversation enter the change log in the order of its versions; a change that was
answered is in the store and in the change log.

What it does not do: decide who may change what (`rules`), order changes against sends (the store does, by
sequence number), or know about leases.

Spec: §4, §5.
"""

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from qim_streams import failpoints
from qim_streams.errors import FencedError, InvariantViolation, Outcome, StoreError, StoreUnavailable
from qim_streams.membership import rules
from qim_streams.membership.bitmaps import Seat, by_shard, changed
from qim_streams.membership.ports import (
    AppliedChange,
    Conversation,
    MembershipChange,
    MembershipLog,
    MembershipReader,
    MembershipRow,
    MembershipStore,
    Unsettled,
)
from qim_streams.membership.rows import head_row, member_row
from qim_streams.membership.rules import Plan

log = logging.getLogger(__name__)

BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.02, 1.0
ROWS_PER_APPEND_MAX = 2_000
UNSETTLED_PAGE = 100


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What a deployment sets. `version_retention_ms`: superseded versions are kept at least this long."""

    mailbox_shards: int
    members_max: int
    version_retention_ms: int


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Time, randomness and the way out, given from outside. `on_doubt` does not return."""

    now_ms: Callable[[], int]
    new_token: Callable[[], bytes]
    on_doubt: Callable[[str, BaseException | None], NoReturn]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class ChangeWriter:
    """Writes membership changes of the partitions that this process owns."""

    def __init__(
        self,
        store: MembershipStore,
        reader: MembershipReader,
        change_log: MembershipLog,
        limits: GroupLimits,
        around: Surroundings,
    ) -> None:
        self.limits, self.around = limits, around
        self._store, self._reader, self._log = store, reader, change_log
        self._turns: weakref.WeakValueDictionary[tuple[str, str], asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )

    def turn(self, tenant_id: str, conversation_id: str) -> asyncio.Lock:
        """The lock that orders the changes of one conversation."""
        key = (tenant_id, conversation_id)
        lock = self._turns.get(key)
        if lock is None:
            lock = self._turns[key] = asyncio.Lock()
        return lock

    async def write(self, partition: int, epoch: int, head: Conversation, plan: Plan) -> Conversation | None:
        """Steps 1 to 4; the head afterwards, None when the version moved. FencedError, StoreUnavailable
        (NOT_APPLIED): nothing was done."""
        try:
            change = await self._change_of(head, plan)
        except InvariantViolation:
            if await self._moved(head):
                return None  # another owner changed it while we were reading: no contradiction
            raise
        (made,) = await self.apply(partition, epoch, [change])
        if made is None:
            return None
        failpoints.hit("membership.changed_in_redis")
        after = made.head
        rows = [head_row(after), *(member_row(after, member) for member in made.touched)]
        settled = Unsettled(after.tenant_id, after.conversation_id, after.version)
        for start in range(0, len(rows), ROWS_PER_APPEND_MAX):
            part = rows[start : start + ROWS_PER_APPEND_MAX]
            last = start + ROWS_PER_APPEND_MAX >= len(rows)
            await self.finish(partition, epoch, part, self.log_now(part), [settled] if last else [])
        failpoints.hit("membership.change_logged")
        if after.version % rules.VERSION_BLOCK == 0:
            await self._collect(partition, epoch, after)
        return after

    async def prove(self, partition: int, epoch: int) -> None:
        """Return only if what was read before this call was read from a store that had lost nothing.

        FencedError: another owner. StoreUnavailable (NOT_APPLIED): ask again.
        """
        await self.apply(partition, epoch, ())

    async def settle_all(self, partition: int, epoch: int) -> int:
        """Append to the change log what an earlier owner may not have; returns how many conversations."""
        count = 0
        while waiting := await self._store.unsettled(partition, epoch, UNSETTLED_PAGE):
            for one in waiting:
                async with self.turn(one.tenant_id, one.conversation_id):
                    await self._settle_one(partition, epoch, one)
            count += len(waiting)
        return count

    async def _settle_one(self, partition: int, epoch: int, one: Unsettled) -> None:
        head = await self._store.conversation(one.tenant_id, one.conversation_id)
        if head is None:
            raise InvariantViolation(f"{one.conversation_id}: changed, and now there is no such conversation")
        everyone = await self._store.everyone(one.tenant_id, one.conversation_id)
        rows = [head_row(head), *(member_row(head, member) for member in everyone)]
        offset = -1
        for start in range(0, len(rows), ROWS_PER_APPEND_MAX):
            part = rows[start : start + ROWS_PER_APPEND_MAX]
            offset = await self._logged(part, self.log_now(part))
        now = Unsettled(one.tenant_id, one.conversation_id, head.version)
        await self._store.settle(partition, epoch, [now], offset)

    async def _change_of(self, head: Conversation, plan: Plan) -> MembershipChange:
        shards = self.limits.mailbox_shards
        joins = by_shard(head.tenant_id, [Seat(j.user_id, j.ordinal) for j in plan.joins], shards)
        leaves = by_shard(head.tenant_id, [Seat(m.user_id, m.ordinal) for m in plan.leaves], shards)
        current = await self._bitmaps(head, {*joins, *leaves}) if head.version else {}
        return MembershipChange(
            head.tenant_id,
            head.conversation_id,
            head.version,
            self.around.new_token(),
            self.around.now_ms(),
            joins=plan.joins,
            leaves=[member.user_id for member in plan.leaves],
            roles=plan.roles,
            bitmaps=changed(current, joins, leaves),
            head=plan.head,
        )

    async def _bitmaps(self, head: Conversation, shards: set[int]) -> dict[int, bytes]:
        if not shards:
            return {}
        key = (head.tenant_id, head.conversation_id)
        (version_map,) = await self._reader.versions([(*key, head.version)])
        if version_map is None:
            raise InvariantViolation(f"{head.conversation_id}: current version {head.version} has no map")
        wanted = [(*key, shard, version_map[shard]) for shard in sorted(shards) if shard in version_map]
        found = await self._reader.bitmaps(wanted)
        bitmaps: dict[int, bytes] = {}
        for (_, _, shard, version), blob in zip(wanted, found, strict=True):
            if blob is None:
                raise InvariantViolation(f"{head.conversation_id}: bitmap {shard}:{version} is missing")
            bitmaps[shard] = blob
        return bitmaps

    async def _moved(self, head: Conversation) -> bool:
        now = await self._store.conversation(head.tenant_id, head.conversation_id)
        return now is not None and now.version != head.version

    async def apply(
        self, partition: int, epoch: int, changes: Sequence[MembershipChange]
    ) -> list[AppliedChange | None]:
        """Apply, and go on until the outcome is known: rows of a later change must not come first."""
        unsure, delay_s = False, BACKOFF_FIRST_S
        while True:
            try:
                return await self._store.apply(partition, epoch, changes)
            except StoreUnavailable as error:
                unsure = unsure or error.outcome is not Outcome.NOT_APPLIED
                if not unsure:
                    raise
                log.warning("membership change repeated in %.2f s: %s", delay_s, error)
            except (StoreError, InvariantViolation) as error:
                self.around.on_doubt("a membership change broke in its middle", error)
            await self.around.sleep(delay_s)
            delay_s = min(BACKOFF_MAX_S, 2 * delay_s)

    def log_now(self, rows: Sequence[MembershipRow]) -> Awaitable[list[int]] | None:
        """Hand rows over in this very turn of the loop; None when there is no room yet."""
        try:
            return self._log.append(rows)
        except StoreError as error:
            log.warning("change log is full, %d rows wait: %s", len(rows), error)
            return None

    async def _logged(self, rows: Sequence[MembershipRow], appended: Awaitable[list[int]] | None) -> int:
        """The highest offset of the rows, once all are acknowledged."""
        delay_s = BACKOFF_FIRST_S
        while appended is None:
            await self.around.sleep(delay_s)
            delay_s = min(BACKOFF_MAX_S, 2 * delay_s)
            appended = self.log_now(rows)
        try:
            return max(await appended)
        except StoreError as error:
            self.around.on_doubt("a membership row was not acknowledged", error)

    async def finish(
        self,
        partition: int,
        epoch: int,
        rows: Sequence[MembershipRow],
        appended: Awaitable[list[int]] | None,
        done: Sequence[Unsettled],
    ) -> None:
        """Wait until the rows of `log_now` are acknowledged, then mark `done` settled."""
        offset = await self._logged(rows, appended)
        try:
            await self._store.settle(partition, epoch, done, offset)
        except (StoreUnavailable, FencedError) as error:
            # The rows are in the log; the next owner will append them once more, which changes nothing.
            log.warning("%d conversations stay unsettled: %s", len(done), error)
        except (StoreError, InvariantViolation) as error:
            self.around.on_doubt("settling a membership change broke", error)

    async def _collect(self, partition: int, epoch: int, head: Conversation) -> None:
        before_ms = self.around.now_ms() - self.limits.version_retention_ms
        try:
            count = await self._store.collect(
                partition, epoch, head.tenant_id, head.conversation_id, before_ms
            )
        except (StoreError, FencedError) as error:
            log.warning("old versions of %s stay until its next change: %s", head.conversation_id, error)
            return
        if count:
            log.info("forgot %d old versions of %s", count, head.conversation_id)
