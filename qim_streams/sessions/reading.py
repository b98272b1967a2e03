"""The session list of a user, page by page.

1. Where the projection stands is read first, so that whatever comes after that position comes as an event.
2. Candidates: rows of the projection with the user's states, one atomic read. What the archive has of the
   states is put back first, if this store has lost it.
3. Heads of a chunk of conversations, one call per Outbox partition, with their newest messages; only what
   has more unread than those is read further, in either tier.

A page is a cut of the list as it stands at that moment. A conversation that moves up while a client pages
is behind the client's cursor then; the event that moved it is above the position of the first page, so
nothing is lost. Every row is absolute.

Bounded: lists at once, candidates per request, numbers per row.

Spec: §8 (2), §9. Scenarios A16 F4 F5 F8 F10.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from qim_streams.sessions.known_tails import Tail, activity_in
from qim_streams.sessions.ports import (
    Candidate,
    CandidatePage,
    HeadQuery,
    HeadView,
    Position,
    ProjectionPosition,
    SessionUser,
    UserStateReader,
    UserStateStore,
)
from qim_streams.sessions.restoring import RestoredStates, state_of
from qim_streams.sessions.rows import Found, ListRow, Rows
from qim_streams.sessions.rules import ListPlace, decode_place

CHUNK: Final = 100  # candidates of one read
CHUNKS_MAX: Final = 8  # of one request: a filter that finds little ends its page there
LISTS_AT_ONCE_MAX: Final = 32  # in the whole process
WIDE_MAX: Final = 256  # conversations whose place is read from their heads, per user
ALL, EVERY, UNREAD, MUTED, MENTIONED = "all", "every", "unread", "muted", "mentioned"


class ListQuery(NamedTuple):
    """A page. `only`: all, every (hidden ones, too), unread, muted or mentioned. No cursor: from the top."""

    cursor: str | None
    limit: int
    only: str = ALL
    pinned_first: bool = False


class ListPage(NamedTuple):
    """A page. `next_cursor` None: this was the last one."""

    rows: list[ListRow]
    next_cursor: str | None
    position: Position


class SessionLists:
    """Makes lists; holds nothing beyond the reads under way."""

    def __init__(
        self,
        states: UserStateStore,
        archive: UserStateReader,
        rows: Rows,
        positions: ProjectionPosition,
    ) -> None:
        self._states, self._positions, self.rows = RestoredStates(states, archive), positions, rows
        self._slots = asyncio.Semaphore(LISTS_AT_ONCE_MAX)

    # -- pages

    async def page(self, user: SessionUser, shard: int, query: ListQuery) -> ListPage:
        """The page. AdmissionRefused FIELD_INVALID: not a cursor of ours. StoreError: ask again later.

        A first page with `pinned_first` begins with all pinned conversations, beyond `limit`; at their own
        places they come again.
        """
        place = decode_place(query.cursor) if query.cursor else None
        async with self._slots:
            position, page = await self._begin(user, shard, place, min(CHUNK, query.limit))
            rows: list[ListRow] = []
            if query.pinned_first and place is None:
                rows = [row for row in await self.rows.listed(user, page.pinned) if _wanted(row, query.only)]
            on_top = {row.view.conversation_id for row in rows}
            size, wanted = min(CHUNK, query.limit), query.limit + len(rows)
            for _ in range(CHUNKS_MAX):
                chunk, more = await self._chunk(user, place, size, page)
                if chunk:
                    place = ListPlace(chunk[-1].activity, chunk[-1].conversation_id)
                rest = [one for one in chunk if one.conversation_id not in on_top]
                listed = await self.rows.listed(user, rest, hidden=query.only == EVERY)
                rows += [row for row in listed if _wanted(row, query.only)]
                if not more or len(rows) >= wanted:
                    break
                size = min(CHUNK, wanted - len(rows))
                page = await self._states.page(user, place, size)
        return ListPage(rows, place.encode() if more and place is not None else None, position)

    # -- rows, also for those who change states

    async def found(
        self, user: SessionUser, conversation_ids: Sequence[str], above_seq: int = 0
    ) -> list[tuple[bytes | None, Found] | None]:
        """The stored state and all that a row is made of, None where there is no such conversation.

        `above_seq`: messages above it are wanted at once, if there are few.
        """
        wanted = [(user.user_id, HeadQuery(name, above_seq)) for name in conversation_ids]
        heads, stored = await asyncio.gather(
            self.rows.heads(user.tenant_id, wanted), self._states.candidates(user, conversation_ids)
        )
        return [
            None if there is None else (one.state, _found(user, one, *there))
            for one, there in zip(stored, heads, strict=True)
        ]

    async def rows_of(
        self, user: SessionUser, shard: int, conversation_ids: Sequence[str]
    ) -> tuple[int, list[ListRow]]:
        """The rows of these conversations, hidden or not, and W, at or above which all of them are.

        Left out is what does not exist, and what was never for the user.
        """
        async with self._slots:
            watermark = await self.watermark(user, shard)
            found = await self.found(user, conversation_ids)
            theirs = [one[1] for one in found if one is not None and one[1].head.member is not None]
            return watermark, [await self.rows.row(user, one) for one in theirs]

    async def watermark(self, user: SessionUser, shard: int) -> int:
        """W of the user's lane."""
        return await self._positions.watermark(user, shard)

    # -- steps

    async def _begin(
        self, user: SessionUser, shard: int, place: ListPlace | None, limit: int
    ) -> tuple[Position, CandidatePage]:
        """Where the list stands, then its candidates. An empty list is not believed without asking anew."""
        position = await self._positions.position(user, shard)
        page = await self._states.page(user, place, limit)
        if not page.size:
            self._positions.doubt(user)
            position = await self._positions.position(user, shard)
            page = await self._states.page(user, place, limit)
        return position, page

    async def _chunk(
        self, user: SessionUser, place: ListPlace | None, limit: int, page: CandidatePage
    ) -> tuple[list[Candidate], bool]:
        """The candidates of `page`, which was read after `place`, in order; whether there are more behind."""
        merged = page.rows
        if page.wide:
            merged = merged + [one for one in await self._placed(user, page.wide) if _is_after(one, place)]
            merged.sort(key=lambda one: (one.activity, one.conversation_id), reverse=True)
        return merged[:limit], len(page.rows) == limit or len(merged) > limit

    async def _placed(self, user: SessionUser, wide: Sequence[Candidate]) -> list[Candidate]:
        """Wide conversations with the activity of their heads, where the user is still a member."""
        newest = sorted(wide, key=lambda one: one.activity, reverse=True)[:WIDE_MAX]
        heads = await self.rows.heads(
            user.tenant_id, [(user.user_id, HeadQuery(one.conversation_id, 0)) for one in newest]
        )
        return [
            one if there is None else one._replace(activity=_activity(one, *there))
            for one, there in zip(newest, heads, strict=True)
        ]


def _found(user: SessionUser, one: Candidate, head: HeadView, tail: Tail) -> Found:
    state = state_of(user, one.conversation_id, one.state)
    return Found(one.conversation_id, _activity(one, head, tail), state, head, tail)


def _activity(one: Candidate, head: HeadView, tail: Tail) -> int:
    """Where a conversation stands: by its newest message for whoever is a member, else where it stood."""
    if head.member is None or not head.member.active:
        return one.activity
    return max(one.activity, activity_in(head, tail))


def _is_after(one: Candidate, place: ListPlace | None) -> bool:
    return place is None or (one.activity, one.conversation_id) < place


def _wanted(row: ListRow, only: str) -> bool:
    if only == UNREAD:
        return row.unread.messages > 0
    if only == MENTIONED:
        return row.unread.mentions > 0
    return only != MUTED or row.view.state.muted
