"""The stores of the hot tier under test, in memory or on a real Redis, behind one face."""

import struct
from dataclasses import dataclass, field

from qim_streams.commit import keys
from qim_streams.commit.calls import PartitionCalls
from qim_streams.commit.ports import CommitRequest, ConversationStore
from qim_streams.commit.redis_store import RedisConversationStore
from qim_streams.commit.rules import payload_digest
from qim_streams.membership.bitmaps import Seat, by_shard, changed
from qim_streams.membership.ports import (
    Join,
    MembershipChange,
    MembershipReader,
    MembershipStore,
    OrdinalDirectory,
)
from qim_streams.membership.redis_directory import RedisOrdinalDirectory
from qim_streams.membership.redis_reader import RedisMembershipReader
from qim_streams.membership.redis_store import RedisMembershipStore
from qim_streams.membership.rules import new_head
from qim_streams.ownership.ports import Grant, LeaseStore
from qim_streams.ownership.redis_leases import RedisLeaseStore
from qim_streams.placement import outbox_partition
from qim_streams.records import MessageRecord
from qim_streams.redis_tier import RedisClient
from qim_streams.script_pipe import ScriptPipe
from qim_streams.testing.memory_membership import MemoryMembershipStore, MemoryOrdinalDirectory
from qim_streams.testing.memory_tier import (
    MemoryCalls,
    MemoryConversationStore,
    MemoryHotTier,
    MemoryLeaseStore,
)

PARTITIONS, SHARDS, TENANT = 4, 16, "t"
RETENTION_S = 3_600


def partition_of(tenant: str, chat: str) -> int:
    return outbox_partition(tenant, chat, PARTITIONS)


def message_id(millis: int, logical: int = 0, node: int = 1) -> bytes:
    return struct.pack(">QQ", (millis << 16) | logical, node)


def request(
    chat: str,
    sender: str,
    client_message_id: str,
    candidate: bytes,
    body: bytes = b"hi",
    refuse_new: bool = False,
) -> CommitRequest:
    """A commit request as the writer makes it."""
    tail = MessageRecord(
        0, 0, TENANT, chat, candidate, candidate, sender, 7, "phone", client_message_id, 1, 1_000, 0, 0, body
    ).tail()
    digest = payload_digest(0, body)
    return CommitRequest(TENANT, chat, sender, client_message_id, digest, candidate, 1_000, tail, refuse_new)


@dataclass
class HotTier:
    """All stores on one data set. `client` is None for the fakes."""

    conversations: ConversationStore
    membership: MembershipStore
    reader: MembershipReader
    directory: OrdinalDirectory
    leases: LeaseStore
    client: RedisClient | None = None
    memory: MemoryHotTier | None = None
    tokens: int = 0
    epochs: dict[int, int] = field(default_factory=dict)

    async def own(self, chat: str, boot: int = 1) -> tuple[int, int]:
        """(partition, epoch) of a conversation, with the partition's lease taken."""
        partition = partition_of(TENANT, chat)
        grant = await self.leases.acquire(f"ob:{partition}", "node", boot, "here:1", 60_000)
        assert isinstance(grant, Grant)
        self.epochs[partition] = grant.epoch
        return partition, grant.epoch

    async def lose_calls(self, partition: int) -> None:
        """The store forgets which calls it has answered, as one that lost its last second."""
        if self.client is not None:
            await self.client.delete(f"{keys.base(partition)}call")
        if self.memory is not None:
            self.memory.partition(partition).call = (0, 0)

    def token(self) -> bytes:
        self.tokens += 1
        return self.tokens.to_bytes(16, "big")

    async def group(self, chat: str, members: dict[str, str], **head: str | int) -> tuple[int, int]:
        """Make a group of {user: role} and return (partition, epoch)."""
        partition, epoch = await self.own(chat)
        ordinals = await self.directory.assign(TENANT, list(members))
        joins = [Join(user, ordinal, members[user]) for user, ordinal in zip(members, ordinals, strict=True)]
        seats = by_shard(TENANT, [Seat(join.user_id, join.ordinal) for join in joins], SHARDS)
        change = MembershipChange(
            TENANT,
            chat,
            0,
            self.token(),
            1_000,
            joins=joins,
            bitmaps=changed({}, seats, {}),
            head=new_head("group", {}, 1_000, 1_000) | {"creator_id": next(iter(members), "")} | head,
        )
        (made,) = await self.membership.apply(partition, epoch, [change])
        assert made is not None
        return partition, epoch


def memory_tier() -> HotTier:
    tier = MemoryHotTier(partition_of)
    calls = MemoryCalls(tier)
    membership = MemoryMembershipStore(tier, calls)
    return HotTier(
        MemoryConversationStore(tier, calls),
        membership,
        membership,
        MemoryOrdinalDirectory(tier),
        MemoryLeaseStore(tier),
        memory=tier,
    )


def redis_tier(client: RedisClient) -> HotTier:
    pipe = ScriptPipe(client)
    calls = PartitionCalls(pipe)
    return HotTier(
        RedisConversationStore(calls, RETENTION_S, partition_of),
        RedisMembershipStore(client, calls, partition_of),
        RedisMembershipReader(client, partition_of),
        RedisOrdinalDirectory(client, pipe),
        RedisLeaseStore(client, first_epoch=1),
        client=client,
    )
