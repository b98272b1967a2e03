"""The stores of history under test: memory, or a real Redis beside a RocksDB archive with a second reader."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from qim_streams.archive.memory_archive import MemoryArchive
from qim_streams.archive.ports import Archive, ArchivedMessage, ArchiveReader
from qim_streams.archive.rocksdb_archive import RocksArchive
from qim_streams.archive.rocksdb_reader import RocksArchiveReader
from qim_streams.commit.keys import base, conversation
from qim_streams.commit.ports import CommitStatus, Confirmed
from qim_streams.history.ports import HistoryStore
from qim_streams.history.redis_history import RedisHistoryStore
from qim_streams.history.service import HistoryService
from qim_streams.membership.bitmaps import Seat, by_shard, changed
from qim_streams.membership.ports import Join, MembershipChange
from qim_streams.redis_tier import RedisClient
from qim_streams.testing.memory_history import MemoryHistoryStore
from tests.support.hot_tier import (
    SHARDS,
    TENANT,
    HotTier,
    memory_tier,
    message_id,
    partition_of,
    redis_tier,
    request,
)


def memory_past() -> tuple[HotTier, HistoryStore]:
    """The fakes."""
    tier = memory_tier()
    assert tier.memory is not None
    return tier, MemoryHistoryStore(tier.memory)


def redis_past(client: RedisClient) -> tuple[HotTier, HistoryStore]:
    """The adapters on a real Redis."""
    return redis_tier(client), RedisHistoryStore(client, partition_of)


@dataclass
class Tiers:
    """Both tiers, with the few moves that make a past."""

    hot: HotTier
    store: HistoryStore
    archive: Archive
    archive_reader: ArchiveReader
    said: int = 0

    def service(self) -> HistoryService:
        """A service over both."""
        return HistoryService(self.store, self.archive_reader)

    async def say(
        self, chat: str, sender: str, count: int = 1, body: bytes = b"hi", *, confirm: bool = True
    ) -> list[tuple[int, bytes]]:
        """Messages by the commit script; (seq, message_id) of each."""
        partition = partition_of(TENANT, chat)
        made = []
        for _ in range(count):
            self.said += 1
            made.append(request(chat, sender, f"m{self.said}", message_id(self.said), body))
        results = await self.hot.conversations.commit(partition, self.hot.epochs[partition], made)
        assert all(one.status is CommitStatus.NEW for one in results)
        if confirm:
            await self.confirm(chat, *(one.message_id for one in results))
        return [(one.conversation_seq, one.message_id) for one in results]

    async def confirm(self, chat: str, *ids: bytes) -> None:
        """The Outbox has these messages."""
        partition = partition_of(TENANT, chat)
        await self.hot.conversations.confirm(partition, self.hot.epochs[partition], Confirmed(ids, 0))

    async def change(self, chat: str, *, joins: Sequence[str] = (), leaves: Sequence[str] = ()) -> None:
        """Members come or go, at the present number."""
        partition = partition_of(TENANT, chat)
        head = await self.hot.membership.conversation(TENANT, chat)
        assert head is not None
        ordinals = await self.hot.directory.assign(TENANT, list(joins))
        coming = [Join(user, at, "member") for user, at in zip(joins, ordinals, strict=True)]
        going = await self.hot.membership.members(TENANT, chat, leaves)
        into = by_shard(TENANT, [Seat(one.user_id, one.ordinal) for one in coming], SHARDS)
        out = by_shard(TENANT, [Seat(one.user_id, one.ordinal) for one in going], SHARDS)
        (version_map,) = await self.hot.reader.versions([(TENANT, chat, head.version)])
        shards = [shard for shard in {*into, *out} if shard in (version_map or {})]
        blobs = await self.hot.reader.bitmaps(
            [(TENANT, chat, shard, (version_map or {})[shard]) for shard in shards]
        )
        current = {shard: blob for shard, blob in zip(shards, blobs, strict=True) if blob is not None}
        wanted = MembershipChange(
            TENANT, chat, head.version, self.hot.token(), 1_000,
            joins=coming, leaves=list(leaves), bitmaps=changed(current, into, out),
        )  # fmt: skip
        (made,) = await self.hot.membership.apply(partition, self.hot.epochs[partition], [wanted])
        assert made is not None

    async def archive_up_to(self, chat: str, seq: int) -> None:
        """The archiver has come to `seq`."""
        places = [(TENANT, chat, at) for at in range(1, seq + 1)]
        records = await self.hot.conversations.records(places)
        batch = [
            ArchivedMessage(*place, row)
            for place, row in zip(places, records, strict=True)
            if row is not None
        ]
        await self.archive.store(partition_of(TENANT, chat), batch, seq)

    async def trim(self, chat: str, seqs: Sequence[int]) -> None:
        """Messages leave the hot tier."""
        if self.hot.memory is not None:
            for seq in seqs:
                self.hot.memory.state_of((TENANT, chat)).records[TENANT, chat].pop(seq, None)
        elif seqs:
            assert self.hot.client is not None
            key = f"{base(partition_of(TENANT, chat))}r:{conversation(TENANT, chat)}"
            await self.hot.client.hdel(key, *(str(seq) for seq in seqs))

    async def skip(self, chat: str, count: int) -> None:
        """Numbers are given out and used by nobody."""
        head = await self.hot.membership.conversation(TENANT, chat)
        assert head is not None
        if self.hot.memory is not None:
            self.hot.memory.state_of((TENANT, chat)).heads[TENANT, chat].seq += count
        else:
            assert self.hot.client is not None
            key = f"{base(partition_of(TENANT, chat))}c:{conversation(TENANT, chat)}"
            await self.hot.client.hset(key, "seq", str(head.seq + count))


@asynccontextmanager
async def tiers_of(kind: str, client: RedisClient, folder: Path) -> AsyncIterator[Tiers]:
    """`memory`, or `real`: Redis, and RocksDB written by one and read by another instance."""
    if kind == "memory":
        archive = MemoryArchive()
        yield Tiers(*memory_past(), archive, archive)
        return
    written = await RocksArchive.open(folder / "archive")
    beside = RocksArchiveReader(folder / "archive")
    try:
        yield Tiers(*redis_past(client), written, beside)
    finally:
        await beside.close()
        await written.close()
