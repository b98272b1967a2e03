"""Messages of a conversation by number, whichever tier holds them: hot tier and archive as one.

Messages are read in aligned blocks of `BLOCK` numbers, so that readers whose pages overlap ask for the
same blocks and share the reads (`shared_loads`). A block is read from the hot tier; if numbers that were
given out are missing there, or cannot be read, then from the archive.

Why this joins without seam or overlap: a number is looked up in both tiers, never in a range that one
tier is believed to hold. The hot tier is trimmed only of what is archived, and the archive is asked after
it, so a message that is trimmed in between is found there. What neither tier has was given out and never
used: number and record are written in one step, and both are read in one step (a hot tier that was
restored to an earlier state shows a smaller number than the reader was told, and the read is refused).

Spec: §8, §14.8.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from qim_streams.errors import RecordError, StoreUnavailable
from qim_streams.history import metrics
from qim_streams.history.ports import ArchiveRanges, HistoryStore
from qim_streams.history.rules import Span
from qim_streams.history.shared_loads import SharedLoads
from qim_streams.operations.shown import see_targets
from qim_streams.records import KIND_EDIT, MessageRecord, decode_message
from qim_streams.wire.events import common_body

log = logging.getLogger(__name__)

BLOCK: Final = 16
BLOCKS_WAITING_MAX: Final = 8_192  # keys of all readers together
READS_AT_ONCE_MAX: Final = 16  # store calls per tier: bounds the memory that bodies take


class _Key(NamedTuple):
    tenant_id: str
    conversation_id: str
    number: int  # of the block: it holds number * BLOCK + 1 to (number + 1) * BLOCK

    @property
    def span(self) -> Span:
        """The numbers of the block."""
        return Span(self.number * BLOCK + 1, (self.number + 1) * BLOCK)


class _Block:
    """Records of one block as one tier has them, made into common bodies once for all who ask."""

    def __init__(self, key: _Key, allocated_seq: int, rows: Mapping[int, bytes]) -> None:
        self.allocated_seq = allocated_seq
        self._key, self._rows = key, rows
        self._bodies: dict[int, bytes | None] = {}
        self.edits: dict[int, MessageRecord] = {}  # among the bodies that were asked for

    def __contains__(self, seq: int) -> bool:
        return seq in self._rows

    def body(self, seq: int) -> bytes | None:
        """The common body of a number; None when there is no record, or none that can be read."""
        if seq not in self._bodies:
            row = self._rows.get(seq)
            self._bodies[seq] = None if row is None else self._common_body(seq, row)
        return self._bodies[seq]

    def _common_body(self, seq: int, row: bytes) -> bytes | None:
        key = self._key
        try:
            message = decode_message(row)
            place = (message.tenant_id, message.conversation_id, message.conversation_seq)
            if place != (key.tenant_id, key.conversation_id, seq):
                raise RecordError(f"it says that it is message {message.conversation_seq}")
            if message.kind == KIND_EDIT:
                self.edits[seq] = message
            return common_body(message)
        except RecordError as error:
            log.error("message %d of %s cannot be read: %s", seq, key.conversation_id, error)
            metrics.UNREADABLE.inc()
            return None


class Found(NamedTuple):
    """Common bodies by number, the numbers whose records cannot be understood in any tier, and edits."""

    bodies: dict[int, bytes]
    unreadable: set[int]
    edits: dict[int, MessageRecord]


class _HotTargets:
    """`Records` of one conversation in the hot tier."""

    def __init__(self, store: HistoryStore, tenant_id: str, conversation_id: str) -> None:
        self._store, self._tenant_id, self._conversation_id = store, tenant_id, conversation_id

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        """The records of single numbers, as many as a span has at most."""
        spans = [(seq, seq) for _, _, seq in wanted]
        return (await self._store.rows(self._tenant_id, self._conversation_id, spans)).rows


class BlockReader:
    """Reads spans of conversations out of both tiers; holds nothing longer than a read takes."""

    def __init__(self, hot: HistoryStore, archive: ArchiveRanges) -> None:
        self._store, self._archive = hot, archive
        self._hot: SharedLoads[_Key, _Block] = SharedLoads(self._load_hot, BLOCKS_WAITING_MAX)
        self._cold: SharedLoads[_Key, _Block] = SharedLoads(self._load_cold, BLOCKS_WAITING_MAX)
        self._hot_slots = asyncio.Semaphore(READS_AT_ONCE_MAX)
        self._cold_slots = asyncio.Semaphore(READS_AT_ONCE_MAX)

    async def read(self, tenant_id: str, conversation_id: str, span: Span) -> Found:
        """What there is of `span`, whose numbers were all given out.

        StoreUnavailable: a tier cannot be read, or the hot tier has forgotten numbers of the span.
        AdmissionRefused OVERLOADED: too many readers.
        """
        first, last = ((seq - 1) // BLOCK for seq in span)
        keys = [_Key(tenant_id, conversation_id, number) for number in range(first, last + 1)]
        found = Found({}, set(), {})
        cold: list[_Key] = []
        shared = self._hot.shared
        for key, block in zip(keys, await self._hot.get(keys), strict=True):
            if block.allocated_seq < min(span.high, key.span.high):
                raise StoreUnavailable(f"{conversation_id}: the hot tier forgot numbers up to {span.high}")
            if _add(found, block, _common(span, key.span)):
                cold.append(key)
        metrics.BLOCKS_SHARED.inc(self._hot.shared - shared)
        for key, block in zip(cold, await self._cold.get(cold), strict=True):
            _add(found, block, _common(span, key.span))
        if found.edits:
            await self._see_targets(tenant_id, conversation_id, found)
        return found

    async def _see_targets(self, tenant_id: str, conversation_id: str, found: Found) -> None:
        """Show edits as their targets are by now."""
        seqs, edits = list(found.edits), list[MessageRecord | None](found.edits.values())
        hot = _HotTargets(self._store, tenant_id, conversation_id)
        async with self._hot_slots, self._cold_slots:
            await see_targets(edits, (hot, self._archive))
        for seq, edit in zip(seqs, edits, strict=True):
            if edit is not None:
                found.bodies[seq] = common_body(edit)

    # -- loads; all keys of a call are of one conversation

    async def _load_hot(self, keys: Sequence[_Key]) -> list[_Block]:
        spans = list(_runs(keys))
        async with self._hot_slots:
            allocated, rows = await self._store.rows(keys[0].tenant_id, keys[0].conversation_id, spans)
        metrics.HOT_READS.inc()
        seqs = (seq for low, high in spans for seq in range(low, high + 1))
        known = {seq: row for seq, row in zip(seqs, rows, strict=True) if row is not None}
        return [_Block(key, allocated, known) for key in keys]

    async def _load_cold(self, keys: Sequence[_Key]) -> list[_Block]:
        """One range for each run of neighbouring blocks."""
        known: dict[int, bytes] = {}
        tenant, conversation = keys[0].tenant_id, keys[0].conversation_id
        for low, high in _runs(keys):
            async with self._cold_slots:
                rows = await self._archive.range(tenant, conversation, low - 1, high, high - low + 1)
            known.update((one.conversation_seq, one.record) for one in rows)
            metrics.ARCHIVE_READS.inc()
        return [_Block(key, 0, known) for key in keys]


def _add(found: Found, block: _Block, span: Span) -> bool:
    """Add what `block` has of `span` and `found` has not; whether something is still missing."""
    missing = False
    for seq in range(span.low, span.high + 1):
        if seq in found.bodies:
            continue
        body = block.body(seq)
        if body is not None:
            found.bodies[seq] = body
            found.unreadable.discard(seq)
            if seq in block.edits:
                found.edits[seq] = block.edits[seq]
            continue
        missing = True
        if seq in block:
            found.unreadable.add(seq)
    return missing


def _common(one: Span, other: Span) -> Span:
    return Span(max(one.low, other.low), min(one.high, other.high))


def _runs(keys: Sequence[_Key]) -> Iterator[Span]:
    """The numbers of the blocks, neighbours as one span; `keys` ascend."""
    low, high = keys[0].span
    for key in keys[1:]:
        if key.span.low != high + 1:
            yield Span(low, high)
            low = key.span.low
        high = key.span.high
    yield Span(low, high)
