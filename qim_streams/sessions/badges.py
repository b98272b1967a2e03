"""What is unread in all, per user: the totals of a list, and badges of many users at once.

Nothing is stored: the number is counted from what is there (`docs/decisions`, "badges are counted"). Only
conversations that end above what the user has read, cleared or hidden cost more than a comparison in the
store, and the messages at their ends are shared by all who are asked about.

Exact: conversations are counted to `limits.UNREAD_PRECISE_LIMIT` each, the newest `LOOKED_MAX` of a user and
the wide ones; whatever lies beyond makes the answer say that it is not exact.

Spec: §7 (AUTH_OK), §9 (UserBadgeState). Scenarios F5 F8.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from qim_streams.sessions.badge_ports import Badge, BadgeQuery
from qim_streams.sessions.ports import (
    Candidate,
    CandidatePage,
    HeadQuery,
    ProjectionPosition,
    SessionUser,
    UserStateReader,
    UserStateStore,
)
from qim_streams.sessions.restoring import RestoredStates, state_of
from qim_streams.sessions.rows import Found, Rows, view_of
from qim_streams.sessions.rules import TailWalk, Totals, Unread, is_hidden, totals
from qim_streams.sessions.state import NOT_HIDDEN, UserConversationState

LOOKED_MAX: Final = 500  # conversations of a user, the newest; a comparison each when nothing is unread
WIDE_MAX: Final = 256  # beside them, conversations whose place is in their heads
USERS_AT_ONCE_MAX: Final = 16  # of one call; the next ones wait, so that nobody waits long behind it
COUNTS_AT_ONCE_MAX: Final = 16  # calls, in the whole process


class UserTotals(NamedTuple):
    """Totals that hold everything up to `mailbox_seq` and the user's change `order`."""

    mailbox_seq: int
    order: int
    totals: Totals


class _Counted(NamedTuple):
    order: int
    totals: Totals


class Badges:
    """`BadgeReader` and the totals of lists, on the stores of the session list."""

    def __init__(
        self,
        states: UserStateStore,
        archive: UserStateReader,
        rows: Rows,
        positions: ProjectionPosition,
    ) -> None:
        self._states, self._rows, self._positions = RestoredStates(states, archive), rows, positions
        self._slots = asyncio.Semaphore(COUNTS_AT_ONCE_MAX)

    async def totals(self, user: SessionUser, shard: int) -> UserTotals:
        """The totals of a user. The position is read before what it holds for. StoreError: ask again."""
        async with self._slots:
            position = await self._positions.position(user, shard)
            (counted,) = await self._count([BadgeQuery(user, shard)], [position.complete], muted=True)
        return UserTotals(position.seq, *counted)

    async def badges(self, wanted: Sequence[BadgeQuery]) -> list[Badge]:
        """See `BadgeReader`."""
        found: list[Badge] = []
        for start in range(0, len(wanted), USERS_AT_ONCE_MAX):
            part = wanted[start : start + USERS_AT_ONCE_MAX]
            async with self._slots:
                whole = await self._positions.whole([(one.user, one.shard) for one in part])
                counted = await self._count(part, whole, muted=False)
            found += [Badge(one.totals.unread, one.totals.complete) for one in counted]
        return found

    # -- steps

    async def _count(
        self, wanted: Sequence[BadgeQuery], whole: Sequence[bool], *, muted: bool
    ) -> list[_Counted]:
        """What is unread for each user; of `muted` conversations only when asked for."""
        pages = list(await asyncio.gather(*(self._page(one.user, one.shard) for one in wanted)))
        looked = await asyncio.gather(
            *(self._looked_at(one, page) for one, page in zip(wanted, pages, strict=True))
        )
        counts = await self._unread(
            [(one.user, of_user) for one, of_user in zip(wanted, looked, strict=True)], muted
        )
        return [
            _Counted(page.order, totals(counts[index], whole[index] and page.size <= len(looked[index])))
            for index, page in enumerate(pages)
        ]

    async def _page(self, user: SessionUser, shard: int) -> CandidatePage:
        """The user's newest conversations; an empty list is not believed without asking anew."""
        page = await self._states.page(user, None, LOOKED_MAX)
        if page.size:
            return page
        self._positions.doubt(user)
        await self._positions.whole([(user, shard)])
        return await self._states.page(user, None, LOOKED_MAX)

    async def _looked_at(self, one: BadgeQuery, page: CandidatePage) -> list[Candidate]:
        """The conversations to look at; those that the caller knows of may not have a row yet."""
        found = [*page.rows, *page.wide[:WIDE_MAX]]
        if one.conversation_ids:
            listed = {candidate.conversation_id for candidate in found}
            more = [name for name in one.conversation_ids if name not in listed]
            if more:
                stored = await self._states.load(one.user, more)
                found += [Candidate(name, 0, data) for name, data in zip(more, stored, strict=True)]
        return found

    async def _unread(
        self, of_users: Sequence[tuple[SessionUser, Sequence[Candidate]]], muted: bool
    ) -> list[list[tuple[Unread, bool]]]:
        """(unread, whether muted) of every conversation of each user that has any."""
        asked: dict[str, list[tuple[int, str, UserConversationState]]] = {}
        for index, (user, candidates) in enumerate(of_users):
            mine = asked.setdefault(user.tenant_id, [])
            for name, _, data in candidates:
                state = state_of(user, name, data)
                if muted or not state.muted:
                    mine.append((index, user.user_id, state))
        counts: list[list[tuple[Unread, bool]]] = [[] for _ in of_users]
        for tenant_id, of_tenant in asked.items():
            heads = await self._rows.heads(tenant_id, [(who, _query(state)) for _, who, state in of_tenant])
            walks: list[tuple[Found, TailWalk]] = []
            owners: list[int] = []
            for (index, _, state), head in zip(of_tenant, heads, strict=True):
                if head is None or head[0].member is None or is_hidden(state, head[0].committed_seq):
                    continue
                found = Found(state.conversation_id, 0, state, *head)
                walks.append((found, TailWalk(view_of(found), shown=False)))
                owners.append(index)
            await self._rows.walk(tenant_id, walks)
            for index, (found, walk) in zip(owners, walks, strict=True):
                counts[index].append((walk.unread(), found.state.muted))
        return counts


def _query(state: UserConversationState) -> HeadQuery:
    """Nothing is unread in a conversation that ends where the user has read, cleared or hidden it."""
    above = max(state.read_seq, state.deleted_to_seq)
    skip_to = above if state.hidden_at_seq == NOT_HIDDEN else max(above, state.hidden_at_seq)
    return HeadQuery(state.conversation_id, above, skip_to=skip_to)
