"""Pulling: entries of a mailbox with their bodies, in batches that prove what they cover.

Invariants:

* A batch holds every entry of (after_seq, covered_through_seq]. It is cut only between mailbox_seqs; a
  seq whose events alone exceed the limits is returned whole.
* A seq with more events than a frame holds is an error, never a part of itself.
* Nothing above W[lane] is returned, and nothing is returned from a range that trimming has reached:
  effective_trim is read after the rows, and trimming raises it in the same step that removes rows, so a
  range that was whole while it was read is whole. A range that was not is CURSOR_EXPIRED, never an
  empty success over a hole.
* Nothing is returned from a store that was emptied meanwhile: W and the epoch that moved it are read again
  after the rows. Entries, W and that epoch are lost together, and a replay has an epoch of its own.
* A body comes from the hot tier, else from the archive (nothing is trimmed from the hot tier before it
  is archived, and the archive is asked after the hot tier). An entry without body is an error
  (BODY_UNAVAILABLE), because a cursor behind it would lose the message.
* Bodies are fetched in portions as large as the byte limit is expected to need.

Spec: §5, §7.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from qim_streams import limits
from qim_streams.errors import Outcome, ProtocolError, RecordError, StoreError, SyncVerdict
from qim_streams.ids import NOTHING_COVERED, event_id
from qim_streams.mailbox.ports import StoredEntry, WatermarkState
from qim_streams.mentions import type_in_body
from qim_streams.records import UserMailboxEntry, decode_entry
from qim_streams.sharding.ports import MailboxReader
from qim_streams.sync.bodies import PulledBodies
from qim_streams.sync.ports import BodyReader, MailboxAddress

BODIES_FIRST: Final = 32  # bodies of the first portion; later ones follow from their size
BODIES_MAX: Final = 128  # bodies of any portion: at most 8 MiB with bodies of 64 KiB
READS_MAX: Final = 3  # of one range, while owners of the shard follow each other
_EVENT_OVERHEAD: Final = 128  # bytes of an event besides its common body


class PulledEvent(NamedTuple):
    """The parts of an event, in the order that `Codec.encode_event` takes them."""

    mailbox_seq: int
    event_ordinal: int
    event_id: bytes
    flags: int
    mention_type: int
    client_message_id: str | None
    common_body: bytes


class PullResult(NamedTuple):
    """A batch. `has_more`: covered_through_seq < up_to_seq. `shard_epoch`: the one that moved W there."""

    events: list[PulledEvent]
    covered_through_seq: int
    lane_watermark: int
    has_more: bool
    shard_epoch: int


class PullService:
    """Reads mailboxes; holds no state. `archive` may be None while there is none."""

    def __init__(self, mailboxes: MailboxReader, hot: BodyReader, archive: BodyReader | None = None) -> None:
        self._mailboxes, self._bodies = mailboxes, PulledBodies(hot, archive)

    async def pull(
        self,
        address: MailboxAddress,
        after_seq: int,
        up_to_seq: int,
        limit_entries: int,
        limit_bytes: int,
        promised_seq: int = NOTHING_COVERED,
    ) -> PullResult:
        """A batch of (after_seq, up_to_seq]. `promised_seq`: W as this reader was told of it before.

        SyncVerdict CURSOR_EXPIRED: trimming has reached the range. SyncVerdict BODY_UNAVAILABLE: a body
        is nowhere. ProtocolError PULL_OUT_OF_RANGE: `up_to_seq` is above W[lane]; SHARD_MOVED: it is, but
        was not, so the owner has yet to write again what the store lost. StoreError: read again.
        """
        trim, state = await asyncio.gather(
            self._trim(address),
            self._mailboxes.watermark(address.shard),
        )
        watermark = state.lanes[address.lane]
        if after_seq < trim:
            raise _expired(trim)
        if up_to_seq > watermark:
            code = "SHARD_MOVED" if up_to_seq <= promised_seq else "PULL_OUT_OF_RANGE"
            raise ProtocolError(code, f"up_to_seq is above {watermark}", field="up_to_seq")
        if after_seq >= up_to_seq:
            return PullResult([], after_seq, watermark, False, state.epoch)
        rows, through = await self._proved_rows(address, state, (after_seq, up_to_seq, limit_entries))
        events, through = await self._events(address, rows, through, limit_bytes)
        return PullResult(events, through, watermark, through < up_to_seq, state.epoch)

    async def _proved_rows(
        self, address: MailboxAddress, before: WatermarkState, wanted: tuple[int, int, int]
    ) -> tuple[list[StoredEntry], int]:
        """Rows of (after_seq, up_to_seq], at most so many, that were whole while they were read."""
        for _ in range(READS_MAX):
            rows, through = await self._rows(address, *wanted)
            trim, after = await asyncio.gather(self._trim(address), self._mailboxes.watermark(address.shard))
            if wanted[0] < trim:
                raise _expired(trim)
            if after.lanes[address.lane] < before.lanes[address.lane]:
                break  # the store lost them
            if after.epoch == before.epoch:
                return rows, through
            before = after  # another owner; or the store was lost, and is written again by now
        raise ProtocolError("SHARD_MOVED", "mailboxes changed hands while they were read", field="up_to_seq")

    async def _trim(self, address: MailboxAddress) -> int:
        return await self._mailboxes.trim_watermark(address.shard, address.tenant_id, address.ordinal)

    async def _rows(
        self, address: MailboxAddress, after_seq: int, up_to_seq: int, limit: int
    ) -> tuple[list[StoredEntry], int]:
        """Whole seqs of at most `limit` rows (at least one seq), and what they cover."""
        read = self._mailboxes.read
        where = address.shard, address.tenant_id, address.ordinal
        rows = await read(*where, after_seq, up_to_seq, limit + 1)
        if len(rows) <= limit:
            return rows, up_to_seq
        last = rows[-1].mailbox_seq
        whole = [row for row in rows if row.mailbox_seq < last]
        if whole:
            return whole, last - 1
        # All rows are of one seq, whose events do not fit the limit: they go together all the same.
        rows = await read(*where, after_seq, last, limits.EVENTS_PER_FRAME_MAX + 1)
        if len(rows) > limits.EVENTS_PER_FRAME_MAX:
            raise StoreError(f"mailbox_seq {last} has more events than a frame holds", Outcome.NOT_APPLIED)
        return rows, last

    async def _events(
        self, address: MailboxAddress, rows: Sequence[StoredEntry], through: int, limit_bytes: int
    ) -> tuple[list[PulledEvent], int]:
        events: list[PulledEvent] = []
        used, at, portion = 0, 0, BODIES_FIRST
        while at < len(rows):
            some = _whole_seqs(rows, at, portion)
            for group in await self._with_bodies(address, some):
                size = sum(len(event.common_body) + _EVENT_OVERHEAD for event in group)
                if events and used + size > limit_bytes:
                    return events, group[0].mailbox_seq - 1
                events += group
                used += size
            at += len(some)
            portion = min(max(1, (limit_bytes - used) * at // max(used, 1)), BODIES_MAX)
        return events, through

    async def _with_bodies(
        self, address: MailboxAddress, rows: Sequence[StoredEntry]
    ) -> list[list[PulledEvent]]:
        """The events of `rows`, grouped by mailbox_seq."""
        entries = [_entry(row) for row in rows]
        bodies = await self._bodies.load(address.tenant_id, entries)
        groups: list[list[PulledEvent]] = []
        for row, entry, body in zip(rows, entries, bodies, strict=True):
            event = PulledEvent(
                row.mailbox_seq,
                row.event_ordinal,
                event_id(entry.message_id, address.user_id, entry.kind),
                entry.flags,
                type_in_body(body, address.user_id),
                entry.client_message_id,
                body,
            )
            if groups and groups[-1][0].mailbox_seq == row.mailbox_seq:
                groups[-1].append(event)
            else:
                groups.append([event])
        return groups


def _whole_seqs(rows: Sequence[StoredEntry], at: int, count: int) -> Sequence[StoredEntry]:
    """`count` rows from `at` on, and the rest of the last one's seq."""
    end = min(at + count, len(rows))
    while end < len(rows) and rows[end].mailbox_seq == rows[end - 1].mailbox_seq:
        end += 1
    return rows[at:end]


def _entry(row: StoredEntry) -> UserMailboxEntry:
    try:
        return decode_entry(row.value)
    except RecordError as error:
        raise StoreError(f"mailbox entry {row.mailbox_seq}-{row.event_ordinal}: {error}") from error


def _expired(trim: int) -> SyncVerdict:
    return SyncVerdict(
        "CURSOR_EXPIRED", f"entries up to {trim} are no longer in the mailbox", rebuild_required=True
    )
