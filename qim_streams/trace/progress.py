"""How far each stage has come: the ends of the logs, the stages' tables, W of the store, the archive.

Tables are read from their changelogs, so the answer does not depend on which worker runs where, nor on
any running at all. A lag is the number of offsets behind the end of the stage's source.

Spec: §4, §5, §14.7.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from qim_streams.archive.ports import ArchiveReader
from qim_streams.errors import RecordError
from qim_streams.fanout.progress import PAGE_KEY, OutboxPage, decode_outbox_page
from qim_streams.mailbox.pages import Page, decode_page, page_end
from qim_streams.mailbox.ports import WatermarkState
from qim_streams.trace.ports import LogEntry, LogReader
from qim_streams.trace.service import DISPATCH, OUTBOX, PROGRESS

FANOUT_PROGRESS = "qim-fanout-coordinator-conversation_progress-changelog"
TAIL_RECORDS = 200  # of a changelog partition: pages and what is written between two of them
FANOUT_TAIL_RECORDS = 4  # of fan-out's, which holds nothing but pages: users may wait for this look
FAR_FUTURE_MS = 2**53
NOTHING = -1

T = TypeVar("T")


class Watermarks(Protocol):
    """W of shards."""

    async def watermarks(self, shards: Sequence[int]) -> list[WatermarkState]:
        """The persisted watermark of each shard."""


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """An Outbox partition: its end, and up to where it is dispatched and archived (inclusive)."""

    partition: int
    end: int
    dispatched_through: int
    dispatched_at_ms: int | None
    archived_through: int

    @property
    def fanout_lag(self) -> int:
        """Records not yet dispatched."""
        return self.end - 1 - self.dispatched_through

    @property
    def archive_lag(self) -> int:
        """Records not yet archived."""
        return self.end - 1 - self.archived_through


@dataclass(frozen=True, slots=True)
class ArchiveRow:
    """An Outbox partition: its end, and the archive watermark (inclusive)."""

    partition: int
    end: int
    watermark: int

    @property
    def lag(self) -> int:
        """Records not yet archived; negative when the archive belongs to another log."""
        return self.end - 1 - self.watermark


@dataclass(frozen=True, slots=True)
class ShardRow:
    """A MailboxShard: the end of its dispatch partition, W of its 64 lanes, its last progress page."""

    shard: int
    end: int
    epoch: int
    lanes: tuple[int, ...]
    page_first: int | None
    page_last: int | None
    page_dispatches: int | None
    page_at_ms: int | None

    @property
    def lag(self) -> int:
        """Dispatches that the slowest lane does not cover yet."""
        return self.end - 1 - min(self.lanes)


@dataclass(frozen=True, slots=True)
class PipelineProgress:
    """Every partition of the two stages' sources."""

    outbox: list[OutboxRow]
    shards: list[ShardRow]


async def read_progress(
    log: LogReader, mailboxes: Watermarks, archive: ArchiveReader, shard: int | None = None
) -> PipelineProgress:
    """The state of all partitions, or of one MailboxShard only. StoreUnavailable as the ports say."""
    outbox: list[OutboxRow] = []
    if shard is None:
        outbox = await _outbox_rows(log, archive)
    total = await log.partitions(DISPATCH)
    shards = list(range(total)) if shard is None else [one for one in (shard,) if one < total]
    return PipelineProgress(outbox, await read_shard_rows(log, mailboxes, shards))


async def read_archive_progress(log: LogReader, archive: ArchiveReader) -> list[ArchiveRow]:
    """The archive watermark of every Outbox partition. StoreUnavailable as the ports say."""
    partitions = list(range(await log.partitions(OUTBOX)))
    ends = await log.offsets_at(OUTBOX, partitions, FAR_FUTURE_MS)
    return [ArchiveRow(one, ends[one], await archive.watermark(one)) for one in partitions]


async def _outbox_rows(log: LogReader, archive: ArchiveReader) -> list[OutboxRow]:
    partitions = list(range(await log.partitions(OUTBOX)))
    ends = await log.offsets_at(OUTBOX, partitions, FAR_FUTURE_MS)
    pages = await fanout_pages(log, partitions)
    return [
        OutboxRow(
            partition,
            ends[partition],
            page.dispatched_through if (page := pages.get(partition)) else NOTHING,
            page.at_ms if page else None,
            await archive.watermark(partition),
        )
        for partition in partitions
    ]


async def fanout_pages(log: LogReader, partitions: list[int]) -> dict[int, OutboxPage]:
    """The last page of each Outbox partition that has one: how far it is dispatched for certain."""
    return await _last(log, FANOUT_PROGRESS, partitions, _read_outbox_page, FANOUT_TAIL_RECORDS)


async def read_shard_rows(log: LogReader, mailboxes: Watermarks, shards: list[int]) -> list[ShardRow]:
    """The state of these MailboxShards. StoreUnavailable as the ports say."""
    ends = await log.offsets_at(DISPATCH, shards, FAR_FUTURE_MS)
    states = await mailboxes.watermarks(shards) if shards else []
    pages = await _last(log, PROGRESS, shards, _read_page, TAIL_RECORDS)
    return [
        ShardRow(
            shard,
            ends[shard],
            state.epoch,
            state.lanes,
            page.first if (page := pages.get(shard)) else None,
            page.last if page else None,
            len(page.rows) if page else None,
            page.written_at_ms if page else None,
        )
        for shard, state in zip(shards, states, strict=True)
    ]


async def _last(
    log: LogReader, topic: str, partitions: list[int], read: Callable[[LogEntry], T | None], tail: int
) -> dict[int, T]:
    """The last record among the last `tail` of each changelog partition that `read` understands."""
    known = await log.partitions(topic)
    ends = await log.offsets_at(topic, [one for one in partitions if one < known], FAR_FUTURE_MS)
    found: dict[int, T] = {}

    def visit(entry: LogEntry) -> bool:
        value = read(entry)
        if value is not None:
            found[entry.partition] = value
        return False

    starts = {partition: max(0, end - tail) for partition, end in ends.items()}
    await log.scan(topic, starts, visit, tail * max(1, len(starts)))
    return found


def _read_outbox_page(entry: LogEntry) -> OutboxPage | None:
    if entry.key != PAGE_KEY or entry.value is None:
        return None
    try:
        return decode_outbox_page(entry.value)
    except RecordError:
        return None


def _read_page(entry: LogEntry) -> Page | None:
    if entry.value is None or page_end(entry.key or b"") is None:
        return None
    try:
        return decode_page(entry.value)
    except RecordError:
        return None
