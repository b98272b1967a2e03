"""DispatchProgress: exact deduplication by dispatch_id, for the retention, whatever crashed in between.

What batches have done is noted in memory and goes as one page per checkpoint into the table
``dispatch_progress`` (changelog and RocksDB). An index from dispatch_id to its first offset lies beside it
in the same RocksDB, without changelog; page and index entries are written in one RocksDB batch. At
assignment the index is brought up to date from the pages above its own mark, so that a lost directory costs
time and nothing else.

Why a record that is read again is not mistaken for a repeat: the index holds the offset of the first
occurrence. The same offset is a replay and is processed; a higher one is a repeat and is dropped.

Why no page is missing after a takeover: a page is awaited before its batches are acknowledged, so at
most the newest local page may lack its changelog record (the process died between the two); `recover`
sends it again. Notes that died with the process are made again, because their records are read again.

Retention is by time: each new page takes at most `EXPIRE_PAGES_MAX` old pages with it, and their index
entries; the newest page always stays, because it is the stage's position.

Notes may reach further than what is durable in every lane: a page ends where that does (`through`), and the
rest stays noted. The record that holds it back is marked beside the page: which of its chunks are durable.

Not here: whether entries and W are durable (``service`` writes a page only after both).

Spec: §5, §14.6, §14.7.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from qim_streams.errors import RecordError
from qim_streams.mailbox.pages import (
    OPEN_KEY,
    PAGE_PREFIX,
    DoneDispatch,
    OpenProgress,
    Page,
    Seen,
    decode_open,
    decode_page,
    decode_seen,
    encode_seen,
    page_end,
    page_key,
)
from qim_streams.mailbox.ports import ChangelogTable

log = logging.getLogger(__name__)

EXPIRE_PAGES_MAX = 4  # per new page: more than one, so that a backlog of old pages shrinks
SWEEP_KEYS_MAX = 500  # index entries looked at per new page after a takeover
# Offsets below the oldest page that a sweep leaves alone: a replay may have left a page that ends later
# and begins earlier. A page holds the records between two checkpoints, at most some 10,000.
SWEEP_MARGIN = 1_000_000
NOTHING = -1

_ID = b"i"
_MARK = b"m"  # local: the index is complete up to this page end


@dataclass(slots=True)
class _Partition:
    newest: int  # last offset of the newest page, -1: none
    oldest_at_ms: int | None  # written_at of the oldest page, None: no page
    open_written: bool
    oldest_from: bytes = PAGE_PREFIX  # where a scan for old pages starts: not over what it deleted before
    sweep_from: bytes | None = None  # next index key of the sweep, None: no sweep
    sweep_below: int = 0  # index entries under this offset belong to pages that are gone
    # since the last page: where the next one begins (None: nothing noted), ends, what it will hold
    noted_first: int | None = None
    noted_last: int = NOTHING
    noted: dict[bytes, DoneDispatch] = field(default_factory=dict)  # offsets ascend
    paged_last: int | None = None  # what the page that is not settled yet ends with


class DispatchProgress:
    """The progress of the partitions that were recovered here. `retention_ms` from `written_at_ms`."""

    def __init__(self, table: ChangelogTable, retention_ms: int) -> None:
        self._table = table
        self._retention_ms = retention_ms
        self._partitions: dict[int, _Partition] = {}

    async def recover(self, partition: int) -> int:
        """Make the index complete and the newest page durable; the last offset done, -1 for none."""
        oldest, newest = self._ends(partition)
        indexed = await self._index_new_pages(partition)
        state = _Partition(
            newest=newest.last if newest else NOTHING,
            oldest_at_ms=oldest.written_at_ms if oldest else None,
            open_written=self._table.read(partition, OPEN_KEY) is not None,
        )
        if newest is not None and oldest is not None:
            self._table.write_batch(partition, {page_key(newest.first, newest.last): newest.encode()})
            await self._table.barrier(partition)
            if indexed:
                # Another owner may have expired pages whose index entries are still here.
                state.sweep_from, state.sweep_below = b"", oldest.last - SWEEP_MARGIN
        self._partitions[partition] = state
        return state.newest

    def forget(self, partition: int) -> None:
        """Drop what is known of a partition that is no longer ours."""
        self._partitions.pop(partition, None)

    def seen(self, partition: int, dispatch_ids: Sequence[bytes]) -> list[Seen | None]:
        """The first occurrence of each id among what was noted so far, None if there is none."""
        state = self._partitions.get(partition)
        rows = self._table.local(partition).read_many([_ID + one for one in dispatch_ids])
        noted = state.noted if state is not None else {}
        if rows.count(None) == len(rows) and noted.keys().isdisjoint(dispatch_ids):
            return [None] * len(rows)  # the usual case
        found: list[Seen | None] = []
        for one, row in zip(dispatch_ids, rows, strict=True):
            if row is not None:
                found.append(decode_seen(row))
            else:
                done = noted.get(one)
                found.append(None if done is None else Seen(done.offset, done.digest))
        return found

    def open(self, partition: int) -> OpenProgress | None:
        """The large record that some lanes have and others do not, None when there is none."""
        data = self._table.read(partition, OPEN_KEY)
        return None if data is None else decode_open(data)

    def note(self, partition: int, first: int, last: int, rows: Sequence[DoneDispatch]) -> None:
        """The records `first` to `last` are done; durable with the next page. Spans follow one another."""
        state = self._partitions[partition]
        if state.noted_first is None:
            state.noted_first = first
        state.noted_last = last
        state.noted.update({row.dispatch_id: row for row in rows})

    def write_page(
        self, partition: int, now_ms: int, *, through: int | None = None, opened: OpenProgress | None = None
    ) -> int | None:
        """Write what was noted as a page with its index entries; durable after `barrier`, then `settle`.

        Of the notes only those up to `through` (inclusive; None: all). `opened`: the large record behind
        them, with its durable chunks. The last offset of the page; None when it would be empty. May be
        called again if it failed.
        """
        state = self._partitions[partition]
        puts: dict[bytes, bytes | None] = {}
        if opened is not None:
            puts[OPEN_KEY] = opened.encode()
        elif state.open_written:
            puts[OPEN_KEY] = None
        state.open_written = opened is not None
        first, last = state.noted_first, state.noted_last
        if through is not None:
            last = min(last, through)
        if first is None or last < first:
            if puts:
                self._table.write_batch(partition, puts)
            return None
        self._add_page(partition, state, (first, last, now_ms), puts)
        state.paged_last, state.newest = last, max(state.newest, last)
        return last

    def _add_page(
        self,
        partition: int,
        state: _Partition,
        span: tuple[int, int, int],
        puts: dict[bytes, bytes | None],
    ) -> None:
        first, last, now_ms = span
        rows = tuple(state.noted.values())
        if last < state.noted_last:
            rows = tuple(row for row in rows if row.offset <= last)
        puts[page_key(first, last)] = Page(first, last, now_ms, rows).encode()
        local: dict[bytes, bytes | None] = {
            _ID + dispatch_id: encode_seen(offset, digest) for offset, dispatch_id, digest in rows
        }
        local[_MARK] = page_key(first, last)
        if state.oldest_at_ms is None:
            state.oldest_at_ms = now_ms
        elif now_ms - state.oldest_at_ms > self._retention_ms:
            self._expire(partition, state, now_ms, puts, local)
        if state.sweep_from is not None:
            self._sweep(partition, state, local)
        self._table.write_batch(partition, puts, local)

    def settle(self, partition: int) -> None:
        """The page is durable: forget its notes. Nothing may have been noted since `write_page`."""
        state = self._partitions[partition]
        last, state.paged_last = state.paged_last, None
        if last is None:
            return
        if last >= state.noted_last:
            state.noted_first, state.noted = None, {}
        else:
            state.noted_first = last + 1
            state.noted = {one: row for one, row in state.noted.items() if row.offset > last}

    async def barrier(self, partition: int) -> None:
        """Wait until the pages written so far are in the changelog."""
        await self._table.barrier(partition)

    # -- recovery

    def _ends(self, partition: int) -> tuple[Page | None, Page | None]:
        """The oldest and the newest page."""
        pages = self._table.iterate(partition, PAGE_PREFIX)
        oldest = next((decode_page(value) for key, value in pages if page_end(key) is not None), None)
        if oldest is None:
            return None, None
        backwards = self._table.iterate(partition, reverse=True)
        newest = next(decode_page(value) for key, value in backwards if page_end(key) is not None)
        return oldest, newest

    async def _index_new_pages(self, partition: int) -> int:
        """Index the pages above the mark; how many there were."""
        local = self._table.local(partition)
        mark = local.read(_MARK)
        count = 0
        for key, value in self._table.iterate(partition, mark or PAGE_PREFIX):
            if page_end(key) is None or key == mark:
                continue
            page = decode_page(value)
            known = self.seen(partition, [row.dispatch_id for row in page.rows])
            puts: dict[bytes, bytes | None] = {
                _ID + row.dispatch_id: encode_seen(row.offset, row.digest)
                for row, before in zip(page.rows, known, strict=True)
                if before is None or before.offset > row.offset or before.offset < page.first
            }
            puts[_MARK] = key
            local.write_batch(puts)
            count += 1
            await asyncio.sleep(0)  # a page is up to 10,000 ids: let the heartbeat through
        if count:
            log.info("dispatch_progress[%d]: %d pages indexed", partition, count)
        return count

    # -- retention

    def _expire(
        self,
        partition: int,
        state: _Partition,
        now_ms: int,
        puts: dict[bytes, bytes | None],
        local: dict[bytes, bytes | None],
    ) -> None:
        """Add the deletion of a few pages that are too old, and of their ids, to `puts` and `local`."""
        removed = 0
        for key, value in self._table.iterate(partition, state.oldest_from):
            end = page_end(key)
            if end is None:
                continue
            page = self._readable(key, value)
            state.oldest_from = key
            if page is not None:
                state.oldest_at_ms = page.written_at_ms
            expired = page is None or now_ms - page.written_at_ms > self._retention_ms
            if not expired or removed >= EXPIRE_PAGES_MAX or end >= state.newest:
                return
            puts.setdefault(key, None)
            removed += 1
            if page is not None:
                self._expire_ids(partition, page, local)
        state.oldest_at_ms = now_ms

    def _expire_ids(self, partition: int, page: Page, local: dict[bytes, bytes | None]) -> None:
        for row, seen in zip(
            page.rows, self.seen(partition, [r.dispatch_id for r in page.rows]), strict=True
        ):
            # An id that came again after its time is kept by its later page.
            if seen is not None and seen.offset == row.offset:
                local.setdefault(_ID + row.dispatch_id, None)

    def _readable(self, key: bytes, value: bytes) -> Page | None:
        try:
            return decode_page(value)
        except RecordError as error:
            log.error("dispatch_progress: page %s is unreadable and is removed: %s", key.hex(), error)
            return None

    def _sweep(self, partition: int, state: _Partition, local: dict[bytes, bytes | None]) -> None:
        entries = self._table.local(partition).iterate(state.sweep_from or _ID)
        for looked, (key, value) in enumerate(entries):
            if not key.startswith(_ID):
                break
            if looked == SWEEP_KEYS_MAX:
                state.sweep_from = key
                return
            if decode_seen(value).offset < state.sweep_below:
                local.setdefault(key, None)
        state.sweep_from = None
