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
from qim_streams.sessions.known_tails import KnownTails, Tail, activity_in
from qim_streams.sessions.ports import (
    Candidate,
    ConversationHeads,
    HeadQuery,
    HeadView,
    SessionUser,
    UserStateStore,
)
from qim_streams.sessions.restoring import state_of
from qim_streams.sessions.rules import RowView, TailMessage, TailWalk, Unread, is_hidden
from qim_streams.sessions.state import UserConversationState
from qim_streams.sessions.tails import Tails

ROWS_KEPT: Final = 20_000  # about two kilobytes each, with their bytes on the wire
_new = tuple.__new__


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
    """A row, and all that it was made of. `asked` asks for the head with everything that is known."""

    candidate: Candidate
    asked: tuple[str, HeadQuery]
    found: Found
    peer: bytes | None
    row: ListRow


class _Asked(NamedTuple):
    """A candidate, how its head is asked for, and what is known of it."""

    candidate: Candidate
    asked: tuple[str, HeadQuery]
    state: UserConversationState
    tail: Tail | None
    made: _Made | None


class Rows:
    """Makes rows. Shared by all users of a process."""

    def __init__(self, heads: ConversationHeads, tails: Tails, states: UserStateStore) -> None:
        self._heads, self._tails, self._read_seqs = heads, tails, states.read_seqs
        self._known = KnownTails()
        self._made: LruMap[tuple[str, int], dict[str, _Made]] = LruMap(ROWS_KEPT, ROWS_KEPT)

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

    # -- rows

    async def listed(
        self, user: SessionUser, candidates: Sequence[Candidate], *, hidden: bool = False
    ) -> list[ListRow]:
        """Rows of those that exist and were ever for the user; of `hidden` ones only when asked for."""
        if not candidates:
            return []
        made = self._made.get((user.tenant_id, user.ordinal)) or {}
        asked = [self._asked(user, one, made.get(one.conversation_id)) for one in candidates]
        heads = await self._heads.of_users(user.tenant_id, [one.asked for one in asked])
        work = [
            (one, self._found(user, one, head))
            for one, head in zip(asked, heads, strict=True)
            if head is not None and head.member is not None
            if hidden or not is_hidden(one.state, head.committed_seq)
        ]
        peers = await self._peers(user, [found for _, found in work])
        rows = [
            old.row if (old := ask.made) is not None and old.found is found and old.peer == peer else None
            for (ask, found), peer in zip(work, peers, strict=True)
        ]
        if None in rows:
            await self._make(user, work, peers, rows)
        return [row for row in rows if row is not None]

    async def row(self, user: SessionUser, found: Found) -> ListRow:
        """The row of a conversation, hidden or not."""
        (peer,) = await self._peers(user, [found])
        walk = TailWalk(view_of(found))
        await self.walk(user.tenant_id, [(found, walk)])
        return _row(user, found, walk, peer)

    def _asked(self, user: SessionUser, one: Candidate, made: _Made | None) -> _Asked:
        """How to ask for a candidate's head; `made` is the row that is kept of it."""
        tail = self._known.get(user.tenant_id, one.conversation_id)
        if made is not None and made.found.tail is tail and made.candidate == one:
            return _new(_Asked, (one, made.asked, made.found.state, tail, made))
        state = state_of(user, one.conversation_id, one.state)
        query, tail = self._known.query(user.tenant_id, _query(state))
        return _new(_Asked, (one, (user.user_id, query), state, tail, None))

    def _found(self, user: SessionUser, one: _Asked, head: HeadView) -> Found:
        """What the row is made of; the very object that it was made of before, if nothing is new."""
        if one.made is not None and one.made.found.head is head:
            return one.made.found
        name, activity, _ = one.candidate
        tail = self._known.of_head(user.tenant_id, name, head, one.tail)
        return _new(Found, (name, activity, one.state, head, tail))

    async def _make(
        self,
        user: SessionUser,
        work: Sequence[tuple[_Asked, Found]],
        peers: Sequence[bytes | None],
        rows: list[ListRow | None],
    ) -> None:
        """Fill in the rows that are not kept, and keep them."""
        walks = {index: TailWalk(view_of(work[index][1])) for index, row in enumerate(rows) if row is None}
        tails = await self.walk(user.tenant_id, [(work[index][1], walk) for index, walk in walks.items()])
        kept = self._made.get((user.tenant_id, user.ordinal)) or {}
        for (index, walk), tail in zip(walks.items(), tails, strict=True):
            (ask, found), peer = work[index], peers[index]
            row = rows[index] = _row(user, found, walk, peer)
            found = found._replace(tail=tail)
            query, _ = self._known.query(user.tenant_id, _query(found.state, found.head))
            made = _Made(ask.candidate, (user.user_id, query), found, peer, row)
            kept[found.conversation_id] = made
        self._made.put((user.tenant_id, user.ordinal), kept, len(kept))

    async def walk(self, tenant_id: str, walks: Sequence[tuple[Found, TailWalk]]) -> list[Tail]:
        """Let walks look at all that they want to; the tail of each as it is known now."""
        tails = [one.tail for one, _ in walks]
        unfinished = []
        for index, (one, walk) in enumerate(walks):
            if one.tail.seq == walk.view.top:
                walk.feed(one.tail.messages)
            if not walk.is_done:
                unfinished.append(index)
        if unfinished:
            more = await asyncio.gather(*(self._finish(tenant_id, *walks[index]) for index in unfinished))
            for index, tail in zip(unfinished, more, strict=True):
                tails[index] = tail
        return tails

    async def _finish(self, tenant_id: str, one: Found, walk: TailWalk) -> Tail:
        more: list[TailMessage | None] = []
        while (span := walk.next_span()) is not None:
            messages = await self._tails.read(tenant_id, one.conversation_id, span)
            more += [messages.get(seq) for seq in range(span.high, span.low - 1, -1)]
            walk.take(span, messages)
        if one.tail.seq != walk.view.top:
            return one.tail
        return self._known.longer(tenant_id, one.conversation_id, one.tail, more)

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


def _query(state: UserConversationState, seen: HeadView | None = None) -> HeadQuery:
    return HeadQuery(state.conversation_id, max(state.read_seq, state.deleted_to_seq), seen=seen)


def _row(user: SessionUser, one: Found, walk: TailWalk, peer: bytes | None) -> ListRow:
    head = one.head
    read_seq = None
    if head.peer_id is not None and head.peer_ordinal is not None:
        other = SessionUser(user.tenant_id, head.peer_id, head.peer_ordinal)
        read_seq = state_of(other, one.conversation_id, peer).read_seq
    named = tuple(walk.mention_seqs[: limits.SESSION_MENTIONS_MAX])
    activity = one.activity or activity_in(head, one.tail)
    return ListRow(walk.view, activity, walk.unread(), walk.last, read_seq, named)
