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
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from qim_streams.errors import RecordError, StoreUnavailable
from qim_streams.history import metrics
from qim_streams.history.ports import ArchiveRanges, HistoryStore
from qim_streams.history.rules import Span
from qim_streams.history.shared_loads import SharedLoads
from qim_streams.records import decode_message
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
    def seqs(self) -> range:
        """The numbers of the block."""
        return range(self.number * BLOCK + 1, (self.number + 1) * BLOCK + 1)


class _Block(NamedTuple):
    """Common bodies by number. `absent` were given out and are not here; `unreadable` are here, damaged."""

    allocated_seq: int
    bodies: dict[int, bytes]
    absent: set[int]
    unreadable: set[int]


class Found(NamedTuple):
    """Common bodies by number, and the numbers whose records cannot be understood in any tier."""

    bodies: dict[int, bytes]
    unreadable: set[int]


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
        found = Found({}, set())
        cold: list[_Key] = []
        shared = self._hot.shared
        for key, block in zip(keys, await self._hot.get(keys), strict=True):
            if block.allocated_seq < min(span.high, key.seqs[-1]):
                raise StoreUnavailable(
                    f"{conversation_id}: the hot tier has forgotten numbers up to {span.high}"
                )
            found.bodies.update(block.bodies)
            found.unreadable.update(block.unreadable)
            if any(span.low <= seq <= span.high for seq in block.absent | block.unreadable):
                cold.append(key)
        metrics.BLOCKS_SHARED.inc(self._hot.shared - shared)
        if cold:
            await self._add_cold(found, cold)
        return found

    async def _add_cold(self, found: Found, keys: Sequence[_Key]) -> None:
        """What the archive has in `keys` and the hot tier has not: the hot tier's word is the newer one."""
        for block in await self._cold.get(keys):
            for seq, body in block.bodies.items():
                found.bodies.setdefault(seq, body)
            found.unreadable.update(block.unreadable)
        found.unreadable.difference_update(found.bodies)

    # -- loads; all keys of a call are of one conversation

    async def _load_hot(self, keys: Sequence[_Key]) -> list[_Block]:
        seqs = [seq for key in keys for seq in key.seqs]
        async with self._hot_slots:
            allocated, rows = await self._store.rows(keys[0].tenant_id, keys[0].conversation_id, seqs)
        metrics.HOT_READS.inc()
        by_seq = dict(zip(seqs, rows, strict=True))
        return [_block_of(key, allocated, ((seq, by_seq[seq]) for seq in key.seqs)) for key in keys]

    async def _load_cold(self, keys: Sequence[_Key]) -> list[_Block]:
        """One range for each run of neighbouring blocks."""
        records: dict[int, bytes] = {}
        tenant, conversation = keys[0].tenant_id, keys[0].conversation_id
        numbers = sorted(key.number for key in keys)
        for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
            first, *rest = (number for _, number in run)
            after, up_to = first * BLOCK, ((rest[-1] if rest else first) + 1) * BLOCK
            async with self._cold_slots:
                rows = await self._archive.range(tenant, conversation, after, up_to, up_to - after)
            records.update((one.conversation_seq, one.record) for one in rows)
            metrics.ARCHIVE_READS.inc()
        return [_block_of(key, 0, ((seq, records.get(seq)) for seq in key.seqs)) for key in keys]


def _block_of(key: _Key, allocated_seq: int, rows: Iterable[tuple[int, bytes | None]]) -> _Block:
    block = _Block(allocated_seq, {}, set(), set())
    for seq, row in rows:
        if row is None:
            if seq <= allocated_seq:
                block.absent.add(seq)
            continue
        try:
            block.bodies[seq] = _body(key, seq, row)
        except RecordError as error:
            log.error("message %d of %s cannot be read: %s", seq, key.conversation_id, error)
            metrics.UNREADABLE.inc()
            block.unreadable.add(seq)
    return block


def _body(key: _Key, seq: int, row: bytes) -> bytes:
    message = decode_message(row)
    place = (message.tenant_id, message.conversation_id, message.conversation_seq)
    if place != (key.tenant_id, key.conversation_id, seq):
        raise RecordError(f"it says that it is message {message.conversation_seq}")
    return common_body(message)
