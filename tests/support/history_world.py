"""Conversations with a past, on the memory stores: members who come and go, messages, holes, both tiers.

`HistoryWorld` writes what writers, relay and archiver would have written, by hand and one step at a time,
so that a test can stop between any two of them.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from qim_streams.archive.memory_archive import MemoryArchive
from qim_streams.archive.ports import ArchivedMessage
from qim_streams.commit.rules import Head
from qim_streams.history.rules import PageQuery
from qim_streams.history.service import HistoryReader, HistoryService
from qim_streams.membership.ports import Intervals, Member
from qim_streams.records import MessageRecord
from qim_streams.testing.memory_history import MemoryHistoryStore
from qim_streams.testing.memory_tier import MemoryGroup, MemoryHotTier

TENANT, CHAT = "acme", "team"


def message_id(seq: int) -> bytes:
    """The id of a message, made from its number."""
    return seq.to_bytes(16, "big")


def record(seq: int, body: bytes = b"x", chat: str = CHAT, tenant: str = TENANT, state: int = 0) -> bytes:
    """A MessageRecord's bytes."""
    identity = message_id(seq)
    return MessageRecord(
        seq, 1, tenant, chat, identity, identity, "sam", 64, "d", f"m{seq}", 1, 77, 0, state, body
    ).encode()


class HistoryWorld:
    """One hot tier and one archive; `service` reads them."""

    def __init__(self) -> None:
        self.tier = MemoryHotTier(lambda tenant, chat: 0)
        self.store, self.archive = MemoryHistoryStore(self.tier), MemoryArchive()
        self.slept = 0.0
        self.while_waiting: Callable[[], object] | None = None  # done once, when a page waits

    def service(self) -> HistoryService:
        """A service over both tiers; it waits in no time, and `slept` says how long."""
        return HistoryService(self.store, self.archive, sleep=self._sleep, monotonic=lambda: self.slept)

    async def _sleep(self, seconds: float) -> None:
        self.slept += seconds
        hook, self.while_waiting = self.while_waiting, None
        if hook is not None:
            hook()
        await asyncio.sleep(0)

    def group(
        self, members: dict[str, Intervals], policy: str = "joined", chat: str = CHAT, tenant: str = TENANT
    ) -> None:
        """A conversation and everybody who ever was in it, by their intervals."""
        key, state = (tenant, chat), self.tier.partition(0)
        state.heads.setdefault(key, Head(kind="group"))
        self.tier.groups[key] = MemoryGroup(fields={"history_policy": policy})
        state.members[key] = {
            user: Member(user, 64, "member", bool(ranges) and ranges[-1][1] is None, ranges)
            for user, ranges in members.items()
        }

    def say(self, count: int = 1, body: bytes = b"x", chat: str = CHAT, *, pending: bool = False) -> int:
        """Messages get the next numbers; `pending`: not in the Outbox yet. Returns the last number."""
        key, state = (TENANT, chat), self.tier.partition(0)
        head, rows = state.heads[key], state.records.setdefault(key, {})
        for _ in range(count):
            head.seq += 1
            head.last_id = message_id(head.seq)
            rows[head.seq] = record(head.seq, body, chat)
            if pending:
                state.pending[head.last_id] = (*key, head.seq)
        return head.seq

    def confirm(self, *seqs: int) -> None:
        """Messages are known to be in the Outbox."""
        for seq in seqs:
            del self.tier.partition(0).pending[message_id(seq)]

    def skip(self, count: int = 1, chat: str = CHAT) -> None:
        """Numbers that are given out and that no message has."""
        self.tier.partition(0).heads[TENANT, chat].seq += count

    async def archive_up_to(self, seq: int, chat: str = CHAT) -> None:
        """The archiver has come to `seq`."""
        rows = self.tier.partition(0).records.get((TENANT, chat), {})
        batch = [ArchivedMessage(TENANT, chat, at, row) for at, row in sorted(rows.items()) if at <= seq]
        await self.archive.store(0, batch, seq)

    def trim(self, *seqs: int, chat: str = CHAT) -> None:
        """Messages leave the hot tier; only what is archived may."""
        for seq in seqs:
            assert (TENANT, chat, seq) in self.archive.messages
            self.tier.partition(0).records[TENANT, chat].pop(seq, None)

    def edit(self, seq: int, body: bytes, state: int = 1, chat: str = CHAT) -> None:
        """A message changes in the hot tier."""
        self.tier.partition(0).records[TENANT, chat][seq] = record(seq, body, chat, state=state)

    def end(self, user: str, seq: int, chat: str = CHAT) -> None:
        """A member leaves at `seq`."""
        members = self.tier.partition(0).members[TENANT, chat]
        ranges = members[user].intervals
        members[user] = replace(members[user], active=False, intervals=(*ranges[:-1], (ranges[-1][0], seq)))


def reader(user: str = "ann", chat: str = CHAT, tenant: str = TENANT) -> HistoryReader:
    """Who reads."""
    return HistoryReader(tenant, user, chat)


def newer(anchor: int | None = None, limit: int = 100, limit_bytes: int = 10**6) -> PageQuery:
    """A page towards the end."""
    return PageQuery(True, anchor, limit, limit_bytes)


def older(anchor: int | None = None, limit: int = 100, limit_bytes: int = 10**6) -> PageQuery:
    """A page towards the beginning."""
    return PageQuery(False, anchor, limit, limit_bytes)
