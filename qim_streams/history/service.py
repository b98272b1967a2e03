"""Pages of history for one user: who he is in the conversation, what he may see, both tiers joined.

1. Read the conversation and the user's member row in one atomic step. No conversation, or never a
   member: refused.
2. Read span by span what `rules.PageWalk` asks for, until the page is full or has cost enough: then it
   ends where it is, with `has_more`.
3. A newer page that comes to the end while messages numbered before it was asked for are RESERVED waits
   for them a little and takes them in. If they take longer, it says `has_more`; if it is empty, it is
   refused for now. So a client that reads up to `has_more` false (REBUILD) has everything that was
   numbered before it asked, also while others talk on; and a page without progress never says "more".

Bounded: pages at once, time, store calls and numbers looked at per page.

Spec: §5, §8.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from qim_streams.errors import AdmissionRefused, StoreError, SyncVerdict
from qim_streams.history import metrics
from qim_streams.history.blocks import BlockReader
from qim_streams.history.ports import ArchiveRanges, ConversationView, Deletions, HistoryStore
from qim_streams.history.rules import HistoryPage, PageQuery, PageWalk, Scope
from qim_streams.membership.rules import visible_ranges

PAGES_AT_ONCE_MAX: Final = 512  # in the whole process; a page holds at most its limit_bytes
SPAN_FIRST: Final = 64  # messages of a page's first read; later ones follow from their size
SPAN_MAX: Final = 128  # messages of any read: at most 8 MiB with bodies of 64 KiB
READS_MAX: Final = 8  # reads for one page that find something
# Reads for one page that find nothing: numbers that were left out (a restore leaves out ten thousand).
BARREN_READS_MAX: Final = 64
DEADLINE_S: Final = 10.0
SETTLE_S: Final = 0.5  # how long a page waits for RESERVED messages
_SETTLE_FIRST_S, _SETTLE_STEP_MAX_S = 0.005, 0.08


class HistoryReader(NamedTuple):
    """Whose page, of which conversation."""

    tenant_id: str
    user_id: str
    conversation_id: str
    ordinal: int | None = None  # None: what the reader has deleted for himself is shown all the same


class HistoryService:
    """Makes pages; holds no state beyond the reads under way. `sleep` and `monotonic` in seconds."""

    def __init__(
        self,
        store: HistoryStore,
        archive: ArchiveRanges,
        deletions: Deletions | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._blocks, self._deletions = store, BlockReader(store, archive), deletions
        self._sleep, self._monotonic = sleep, monotonic
        self._slots = asyncio.Semaphore(PAGES_AT_ONCE_MAX)

    async def page(self, reader: HistoryReader, query: PageQuery) -> HistoryPage:
        """The page.

        AdmissionRefused NO_CONVERSATION, NOT_MEMBER, OVERLOADED; SyncVerdict HISTORY_UNSETTLED;
        StoreError or TimeoutError when a tier does not answer: ask again later, nothing was skipped.
        """
        started = self._monotonic()
        try:
            async with asyncio.timeout(DEADLINE_S):
                page = await self._page(reader, query)
        except (AdmissionRefused, SyncVerdict):
            metrics.PAGE_REFUSED.inc()
            raise
        except (StoreError, TimeoutError):
            metrics.PAGE_FAILED.inc()
            raise
        metrics.PAGE_OK.inc()
        metrics.MESSAGES.inc(len(page.messages))
        metrics.PAGE_SECONDS.observe(self._monotonic() - started)
        return page

    async def _page(self, reader: HistoryReader, query: PageQuery) -> HistoryPage:
        walk = PageWalk(await self._scope(reader), query)
        reads_left = await self._read(reader, walk, READS_MAX)
        if walk.is_short and reads_left:
            walk.go_on(await self._settled(reader, walk.goal))
            await self._read(reader, walk, reads_left)
            if walk.is_short and walk.is_empty:
                raise SyncVerdict("HISTORY_UNSETTLED", f"messages up to {walk.goal} are not settled yet")
        return walk.page()

    async def _read(self, reader: HistoryReader, walk: PageWalk, reads_max: int) -> int:
        """Read what the page asks for, in at most so many reads that find something; how many are left."""
        barren_left = BARREN_READS_MAX
        async with self._slots:
            while reads_max and barren_left:
                span = walk.next_span(walk.portion(SPAN_FIRST, SPAN_MAX))
                if span is None:
                    return reads_max
                found = await self._blocks.read(reader.tenant_id, reader.conversation_id, span)
                walk.take(span, found.bodies, found.unreadable)
                if found.bodies or found.unreadable:
                    reads_max -= 1
                else:
                    barren_left -= 1
        return 0

    async def _scope(self, reader: HistoryReader) -> Scope:
        view, deleted = await asyncio.gather(
            self._store.view(reader.tenant_id, reader.conversation_id, reader.user_id), self._deleted(reader)
        )
        return _scope_of(view, *deleted)

    async def _deleted(self, reader: HistoryReader) -> tuple[int, frozenset[int]]:
        tenant_id, user_id, conversation_id, ordinal = reader
        if self._deletions is None or ordinal is None:
            return 0, frozenset()
        return await self._deletions.of_user(tenant_id, user_id, ordinal, conversation_id)

    async def _settled(self, reader: HistoryReader, goal: int) -> Scope:
        """The scope once everything up to `goal` is settled, or as it is after `SETTLE_S`."""
        delay_s, until = _SETTLE_FIRST_S, self._monotonic() + SETTLE_S
        while True:
            await self._sleep(delay_s)
            scope = await self._scope(reader)
            if scope.latest_seq >= min(goal, scope.promised_seq) or self._monotonic() >= until:
                return scope
            delay_s = min(2 * delay_s, _SETTLE_STEP_MAX_S)


def _scope_of(view: ConversationView | None, cleared_to_seq: int, deleted: frozenset[int]) -> Scope:
    if view is None:
        raise AdmissionRefused("NO_CONVERSATION", "there is no such conversation")
    ranges = visible_ranges(view.member, view.history_policy)
    if not ranges:
        raise AdmissionRefused("NOT_MEMBER", "nothing of this conversation is for you")
    return Scope(ranges, view.committed_seq, view.allocated_seq, cleared_to_seq, deleted)
