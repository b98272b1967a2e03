"""A small world to trace in: logs in memory, fake stores, and one message taken through every level."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from qim_streams import hlc, ids
from qim_streams.archive.memory_archive import MemoryArchive
from qim_streams.archive.ports import ArchivedMessage
from qim_streams.mailbox.memory_store import MemoryMailboxStore
from qim_streams.mailbox.pages import DoneDispatch, Page
from qim_streams.mailbox.ports import EntryGroup
from qim_streams.placement import outbox_partition
from qim_streams.records import (
    GroupDispatch,
    MessageRecord,
    OutboxRecord,
    PushBatch,
    PushItem,
    Recipient,
    UserMailboxEntry,
    record_key,
)
from qim_streams.trace.ports import LogEntry, Scan, Visit
from qim_streams.trace.service import DISPATCH, OUTBOX, PROGRESS, PUSH, TraceDeps

TENANT, ROOM = "acme", "room"
OUTBOX_PARTITIONS, SHARDS, CONNECTION_SHARDS = 8, 16, 4
T0 = 1_700_000_000_000


class MemoryLog:
    """Logs in memory; `topics[name][partition]` is a list of entries whose offsets are their index."""

    def __init__(self) -> None:
        counts = {OUTBOX: OUTBOX_PARTITIONS, DISPATCH: SHARDS, PUSH: CONNECTION_SHARDS, PROGRESS: SHARDS}
        self.topics: dict[str, list[list[LogEntry]]] = {
            name: [[] for _ in range(count)] for name, count in counts.items()
        }
        self.looked_at = 0

    def append(
        self, topic: str, partition: int, at_ms: int, value: bytes | None, key: bytes | None = None
    ) -> int:
        """Append a record; its offset."""
        log = self.topics[topic][partition]
        log.append(LogEntry(topic, partition, len(log), at_ms, key, value))
        return len(log) - 1

    async def partitions(self, topic: str) -> int:
        """As the port says."""
        return len(self.topics.get(topic, ()))

    async def offsets_at(self, topic: str, partitions: list[int], at_ms: int) -> dict[int, int]:
        """As the port says."""
        logs = self.topics[topic]
        return {p: next((e.offset for e in logs[p] if e.at_ms >= at_ms), len(logs[p])) for p in partitions}

    async def scan(self, topic: str, starts: Mapping[int, int], visit: Visit, entries_max: int) -> Scan:
        """As the port says, partition after partition."""
        seen = 0
        for partition, start in starts.items():
            for entry in self.topics[topic][partition][start:]:
                if seen >= entries_max:
                    return Scan(seen, False)
                seen += 1
                self.looked_at += 1
                if visit(entry):
                    break
        return Scan(seen, True)

    async def close(self) -> None:
        """Nothing to release."""


@dataclass
class Hot:
    """The hot tier's messages."""

    held: dict[tuple[str, str, int], bytes] = field(default_factory=dict)

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        """As the port says."""
        return [self.held.get(address) for address in wanted]


@dataclass
class Members:
    """Membership versions and their bitmaps."""

    shards: dict[tuple[str, str, int], dict[int, int]] = field(default_factory=dict)
    held: dict[tuple[str, str, int, int], bytes] = field(default_factory=dict)

    async def versions(self, wanted: Sequence[tuple[str, str, int]]) -> list[dict[int, int] | None]:
        """As the port says."""
        return [self.shards.get(address) for address in wanted]

    async def bitmaps(self, wanted: Sequence[tuple[str, str, int, int]]) -> list[bytes | None]:
        """As the port says."""
        return [self.held.get(address) for address in wanted]


