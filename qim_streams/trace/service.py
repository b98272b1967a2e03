"""`trace_message`: find a message in each log and store, with a bound on every search.

The Outbox is searched by the time that the message id carries; the conversation narrows it to one
partition. The later logs are searched from the Outbox record's own time on. Ends of logs are taken when
a search starts, so a trace of a running system ends.

What it does not do: judge other messages, read bodies, write anything, or follow a message to the
client's screen (PUSHED means: handed to the gateway's log).

Spec: §1.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from qim_streams import hlc, ids, placement
from qim_streams.archive.ports import ArchiveReader
from qim_streams.errors import StoreError
from qim_streams.mailbox.ports import StoredEntry, WatermarkState
from qim_streams.membership.ports import MembershipReader
from qim_streams.records import GroupDispatch, MessageRecord, OutboxRecord
from qim_streams.trace import rules
from qim_streams.trace.model import ArchivePlace, DispatchPlace, MessageTrace, NotifiedPlace, PushPlace
from qim_streams.trace.ports import LogEntry, LogReader, Scan

OUTBOX, DISPATCH, PUSH = "qim.outbox.v1", "qim.dispatch.v1", "qim.push.v1"
TASKS = "qim.push-task.v1"
PROGRESS = "qim-mailbox-node-dispatch_progress-changelog"


class HotMessages(Protocol):
    """The hot tier's messages (a part of the commit stage's store)."""

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        """MessageRecord bytes by (tenant, conversation, seq), None where the hot tier has none."""


class Mailboxes(Protocol):
    """The readable side of the mailbox store."""

    async def watermarks(self, shards: Sequence[int]) -> list[WatermarkState]:
        """The persisted watermark of each shard."""

    async def read(
        self, shard: int, tenant_id: str, ordinal: int, after_seq: int, up_to_seq: int, limit: int
    ) -> list[StoredEntry]:
        """Entries with after_seq < mailbox_seq <= up_to_seq."""

    async def trim_watermark(self, shard: int, tenant_id: str, ordinal: int) -> int:
        """Everything at or below may be gone from the mailbox; -1 when nothing was trimmed."""


class Notified(Protocol):
    """What providers were told of."""

    async def sent(self, tasks: Sequence[tuple[int, bytes]]) -> list[bool]:
        """Whether each (partition, task id) was handed over, as far as that is remembered."""


@dataclass(frozen=True, slots=True)
class TraceDeps:
    """What a trace reads."""

    log: LogReader
    hot: HotMessages
    membership: MembershipReader
    mailboxes: Mailboxes
    archive: ArchiveReader
    outbox_partitions: int
    notified: Notified | None = None  # None: offline push is switched off


@dataclass(frozen=True, slots=True)
class TraceLimits:
    """Bounds of one trace. Times in milliseconds."""

    entries_max: int = 200_000  # per level
    clock_margin_ms: int = 5_000  # clocks of two machines may differ by this much
    push_window_ms: int = 60_000  # pushes later than this after the last dispatch are not looked for
    mailboxes_per_shard: int = 4
    shards_at_once: int = 8


@dataclass(frozen=True, slots=True)
class TraceHint:
    """What the caller knows. The conversation narrows the first search to one partition."""

    conversation_id: str | None = None


Progress = Callable[[str], None]


async def trace_message(
    deps: TraceDeps,
    tenant_id: str,
    message_id: bytes,
    hint: TraceHint | None = None,
    *,
    limits: TraceLimits | None = None,
    progress: Progress | None = None,
) -> MessageTrace:
    """The message's way through every level; `found` is False when the Outbox does not show it.

    Reads only. StoreUnavailable when log, Redis or archive cannot be reached; a level whose store fails
    otherwise is left out with a note.
    """
    return await _Search(deps, tenant_id, message_id, limits or TraceLimits(), progress).run(
        hint or TraceHint()
    )


@dataclass(slots=True)
class _Found:
    entry: LogEntry
    record: OutboxRecord
    message: MessageRecord


class _Search:
    """One trace in progress."""

    def __init__(
        self,
        deps: TraceDeps,
        tenant_id: str,
        message_id: bytes,
        limits: TraceLimits,
        progress: Progress | None,
    ) -> None:
        self.deps, self.tenant_id, self.message_id, self.limits = deps, tenant_id, message_id, limits
        self.trace = MessageTrace(tenant_id, message_id.hex())
        self._tell = progress or _silent

    async def run(self, hint: TraceHint) -> MessageTrace:
        """Search level after level."""
        trace = self.trace
        found = await self._find_outbox(hint)
        if found is not None:
            trace.message = rules.traced_message(found.message)
            address = (self.tenant_id, found.message.conversation_id, found.message.conversation_seq)
            (hot,) = await self.deps.hot.records([address])
            trace.outbox = rules.outbox_place(found.entry, found.record, hot=hot is not None)
            await self._find_dispatches(found)
            await self._find_pages()
            await self._find_pushes(found)
            await self._find_notified(found)
            await self._find_archived(found, address)
        trace.levels = rules.judge(trace)
        return trace

    # -- NOTIFIED

    async def _find_notified(self, found: _Found) -> None:
        """Tasks of the message, each device's once however often it was made, and which were sent."""
        notified = self.deps.notified
        if notified is None:
            return
        partitions = list(range(await self.deps.log.partitions(TASKS)))
        hits: dict[tuple[int, bytes], int] = {}

        def visit(entry: LogEntry) -> bool:
            task_id = rules.find_task(entry, self.tenant_id, self.message_id)
            if task_id is not None:
                hits.setdefault((entry.partition, task_id), entry.at_ms)
            return False

        self._tell(f"{TASKS}: {len(partitions)} partitions")
        since = found.entry.at_ms - self.limits.clock_margin_ms
        starts = await self.deps.log.offsets_at(TASKS, partitions, since)
        scan = await self.deps.log.scan(TASKS, starts, visit, self.limits.entries_max)
        if not scan.complete:
            self.trace.notes.append(f"{TASKS}: gave up after {scan.entries} records")
        if hits:
            sent = await notified.sent(list(hits))
            self.trace.notified = NotifiedPlace(len(hits), sum(sent), min(hits.values()))

    # -- COMMITTED

    async def _find_outbox(self, hint: TraceHint) -> _Found | None:
        near = rules.committed_near(self.message_id)
        if hint.conversation_id is not None:
            count = self.deps.outbox_partitions
            partitions = [placement.outbox_partition(self.tenant_id, hint.conversation_id, count)]
        else:
            partitions = list(range(await self.deps.log.partitions(OUTBOX)))
        hits: list[_Found] = []

        def visit(entry: LogEntry) -> bool:
            match = rules.find_outbox(entry, self.tenant_id, self.message_id)
            if match is not None:
                hits.append(_Found(entry, *match))
            return bool(hits)

        self._tell(f"{OUTBOX}: {len(partitions)} partitions around {near}")
        starts = await self.deps.log.offsets_at(OUTBOX, partitions, near - self.limits.clock_margin_ms)
        scan = await self.deps.log.scan(OUTBOX, starts, visit, self.limits.entries_max)
        if not hits:
            # A clock that ran ahead gives ids above the record's own time: look before, too.
            scan = await self._scan_before(starts, near, visit, scan)
        if not hits:
            self._note_missing(scan, len(partitions))
            return None
        return hits[0]

    async def _scan_before(
        self, ends: Mapping[int, int], near: int, visit: Callable[[LogEntry], bool], first: Scan
    ) -> Scan:
        earliest = near - hlc.DRIFT_MAX_MS
        starts = await self.deps.log.offsets_at(OUTBOX, list(ends), earliest)

        def until(entry: LogEntry) -> bool:
            return visit(entry) or entry.offset + 1 >= ends[entry.partition]

        starts = {partition: at for partition, at in starts.items() if at < ends[partition]}
        scan = await self.deps.log.scan(OUTBOX, starts, until, self.limits.entries_max)
        return Scan(first.entries + scan.entries, first.complete and scan.complete)

    def _note_missing(self, scan: Scan, partitions: int) -> None:
        if scan.complete:
            self.trace.notes.append(
                f"not in {OUTBOX}: searched {scan.entries} records of {partitions} partitions to the end; "
                "the id is of another tenant or conversation, was never committed, or is past retention"
            )
        else:
            self.trace.notes.append(
                f"not found in the first {scan.entries} records of {OUTBOX} around its time; "
                "name the conversation to search one partition only"
            )

    # -- DISPATCHED, MAILBOXED

    async def _find_dispatches(self, found: _Found) -> None:
        versions = await self._shards_of(found)
        total = await self.deps.log.partitions(DISPATCH)
        wanted = sorted(versions) if versions is not None else list(range(total))
        self.trace.shards_expected = tuple(wanted) if versions is not None else None
        if not wanted:
            return
        ids_of = {shard: ids.dispatch_id(self.message_id, shard) for shard in wanted}
        hits: list[tuple[LogEntry, GroupDispatch]] = []

        def visit(entry: LogEntry) -> bool:
            match = rules.find_dispatch(entry, self.tenant_id, ids_of[entry.partition])
            if match is not None:
                hits.append((entry, match))
            return match is not None

        self._tell(f"{DISPATCH}: {len(wanted)} shards")
        since = found.entry.at_ms - self.limits.clock_margin_ms
        starts = await self.deps.log.offsets_at(DISPATCH, wanted, since)
        scan = await self.deps.log.scan(DISPATCH, starts, visit, self.limits.entries_max)
        if not scan.complete:
            self.trace.notes.append(f"{DISPATCH}: gave up after {scan.entries} records")
        hits.sort(key=lambda hit: hit[0].partition)
        bitmaps = await self._bitmaps([dispatch for _, dispatch in hits])
        states = await self.deps.mailboxes.watermarks([entry.partition for entry, _ in hits])
        found_in = list(zip(hits, bitmaps, states, strict=True))
        step = self.limits.shards_at_once
        for start in range(0, len(found_in), step):
            self.trace.dispatches += await asyncio.gather(
                *(
                    self._materialised(*hit, bitmap, state)
                    for hit, bitmap, state in found_in[start : start + step]
                )
            )

    async def _shards_of(self, found: _Found) -> dict[int, int] | None:
        if found.record.members is not None:
            return {shard: version for shard, (version, _) in found.record.members.items()}
        message = found.message
        wanted = (message.tenant_id, message.conversation_id, message.membership_version)
        (versions,) = await self.deps.membership.versions([wanted])
        if versions is None:
            self.trace.notes.append(
                f"membership version {message.membership_version} is not stored: every shard was searched"
            )
        return versions

    async def _bitmaps(self, dispatches: list[GroupDispatch]) -> list[bytes | None]:
        wanted = [
            (one.tenant_id, one.conversation_id, one.target_mailbox_shard, one.bitmap_version)
            for one in dispatches
        ]
        return await self.deps.membership.bitmaps(wanted) if wanted else []

    async def _materialised(
        self, entry: LogEntry, dispatch: GroupDispatch, bitmap: bytes | None, state: WatermarkState
    ) -> DispatchPlace:
        ordinals = rules.recipients_of(dispatch.members, bitmap)
        if ordinals is None:
            self.trace.notes.append(f"shard {entry.partition}: its members of then are no longer stored")
        found = []
        for ordinal in rules.sample(ordinals or [], self.limits.mailboxes_per_shard):
            mailbox = (entry.partition, self.tenant_id, ordinal)
            if await self.deps.mailboxes.trim_watermark(*mailbox) >= entry.offset:
                continue  # trimmed since: its absence proves nothing
            entries = await self.deps.mailboxes.read(*mailbox, entry.offset - 1, entry.offset, 8)
            found.append(any(self.message_id in one.value for one in entries))
        return rules.dispatch_place(entry, ordinals, state.lanes, found)

    async def _find_pages(self) -> None:
        """When each shard was done: the time of the DispatchProgress page that holds the dispatch."""
        places = {place.shard: place for place in self.trace.dispatches}
        total = await self.deps.log.partitions(PROGRESS) if places else 0
        shards = [shard for shard in places if shard < total]
        if not shards:
            return
        ids_of = {shard: ids.dispatch_id(self.message_id, shard) for shard in shards}
        done: dict[int, int] = {}

        def visit(entry: LogEntry) -> bool:
            at_ms = rules.find_page(entry, ids_of[entry.partition])
            if at_ms is not None:
                done[entry.partition] = at_ms
            return at_ms is not None

        self._tell(f"{PROGRESS}: {len(shards)} shards")
        since = min(place.at_ms for place in places.values()) - self.limits.clock_margin_ms
        starts = await self.deps.log.offsets_at(PROGRESS, shards, since)
        await self.deps.log.scan(PROGRESS, starts, visit, self.limits.entries_max)
        self.trace.dispatches = [
            replace(place, done_at_ms=done.get(place.shard)) for place in self.trace.dispatches
        ]

    # -- PUSHED

    async def _find_pushes(self, found: _Found) -> None:
        if not self.trace.dispatches:
            return
        partitions = list(range(await self.deps.log.partitions(PUSH)))
        first = min(place.at_ms for place in self.trace.dispatches)
        last = max(place.at_ms for place in self.trace.dispatches) + self.limits.push_window_ms
        pushes: list[PushPlace] = []

        def visit(entry: LogEntry) -> bool:
            place = rules.find_pushes(entry, self.tenant_id, self.message_id)
            if place is not None:
                pushes.append(place)
            return entry.at_ms > last

        self._tell(f"{PUSH}: {len(partitions)} partitions")
        starts = await self.deps.log.offsets_at(PUSH, partitions, first - self.limits.clock_margin_ms)
        scan = await self.deps.log.scan(PUSH, starts, visit, self.limits.entries_max)
        if not scan.complete:
            self.trace.notes.append(f"{PUSH}: gave up after {scan.entries} records")
        self.trace.pushes = sorted(pushes, key=lambda place: (place.at_ms, place.connection_shard))

    # -- ARCHIVED

    async def _find_archived(self, found: _Found, address: tuple[str, str, int]) -> None:
        try:
            (stored,) = await self.deps.archive.records([address])
            watermark = await self.deps.archive.watermark(found.entry.partition)
        except StoreError as error:
            self.trace.notes.append(f"the archive cannot be read: {error}")
            return
        self.trace.archive = ArchivePlace(
            present=stored == found.record.message,
            watermark=watermark,
            covered=watermark >= found.entry.offset,
        )


def _silent(text: str) -> None:
    """Nobody is told about progress."""
