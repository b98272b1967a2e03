"""Who else is in a conversation, for receipts and typing: how many have read, and whom to tell.

Both are bounded by members looked at. Read positions are those of UserConversationState; that somebody has
answered says as much, but is not looked for.

Spec: §9.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from qim_streams import limits
from qim_streams.errors import AdmissionRefused
from qim_streams.lru import LruMap
from qim_streams.membership.ports import Member
from qim_streams.membership.rules import is_visible, visible_ranges
from qim_streams.sessions.ports import ConversationHeads, HeadQuery, SessionUser, UserStateStore
from qim_streams.sessions.restoring import state_of

PAGE = 500
COUNTS_AT_ONCE_MAX = 8  # in the whole process
TYPERS_KNOWN_MAX = 20_000


class MemberPages(Protocol):
    """What is needed of a `MembershipStore`."""

    async def page(
        self, tenant_id: str, conversation_id: str, after_user_id: str, limit: int
    ) -> list[Member]:
        """Active members with an id above `after_user_id`, ascending by the bytes of the id."""


class Readers(NamedTuple):
    """How many of `others` have read; `user_ids` are the first of them by id. Not `exact`: there are more."""

    read: int
    others: int
    exact: bool
    user_ids: list[str]


class Receipts:
    """Reads members and their positions. `now_ms` is a clock for the rate of typing."""

    def __init__(
        self,
        members: MemberPages,
        heads: ConversationHeads,
        states: UserStateStore,
        now_ms: Callable[[], int],
    ) -> None:
        self._members, self._heads, self._states, self._now_ms = members, heads, states, now_ms
        self._slots = asyncio.Semaphore(COUNTS_AT_ONCE_MAX)
        self._typed: LruMap[tuple[str, str, str], int] = LruMap(TYPERS_KNOWN_MAX, TYPERS_KNOWN_MAX)

    async def readers(self, user: SessionUser, conversation_id: str, seq: int) -> Readers:
        """Who else has read up to `seq`. AdmissionRefused NO_CONVERSATION, NOT_MEMBER; StoreError.

        Only who may see the message may ask.
        """
        async with self._slots:
            (head,) = await self._heads.heads(
                user.tenant_id, user.user_id, [HeadQuery(conversation_id, 2**53)]
            )
            if head is None:
                raise AdmissionRefused("NO_CONVERSATION", "there is no such conversation")
            if head.member is None or not is_visible(visible_ranges(head.member, head.history_policy), seq):
                raise AdmissionRefused("NOT_MEMBER", "the message is not for you")
            return await self._count(user, conversation_id, seq)

    async def _count(self, user: SessionUser, conversation_id: str, seq: int) -> Readers:
        read, others, after, named = 0, 0, "", list[str]()
        while others < limits.READERS_COUNTED_MAX:
            page = await self._members.page(user.tenant_id, conversation_id, after, PAGE)
            part = [one for one in page if one.user_id != user.user_id]
            found = await self._have_read(user.tenant_id, conversation_id, part, seq)
            read, others = read + len(found), others + len(part)
            named += found[: limits.READERS_SHOWN_MAX - len(named)]
            if len(page) < PAGE:
                return Readers(read, others, True, named)
            after = page[-1].user_id
        return Readers(read, others, False, named)

    async def _have_read(
        self, tenant_id: str, conversation_id: str, members: Sequence[Member], seq: int
    ) -> list[str]:
        users = [SessionUser(tenant_id, one.user_id, one.ordinal) for one in members]
        stored = await self._states.read_seqs([(one, conversation_id) for one in users])
        return [
            one.user_id
            for one, data in zip(users, stored, strict=True)
            if data is not None and state_of(one, conversation_id, data).read_seq >= seq
        ]

    def may_type(self, user: SessionUser, conversation_id: str) -> bool:
        """Whether others may hear now that the user is writing; if so, the next time is later."""
        key, now = (user.tenant_id, user.user_id, conversation_id), self._now_ms()
        last = self._typed.get(key)
        if last is not None and 0 <= now - last < limits.TYPING_INTERVAL_MS:
            return False
        self._typed.put(key, now)
        return True

    async def audience(self, user: SessionUser, conversation_id: str) -> list[SessionUser]:
        """Who hears that the user is writing: the others, if he is a member and they are not too many."""
        most = limits.TYPING_MEMBERS_MAX
        page = await self._members.page(user.tenant_id, conversation_id, "", most + 1)
        if len(page) > most or all(one.user_id != user.user_id for one in page):
            return []
        return [
            SessionUser(user.tenant_id, one.user_id, one.ordinal)
            for one in page
            if one.user_id != user.user_id
        ]
