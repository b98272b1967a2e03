"""Direct chats: a conversation of two users (or of one with himself), made at its first message.

Invariants: a direct chat has exactly one version, so two writers who make it at once make the same thing
and one of them finds it there; its members never change.

Spec: §4.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from qim_streams.commit.ports import DirectChat
from qim_streams.membership import rules
from qim_streams.membership.bitmaps import MemberSnapshot, Seat, by_shard, changed, snapshot
from qim_streams.membership.changes import ChangeWriter
from qim_streams.membership.ports import (
    Join,
    Member,
    MembershipChange,
    MembershipRow,
    OrdinalDirectory,
    Unsettled,
)
from qim_streams.membership.rows import head_row, member_row

Snapshots = Callable[[str, str, int, MemberSnapshot], object]


class DirectChatMaker:
    """`DirectChats` on the membership store. `on_small` is told the members of what was made."""

    def __init__(
        self, writer: ChangeWriter, directory: OrdinalDirectory, on_small: Snapshots = lambda *_: None
    ) -> None:
        self._writer, self._directory, self._on_small = writer, directory, on_small

    async def ensure_direct(
        self, partition: int, epoch: int, chats: Sequence[DirectChat]
    ) -> Awaitable[object] | None:
        """See `commit.ports.DirectChats`."""
        unique = {(chat.tenant_id, chat.conversation_id): chat for chat in chats}
        peers = await self._peer_ordinals(unique.values())
        plans = [self._direct_change(chat, peers[chat.tenant_id, chat.peer_id]) for chat in unique.values()]
        applied = await self._writer.apply(partition, epoch, [change for change, _ in plans])
        rows: list[MembershipRow] = []
        done: list[Unsettled] = []
        for (change, members), made in zip(plans, applied, strict=True):
            if made is None:
                continue  # it exists already
            head = made.head
            shards = dict.fromkeys(change.bitmaps, head.version)
            self._on_small(
                head.tenant_id, head.conversation_id, head.version, snapshot(shards, change.bitmaps)
            )
            rows += (head_row(head), *(member_row(head, member) for member in members))
            done.append(Unsettled(head.tenant_id, head.conversation_id, head.version))
        if not rows:
            return None
        appended = self._writer.log_now(rows)
        return asyncio.ensure_future(self._writer.finish(partition, epoch, rows, appended, done))

    async def _peer_ordinals(self, chats: Iterable[DirectChat]) -> dict[tuple[str, str], int]:
        by_tenant: dict[str, list[str]] = {}
        for chat in chats:
            by_tenant.setdefault(chat.tenant_id, []).append(chat.peer_id)
        found: dict[tuple[str, str], int] = {}
        for tenant, users in by_tenant.items():
            ordinals = await self._directory.assign(tenant, users)
            found.update(((tenant, user), ordinal) for user, ordinal in zip(users, ordinals, strict=True))
        return found

    def _direct_change(self, chat: DirectChat, peer_ordinal: int) -> tuple[MembershipChange, list[Member]]:
        joins = {chat.sender_id: Join(chat.sender_id, chat.sender_ordinal, rules.MEMBER)}
        joins.setdefault(chat.peer_id, Join(chat.peer_id, peer_ordinal, rules.MEMBER))
        now_ms = self._writer.around.now_ms()
        head = rules.new_head(rules.DIRECT, {}, len(joins), now_ms) | {"creator_id": chat.sender_id}
        seats = by_shard(
            chat.tenant_id,
            [Seat(join.user_id, join.ordinal) for join in joins.values()],
            self._writer.limits.mailbox_shards,
        )
        change = MembershipChange(
            chat.tenant_id,
            chat.conversation_id,
            0,
            self._writer.around.new_token(),
            now_ms,
            joins=list(joins.values()),
            bitmaps=changed({}, seats, {}),
            head=head,
        )
        members = [Member(j.user_id, j.ordinal, j.role, True, ((0, None),)) for j in joins.values()]
        return change, members
