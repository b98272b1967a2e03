"""Outbox records for the fan-out tests, and a coordinator on ports in memory."""

from collections.abc import Sequence
from typing import NamedTuple

from qim_streams.errors import StoreUnavailable
from qim_streams.fanout.progress import ConversationProgress
from qim_streams.fanout.service import FanoutCoordinator
from qim_streams.fanout.versions import MembershipVersions
from qim_streams.log_ports import Outgoing, Poison
from qim_streams.mailbox.memory_table import MemoryTable
from qim_streams.ownership.log_fence import BARRIER_KEY, encode_barrier
from qim_streams.placement import outbox_partition
from qim_streams.records import (
    GroupDispatch,
    MessageRecord,
    OutboxRecord,
    decode_dispatch,
    pack_ordinals,
    record_key,
)
from qim_streams.sharding.follower import Mappings
from qim_streams.spans.service import MessageSpans

PARTITIONS, SHARDS = 4, 8


class Record(NamedTuple):
    """A record of the log."""

    offset: int
    key: bytes | None
    value: bytes | None


class Batch(NamedTuple):
    """A batch of the log."""

    partition: int
    records: Sequence[Record]
    previous_offset: int


def conversation_in(partition: int, tenant: str = "acme") -> str:
    """A conversation of that Outbox partition."""
    return next(f"c{n}" for n in range(1_000) if outbox_partition(tenant, f"c{n}", PARTITIONS) == partition)


def message(number: int, chat: str, seq: int | None = None, **changes: object) -> MessageRecord:
    """Message `number`."""
    message_id = number.to_bytes(16, "big")
    made = MessageRecord(
        seq or number, 3, "acme", chat, message_id, message_id, "ann", 1, "phone", f"m{number}", 1,
        1_000 + number, 0, 0, b"body",
    )  # fmt: skip
    return made._replace(**changes)  # type: ignore[arg-type]


MEMBERS = {2: (4, pack_ordinals([1, 65])), 5: (7, pack_ordinals([2]))}


def record(
    offset: int,
    one: MessageRecord,
    members: dict[int, tuple[int, bytes]] | None = MEMBERS,
    flags: int = 0,
    key: bytes | None = None,
    epoch: int = 1,
) -> Record:
    """The Outbox record of a message, appended by the owner of `epoch`."""
    value = OutboxRecord(one.encode(), epoch, flags, members).encode()
    return Record(offset, key or record_key(one.tenant_id, one.conversation_id), value)


def barrier(offset: int, epoch: int) -> Record:
    """The barrier of an owner."""
    return Record(offset, BARRIER_KEY, encode_barrier(epoch))


class Log:
    """A `LogAppender` that may fail after some records of a call."""

    def __init__(self) -> None:
        self.records: list[Outgoing] = []
        self.calls: list[int] = []
        self.fail_after: int | None = None

    async def append(self, records: Sequence[Outgoing]) -> list[int]:
        """See the port."""
        self.calls.append(len(records))
        if self.fail_after is not None:
            self.records.extend(records[: self.fail_after])
            self.fail_after = None
            raise StoreUnavailable("armed")
        self.records.extend(records)
        return list(range(len(records)))

    def dispatches(self) -> list[GroupDispatch]:
        """What was appended, decoded."""
        return [decode_dispatch(one.value) for one in self.records if one.value is not None]


class Graveyard:
    """A `PoisonSink`."""

    def __init__(self) -> None:
        self.buried: list[Poison] = []

    async def send(self, poison: Sequence[Poison]) -> None:
        """See the port."""
        self.buried.extend(poison)


class Versions:
    """A `MembershipReader` of versions."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, int], dict[int, int]] = {}
        self.asked: list[int] = []

    async def versions(self, wanted: Sequence[tuple[str, str, int]]) -> list[dict[int, int] | None]:
        """See the port."""
        self.asked.append(len(wanted))
        return [self.rows.get(one) for one in wanted]

    async def bitmaps(self, wanted: Sequence[tuple[str, str, int, int]]) -> list[bytes | None]:
        """See the port."""
        raise NotImplementedError


class Bench:
    """A coordinator and its world."""

    def __init__(self) -> None:
        self.log, self.graveyard, self.versions, self.table = Log(), Graveyard(), Versions(), MemoryTable()
        self.mappings: Mappings | None = None
        self.spans: MessageSpans | None = None
        self.restart()

    def restart(self) -> None:
        """A new process on what is durable."""
        self.coordinator = FanoutCoordinator(
            "qim.outbox.v1",
            "qim.dispatch.v1",
            outbox_partitions=PARTITIONS,
            mailbox_shards=SHARDS,
            appender=self.log,
            versions=MembershipVersions(self.versions, 16),
            progress=ConversationProgress(self.table),
            poison=self.graveyard,
            now_ms=lambda: 5_000,
            mappings=self.mappings,
            spans=self.spans,
        )

    async def handle(self, *records: Record, partition: int = 0) -> None:
        """Handle a batch."""
        await self.coordinator.handle([Batch(partition, records, records[0].offset - 1)])
        await self.coordinator.checkpoint([partition])
