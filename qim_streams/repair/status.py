"""Reads what stands where: Redis, the ends of the logs, the archive, the mailbox stage's table.

Spec: §14.4.
"""

from dataclasses import dataclass
from typing import Any

from qim_streams.archive.ports import ArchiveReader
from qim_streams.mailbox.ports import WatermarkState
from qim_streams.ownership.ports import LeaseStore
from qim_streams.ownership.shares import SEATS
from qim_streams.repair.ports import HotMarks
from qim_streams.repair.rules import NOTHING, OutboxStanding, RepairStatus, ShardStanding
from qim_streams.trace.ports import LogReader
from qim_streams.trace.progress import FAR_FUTURE_MS, Watermarks, read_shard_rows
from qim_streams.trace.service import DISPATCH, OUTBOX

MEMBERSHIP = "qim.membership.v1"
SEAT_NAME = "writers"


@dataclass(frozen=True, slots=True)
class RepairSources:
    """Where a status is read from."""

    log: LogReader
    marks: HotMarks
    mailboxes: Watermarks
    archive: ArchiveReader
    leases: LeaseStore


async def read_status(sources: RepairSources) -> RepairStatus:
    """The state of all partitions and shards, as of now. StoreUnavailable as the ports say."""
    return RepairStatus(await _outbox(sources), await _shards(sources), await living_writers(sources.leases))


async def living_writers(leases: LeaseStore) -> int:
    """How many writers hold a seat."""
    holders = await leases.holders([f"{SEAT_NAME}:{number}" for number in range(SEATS)])
    return sum(holder is not None for holder in holders)


async def _outbox(sources: RepairSources) -> list[OutboxStanding]:
    log = sources.log
    partitions = list(range(await log.partitions(OUTBOX)))
    begins = await log.offsets_at(OUTBOX, partitions, 0)
    ends = await log.offsets_at(OUTBOX, partitions, FAR_FUTURE_MS)
    change_ends = await log.offsets_at(MEMBERSHIP, partitions, FAR_FUTURE_MS)
    marks = await sources.marks.read(partitions)
    return [
        OutboxStanding(
            one,
            begins[one],
            ends[one],
            mark.tail,
            change_ends[one],
            mark.change_tail,
            await sources.archive.watermark(one),
            mark.proved,
            mark.accepted,
        )
        for one, mark in zip(partitions, marks, strict=True)
    ]


async def _shards(sources: RepairSources) -> list[ShardStanding]:
    shards = list(range(await sources.log.partitions(DISPATCH)))
    rows = await read_shard_rows(sources.log, sources.mailboxes, shards)
    states: list[WatermarkState] = await sources.mailboxes.watermarks(shards) if shards else []
    holders: list[Any] = await sources.leases.holders([f"s:{shard}" for shard in shards])
    return [
        ShardStanding(
            row.shard,
            min(state.lanes),
            state.promised,
            NOTHING if row.page_last is None else row.page_last,
            row.end,
            holder is not None,
        )
        for row, state, holder in zip(rows, states, holders, strict=True)
    ]
