"""MembershipReplay: puts back into the hot tier the changes that it may have lost and the change log has.

A change is answered only after its rows are in the change log, so a store that forgot its last second can be
told again what it was. Versions are made again one after the other, each with exactly the members that it
had: a version number never comes to mean something else, which the later stages rely on (they cache by it).

A change that was never answered may be in neither, while messages were already sent under its version:
store and writer died together. That number is used up all the same. It is made again with the members of
the version before, and goes into the change log like a change that was not settled.

Invariants: a version that the store has is left alone; the store's knowledge of the change log is complete
up to its end when `run` returns; no version that a message was sent under is ever made by a later change.

Ordinals lie in the rows, too. They go back into the directory before anything refers to them, so none of them
is given to somebody else.

What it does not do: restore messages (`commit.repair` does), or bring back what compaction has removed:
versions that are missing between two rows are marked as unknown, and stages that meet one in a log ask the
members' intervals instead (`membership.past`).

Spec: §14.4.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from qim_streams.commit.rules import ConversationKey
from qim_streams.errors import InvariantViolation, RecordError
from qim_streams.joined import all_of
from qim_streams.membership.bitmaps import Seat, by_shard, changed
from qim_streams.membership.ports import (
    ChangeLogReader,
    Conversation,
    Member,
    MembershipReader,
    MembershipStore,
    OrdinalDirectory,
    RestoredVersion,
)
from qim_streams.membership.rows import decode_log_row
from qim_streams.membership.rules import is_checkpoint

log = logging.getLogger(__name__)

CONVERSATIONS_AT_ONCE = 32
PROGRESS_EVERY = 3_200
Change = tuple[Conversation, list[Member]]  # the head after it, whom it touched


@dataclass(slots=True)
class _Lost:
    """Rows of one conversation, as the log has them."""

    heads: dict[int, Conversation] = field(default_factory=dict)
    members: list[tuple[int, Member]] = field(default_factory=list)

    def changes(self) -> list[Change]:
        """The changes in order. A member whose head row was compacted away comes with the next one."""
        versions = sorted(self.heads)
        touched: dict[int, dict[str, Member]] = {version: {} for version in versions}
        for version, member in self.members:
            at = bisect_left(versions, version)
            if at < len(versions):
                touched[versions[at]][member.user_id] = member
        return [(self.heads[version], list(touched[version].values())) for version in versions]


class MembershipReplay:
    """Replays partitions at their grant."""

    def __init__(
        self,
        store: MembershipStore,
        reader: MembershipReader,
        change_log: ChangeLogReader,
        directory: OrdinalDirectory,
        mailbox_shards: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._store, self._reader, self._log, self._directory = store, reader, change_log, directory
        self._mailbox_shards, self._now_ms = mailbox_shards, now_ms

    async def run(self, partition: int, epoch: int, used: Mapping[ConversationKey, int]) -> int:
        """Restore what is missing; returns how many versions were. `used`: versions that messages have.

        FencedError, StoreUnavailable: call again. InvariantViolation: the log lacks what may be missing.
        """
        known = await self._store.logged(partition, epoch)
        missing, last = 0, known
        lost: dict[tuple[str, str], _Lost] = {}
        async for batch in self._log.read(partition, known + 1):
            _collect(batch, lost)
            last = batch[-1][0]
        await self._restore_ordinals(lost)
        work = list(lost.items())
        for start in range(0, len(work), CONVERSATIONS_AT_ONCE):
            part = work[start : start + CONVERSATIONS_AT_ONCE]
            missing += await self._some(partition, epoch, part)
            if start % PROGRESS_EVERY == 0 and len(work) > PROGRESS_EVERY:
                log.info("ob:%d: members of %d of %d conversations compared", partition, start, len(work))
        if last > known:
            await self._store.restore(partition, epoch, (), last)
        for key, version in used.items():
            missing += await self._use_up(partition, epoch, key, version)
        if missing:
            log.error("ob:%d: the hot tier had lost %d membership versions; restored", partition, missing)
        return missing

    async def _restore_ordinals(self, lost: Mapping[ConversationKey, _Lost]) -> None:
        by_tenant: dict[str, dict[str, int]] = {}
        for (tenant, _), rows in lost.items():
            seats = by_tenant.setdefault(tenant, {})
            seats.update((member.user_id, member.ordinal) for _, member in rows.members)
        for tenant, seats in by_tenant.items():
            found = await self._directory.restore(tenant, list(seats.items()))
            if found:
                log.error(
                    "the hot tier had lost %d ordinals of %s; restored from the change log", found, tenant
                )

    async def _some(self, partition: int, epoch: int, work: Sequence[tuple[ConversationKey, _Lost]]) -> int:
        counts: list[int] = []

        async def one(key: ConversationKey, rows: _Lost) -> None:
            counts.append(await self._one(partition, epoch, key, rows))

        await all_of([one(key, rows) for key, rows in work])
        return sum(counts)

    async def _one(self, partition: int, epoch: int, key: ConversationKey, rows: _Lost) -> int:
        """Restore the versions of one conversation, in order; how many were missing."""
        missing = 0
        for head, members in rows.changes():
            current = await self._store.conversation(*key)
            if current is None or current.version < head.version:
                made = await self._version(current, head, members)
                missing += await self._store.restore(partition, epoch, [made], -1)
        return missing

    async def _use_up(self, partition: int, epoch: int, key: ConversationKey, version: int) -> int:
        current = await self._store.conversation(*key)
        if current is None or current.version >= version:
            return 0
        log.error(
            "ob:%d: %s: messages were sent under version %d, which the change log lacks; %d stands in for it",
            partition, key[1], version, current.version,
        )  # fmt: skip
        made = replace(await self._version(current, replace(current, version=version), ()), logged=False)
        return await self._store.restore(partition, epoch, [made], -1)

    async def _version(
        self, current: Conversation | None, head: Conversation, members: Sequence[Member]
    ) -> RestoredVersion:
        """The version of `head`, on top of what the store has."""
        before = current.version if current else 0
        key = (head.tenant_id, head.conversation_id)
        found = await self._store.members(*key, [member.user_id for member in members])
        were = {member.user_id for member in found if member.active}
        joins = [Seat(m.user_id, m.ordinal) for m in members if m.active and m.user_id not in were]
        leaves = [Seat(m.user_id, m.ordinal) for m in members if not m.active and m.user_id in were]
        coming = by_shard(head.tenant_id, joins, self._mailbox_shards)
        going = by_shard(head.tenant_id, leaves, self._mailbox_shards)
        whole = await self._map(key, before)
        bitmaps = changed(await self._bitmaps(key, whole, {*coming, *going}), coming, going)
        maps = dict(_lost_between(before, head.version, whole))
        own = {shard: head.version if blob else 0 for shard, blob in bitmaps.items()}
        maps[head.version] = whole | own if is_checkpoint(head.version) else own
        return RestoredVersion(head, self._now_ms(), members, maps, bitmaps)

    async def _map(self, key: tuple[str, str], version: int) -> dict[int, int]:
        if not version:
            return {}
        (whole,) = await self._reader.versions([(*key, version)])
        if whole is None:
            raise InvariantViolation(f"{key[1]}: current version {version} has no map")
        return whole

    async def _bitmaps(
        self, key: tuple[str, str], whole: dict[int, int], shards: set[int]
    ) -> dict[int, bytes]:
        wanted = [(*key, shard, whole[shard]) for shard in sorted(shards) if shard in whole]
        blobs = await self._reader.bitmaps(wanted)
        found: dict[int, bytes] = {}
        for (_, _, shard, version), blob in zip(wanted, blobs, strict=True):
            if blob is None:
                raise InvariantViolation(f"{key[1]}: bitmap {shard}:{version} is missing")
            found[shard] = blob
        return found


def _lost_between(before: int, version: int, whole: dict[int, int]) -> Iterator[tuple[int, dict[int, int]]]:
    """Rows for versions that the log no longer has: nothing changed in them."""
    for missing in range(before + 1, version):
        yield missing, whole if is_checkpoint(missing) else {}


def _collect(batch: Sequence[tuple[int, bytes, bytes]], lost: dict[tuple[str, str], _Lost]) -> None:
    """Sort rows by conversation."""
    for offset, key, value in batch:
        try:
            version, row = decode_log_row(key, value)
            tenant, chat, _ = key.decode().split("\0")
        except (RecordError, UnicodeDecodeError) as error:
            log.error("change log row %d cannot be read: %s", offset, error)
            continue
        rows = lost.setdefault((tenant, chat), _Lost())
        if isinstance(row, Conversation):
            rows.heads[version] = row
        else:
            rows.members.append((version, row))