class World:
    """Everything a trace reads. `members` maps a shard to the ordinals of ROOM's members there."""

    def __init__(self, members: dict[int, list[int]]) -> None:
        self.members = members
        self.log, self.hot, self.membership = MemoryLog(), Hot(), Members()
        self.mailboxes, self.archive = MemoryMailboxStore(), MemoryArchive()
        self.membership.shards[TENANT, ROOM, 3] = dict.fromkeys(members, 1)
        for shard, ordinals in members.items():
            self.membership.held[TENANT, ROOM, shard, 1] = BitMap(ordinals).serialize()
            self.mailboxes.grant(shard, 1)
        self.partition = outbox_partition(TENANT, ROOM, OUTBOX_PARTITIONS)
        self.dispatched: dict[int, int] = {}

    @property
    def deps(self) -> TraceDeps:
        """The ports of a trace."""
        return TraceDeps(self.log, self.hot, self.membership, self.mailboxes, self.archive, OUTBOX_PARTITIONS)

    def message(self, seq: int = 5, at: int = T0) -> MessageRecord:
        """A message of ROOM, committed at `at`."""
        return MessageRecord(
            conversation_seq=seq,
            membership_version=3,
            tenant_id=TENANT,
            conversation_id=ROOM,
            message_id=hlc.encode(at, seq, 7),
            last_activity_id=hlc.encode(at, seq, 7),
            sender_id="ann",
            sender_ordinal=64,
            sender_device_id="phone",
            client_message_id=f"c{seq}",
            fencing_epoch=2,
            committed_at=at,
            kind=0,
            state=0,
            body=b"secret body",
        )

    def commit(self, message: MessageRecord, at_ms: int, flags: int = 0) -> int:
        """Into the hot tier and the Outbox; the Outbox offset."""
        address = (message.tenant_id, message.conversation_id, message.conversation_seq)
        self.hot.held[address] = message.encode()
        value = OutboxRecord(message.encode(), 2, flags, None).encode()
        key = record_key(message.tenant_id, message.conversation_id)
        return self.log.append(OUTBOX, self.partition, at_ms, value, key)

    def dispatch(self, message: MessageRecord, shard: int, at_ms: int) -> int:
        """A dispatch for one shard; its mailbox_seq."""
        record = GroupDispatch(
            TENANT, ids.dispatch_id(message.message_id, shard), message.message_id, ROOM,
            message.conversation_seq, message.last_activity_id, "ann", 2, 3, shard, 0, 64, "phone", "c",
            b"digest00", self.partition, 0, message.committed_at, 1, None,
        )  # fmt: skip
        self.dispatched[shard] = self.log.append(DISPATCH, shard, at_ms, record.encode())
        return self.dispatched[shard]

    async def materialise(self, message: MessageRecord, shard: int, at_ms: int) -> None:
        """Entries, W and the page of one shard."""
        seq = self.dispatched[shard]
        entry = UserMailboxEntry(0, message.message_id, ROOM, message.conversation_seq, "ann", 3, T0, None)
        group = EntryGroup(TENANT, seq, 0, entry.encode(), self.members[shard])
        (state,) = await self.mailboxes.watermarks([shard])
        await self.mailboxes.write_and_advance(shard, 1, [group], min(state.lanes), seq)
        row = DoneDispatch(seq, ids.dispatch_id(message.message_id, shard), b"digest00")
        self.log.append(PROGRESS, shard, at_ms + 1, Page(seq, seq, at_ms, [row]).encode())

    def push(
        self, message: MessageRecord, shard: int, connection_shard: int, at_ms: int, devices: int
    ) -> None:
        """A push batch for some devices."""
        to = [Recipient(one, 1, bytes(16), 3, 0, None) for one in range(devices)]
        item = PushItem(self.dispatched[shard], 0, b"body " + message.message_id, to, T0)
        value = PushBatch(TENANT, shard, 1, [item], []).encode()
        self.log.append(PUSH, connection_shard, at_ms, value)

    async def archived(self, message: MessageRecord, watermark: int) -> None:
        """In the archive, with the watermark where told."""
        kept = ArchivedMessage(TENANT, ROOM, message.conversation_seq, message.encode())
        await self.archive.store(self.partition, [kept], watermark)
