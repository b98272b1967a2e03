"""Rows of conversations: heads, messages and peers put together, from as little as possible.

What is read every time: the head with the user's member row, and how far the peer of a direct chat has
read. What is kept: the messages at the end of a conversation (`known_tails`) and rows as they were made, each
with everything that it was made of. A row follows from that, so one that was made of the same is the same.

Spec: §9.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from qim_streams import limits
from qim_streams.lru import LruMap
from qim_streams.sessions.known_tails import KnownTails, Tail
from qim_streams.sessions.ports import (
    Candidate,
    ConversationHeads,
    HeadQuery,
    HeadView,
    SessionUser,
    UserStateStore,
)
from qim_streams.sessions.restoring import state_of
from qim_streams.sessions.rules import RowView, TailMessage, TailWalk, Unread
from qim_streams.sessions.state import UserConversationState
from qim_streams.sessions.tails import Tails

ROWS_KEPT: Final = 20_000  # about two kilobytes each, with their bytes on the wire
_OF_HEAD: Final = HeadView._fields.index("records")


@dataclass(slots=True)
class ListRow:
    """A conversation in a list. `peer_read_seq`: of the other member of a direct chat, None if not known.

    `mention_seqs`: unread messages that name the user, the newest first. `encoded` is for whoever puts the
    row on the wire: rows are shared and never changed, so it may be kept there.
    """

    view: RowView
    activity: int
    unread: Unread
    last: TailMessage | None
    peer_read_seq: int | None = None
    mention_seqs: tuple[int, ...] = ()
    encoded: bytes | None = None


class Found(NamedTuple):
    """A conversation of a user, with everything that its row is made of but the peer's state."""

    conversation_id: str
    activity: int
    state: UserConversationState
    head: HeadView
    tail: Tail


class _Made(NamedTuple):
    of: Found
    peer: bytes | None
    row: ListRow


class Rows:
    """Makes rows. Shared by all users of a process."""

    def __init__(self, heads: ConversationHeads, tails: Tails, states: UserStateStore) -> None:
        self._heads, self._tails, self._read_seqs = heads, tails, states.read_seqs
        self._known = KnownTails()
        self._made: LruMap[tuple[str, int, str], _Made] = LruMap(ROWS_KEPT, ROWS_KEPT)

    # -- heads

    async def heads(
        self, tenant_id: str, wanted: Sequence[tuple[str, HeadQuery]]
    ) -> list[tuple[HeadView, Tail] | None]:
        """The head and tail of each (user, conversation); None where there is nothing to tell."""
        if not wanted:
            return []
        asked = [self._known.query(tenant_id, one) for _, one in wanted]
        heads = await self._heads.of_users(
            tenant_id, [(user, one) for (user, _), (one, _) in zip(wanted, asked, strict=True)]
        )
        of_head = self._known.of_head
        return [
            None if head is None else (head, of_head(tenant_id, one.conversation_id, head, known))
            for (one, known), head in zip(asked, heads, strict=True)
        ]

    async def found(self, user: SessionUser, candidates: Sequence[Candidate]) -> list[Found]:
        """Those of the candidates that exist and were ever for the user."""
        states = [state_of(user, one.conversation_id, one.state) for one in candidates]
        wanted = [
            (user.user_id, HeadQuery(state.conversation_id, max(state.read_seq, state.deleted_to_seq)))
            for state in states
        ]
        heads = await self.heads(user.tenant_id, wanted)
        return [
            Found(one.conversation_id, one.activity, state, *head)
            for one, state, head in zip(candidates, states, heads, strict=True)
            if head is not None and head[0].member is not None
        ]

    # -- rows

    async def rows(self, user: SessionUser, found: Sequence[Found]) -> list[ListRow]:
        """The row of each conversation, hidden ones included."""
        peers = await self._peers(user, found)
        rows = [self._kept(user, one, peer) for one, peer in zip(found, peers, strict=True)]
        walks = {
            index: TailWalk(view_of(one))
            for index, (one, row) in enumerate(zip(found, rows, strict=True))
            if row is None
        }
        if walks:
            await self.walk(user.tenant_id, [(found[index], walk) for index, walk in walks.items()])
        for index, walk in walks.items():
            one, peer = found[index], peers[index]
            row = rows[index] = _row(user, one, walk, peer)
            self._made.put((user.tenant_id, user.ordinal, one.conversation_id), _Made(one, peer, row))
        return [row for row in rows if row is not None]

    def _kept(self, user: SessionUser, one: Found, peer: bytes | None) -> ListRow | None:
        """The row that was made of the very same things before."""
        made = self._made.get((user.tenant_id, user.ordinal, one.conversation_id))
        return made.row if made is not None and made.peer == peer and _same(made.of, one) else None

    async def walk(self, tenant_id: str, walks: Sequence[tuple[Found, TailWalk]]) -> None:
        """Let walks look at all that they want to."""
        unfinished = []
        for one, walk in walks:
            if one.tail.seq == walk.view.top:
                walk.feed(one.tail.messages)
            if not walk.is_done:
                unfinished.append(self._finish(tenant_id, one, walk))
        if unfinished:
            await asyncio.gather(*unfinished)

    async def _finish(self, tenant_id: str, one: Found, walk: TailWalk) -> None:
        more: list[TailMessage | None] = []
        while (span := walk.next_span()) is not None:
            messages = await self._tails.read(tenant_id, one.conversation_id, span)
            more += [messages.get(seq) for seq in range(span.high, span.low - 1, -1)]
            walk.take(span, messages)
        if one.tail.seq == walk.view.top:
            self._known.longer(tenant_id, one.conversation_id, one.tail, more)

    async def _peers(self, user: SessionUser, found: Sequence[Found]) -> list[bytes | None]:
        """The stored state of the other member of each direct chat."""
        asked = [
            (index, SessionUser(user.tenant_id, head.peer_id, head.peer_ordinal), one.conversation_id)
            for index, one in enumerate(found)
            if (head := one.head).peer_id is not None and head.peer_ordinal is not None
        ]
        states: list[bytes | None] = [None] * len(found)
        if asked:
            stored = await self._read_seqs([(peer, name) for _, peer, name in asked])
            for (index, _, _), data in zip(asked, stored, strict=True):
                states[index] = data
        return states


def view_of(one: Found) -> RowView:
    """What a row is made of, besides the messages."""
    head = one.head
    return RowView(
        one.conversation_id,
        head.kind,
        head.name,
        head.peer_id,
        head.dismissed,
        head.allocated_seq,
        head.committed_seq,
        head.history_policy,
        head.member,
        one.state,
    )


def _same(made: Found, now: Found) -> bool:
    """Whether the same row follows: all but the records, for which number and id of the tail stand."""
    return (
        made.activity == now.activity
        and made.tail[:2] == now.tail[:2]
        and (made.head is now.head or made.head[:_OF_HEAD] == now.head[:_OF_HEAD])
        and made.state == now.state
    )


def _row(user: SessionUser, one: Found, walk: TailWalk, peer: bytes | None) -> ListRow:
    head = one.head
    read_seq = None
    if head.peer_id is not None and head.peer_ordinal is not None:
        other = SessionUser(user.tenant_id, head.peer_id, head.peer_ordinal)
        read_seq = state_of(other, one.conversation_id, peer).read_seq
    named = tuple(walk.mention_seqs[: limits.SESSION_MENTIONS_MAX])
    activity = one.activity or head.activity
    return ListRow(walk.view, activity, walk.unread(), walk.last, read_seq, named)
