"""Whole sweeps of the stages on ports in memory: what a stage itself spends on about 240 direct messages.

Divide by 240 for the cost of a message. Each call sees the same sweep for the first time: what a stage
remembers between calls is put back before each. Spec: §4, §5, §6.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, NoReturn

from qim_streams import hlc, ids
from qim_streams.archive.memory_archive import MemoryArchive
from qim_streams.archive.service import HistoryArchiver
from qim_streams.fanout.plan import plan, read_outbox
from qim_streams.fanout.progress import ConversationProgress
from qim_streams.fanout.service import FanoutCoordinator
from qim_streams.fanout.versions import MembershipVersions
from qim_streams.log_ports import Outgoing, Poison
from qim_streams.mailbox.floors import WatermarkFloors
from qim_streams.mailbox.members import MemberBitmaps
from qim_streams.mailbox.memory_store import MemoryMailboxStore
from qim_streams.mailbox.memory_table import MemoryTable
from qim_streams.mailbox.pages import DoneDispatch, content_digest
from qim_streams.mailbox.ports import EntryGroup
from qim_streams.mailbox.progress import DispatchProgress
from qim_streams.mailbox.service import MailboxMaterialiser
from qim_streams.mailbox.shards import LeaseTerms, Shard, ShardLeases
from qim_streams.mailbox.watermark import Marks
from qim_streams.membership.ports import MembershipReader
from qim_streams.ownership.ports import Holder
from qim_streams.placement import lane, mailbox_shard, ordinal_of, outbox_partition
from qim_streams.push.bodies import CommonBodies
from qim_streams.push.service import PushStage
from qim_streams.records import MessageRecord, OutboxRecord, Presence, pack_ordinals, record_key
from tests.perf.registry import Case, benchmark
from tests.perf.samples import BODY, DEVICE, NOW_MS, PARTITIONS, SHARDS, TENANT, dispatches

USERS, MESSAGES = 64, 240
FIRST = 1_000  # the offset at which every partition's sweep begins
_loop = asyncio.new_event_loop()


def _run(work: Coroutine[Any, Any, None]) -> None:
    _loop.run_until_complete(work)


class Record(NamedTuple):
    """A record of the log."""

    offset: int
    key: bytes | None
    value: bytes | None


class Batch(NamedTuple):
    """Records of one partition."""

    partition: int
    records: list[Record]
    previous_offset: int


class NullLog:
    """A log that acknowledges at once and remembers the newest call."""

    def __init__(self) -> None:
        self.calls: list[Sequence[Outgoing]] = []

    async def append(self, records: Sequence[Outgoing]) -> list[int]:
        """See `LogAppender.append`."""
        self.calls.append(records)
        return list(range(len(records)))


class NoPoison:
    """Dead letters that must stay empty."""

    async def send(self, poison: Sequence[Poison]) -> None:
        """See `PoisonSink.send`."""
        raise AssertionError(poison[0].cause)


class NoGroups:
    """A membership store that must not be asked: every membership is inline."""

    async def versions(self, keys: Sequence[Any]) -> list[Any]:
        """See `MembershipReader.versions`."""
        raise AssertionError(keys)

    async def bitmaps(self, keys: Sequence[Any]) -> list[Any]:
        """See `MembershipReader.bitmaps`."""
        raise AssertionError(keys)


def users() -> list[tuple[str, int, int]]:
    """Name, ordinal and shard of every user."""
    names = [f"user-{number:06d}" for number in range(USERS)]
    return [
        (name, ordinal_of(count, lane(TENANT, name)), mailbox_shard(TENANT, name, SHARDS))
        for count, name in enumerate(names)
    ]


def outbox() -> list[tuple[MessageRecord, bytes]]:
    """Direct messages between changing pairs: the message and the bytes of its Outbox record."""
    made, seqs, everyone = [], dict[str, int](), users()
    for number in range(MESSAGES):
        sender, peer = everyone[number % USERS], everyone[(number * 7 + 1 + number // USERS) % USERS]
        chat = ids.direct_conversation_id(TENANT, sender[0], peer[0])
        seqs[chat] = seqs.get(chat, 0) + 1
        message_id = hlc.encode(NOW_MS + number, 0, 7)
        message = MessageRecord(
            seqs[chat], 1, TENANT, chat, message_id, message_id, sender[0], sender[1], DEVICE,
            f"m-{number:012d}", 12, NOW_MS, 0, 0, BODY,
        )  # fmt: skip
        seats: dict[int, set[int]] = {}
        for _, ordinal, shard in (sender, peer):
            seats.setdefault(shard, set()).add(ordinal)
        inline = {shard: (1, pack_ordinals(sorted(found))) for shard, found in seats.items()}
        made.append((message, OutboxRecord(message.encode(), 12, 0, inline).encode()))
    return made


def _batches(places: Sequence[tuple[int, bytes, bytes]]) -> list[Batch]:
    found: dict[int, list[Record]] = {}
    for partition, key, value in places:
        records = found.setdefault(partition, [])
        records.append(Record(FIRST + len(records), key, value))
    return [Batch(partition, records, FIRST - 1) for partition, records in sorted(found.items())]


def outbox_batches() -> list[Batch]:
    """The sweep as the fan-out and archiver stages read it."""
    return _batches(
        [
            (
                outbox_partition(TENANT, one.conversation_id, PARTITIONS),
                record_key(TENANT, one.conversation_id),
                data,
            )
            for one, data in outbox()
        ]
    )


def dispatch_batches() -> list[Batch]:
    """The sweep as the mailbox stage reads it."""
    places = []
    for batch in outbox_batches():
        for record in batch.records:
            one = read_outbox(record, batch.partition, PARTITIONS, SHARDS)
            planned = plan(one, one.outbox.members or {})
            places += [(made.target_mailbox_shard, one.key, made.encode()) for made in planned]
    return _batches(places)


@benchmark("sweep.fanout.240_direct")
def fanout() -> Case[int]:
    """`FanoutCoordinator.handle`: read, judged, planned, handed to the log."""
    batches, log, reader = outbox_batches(), NullLog(), NoGroups()
    progress = ConversationProgress(MemoryTable())

    def call() -> int:
        log.calls.clear()
        stage = FanoutCoordinator(
            "outbox", "dispatch", outbox_partitions=PARTITIONS, mailbox_shards=SHARDS, appender=log,
            versions=MembershipVersions(reader, 10), progress=progress, poison=NoPoison(),
            now_ms=lambda: NOW_MS,
        )  # fmt: skip
        _run(stage.handle(batches))
        return sum(map(len, log.calls))

    expected = sum(len(batch.records) for batch in dispatch_batches())
    return Case(call, lambda count: count == expected)


class NullStore(MemoryMailboxStore):
    """A store that takes everything and keeps nothing but counts."""

    entries = 0

    async def write_and_advance(
        self,
        shard: int,
        epoch: int,
        groups: Sequence[EntryGroup],
        expected: Marks,
        observed: Marks,
        *,
        record: str = "",
        steps: int = 0,
    ) -> Marks:
        """See `MailboxStore.write_and_advance`."""
        self.entries += sum(len(group.ordinals) for group in groups)
        return observed


class FreshBodies(CommonBodies):
    """Bodies that are read anew in every sweep, as new messages are."""

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        """See `MessageReader.records`."""
        return [self.rows[one] for one in wanted]

    def __init__(self) -> None:
        super().__init__(self, 10_000)
        self.rows = {(TENANT, one.conversation_id, one.conversation_seq): one.encode() for one, _ in outbox()}

    def forget(self) -> None:
        """Every message is new again."""
        super().__init__(self, 10_000)


class NoFollower:
    """A presence log that has nothing more to say."""

    def start(self, on_records: Callable[..., Any]) -> None:
        """See `Follower.start`."""

    async def follow(self, partition: int) -> None:
        """See `Follower.follow`."""

    def unfollow(self, partitions: frozenset[int]) -> None:
        """See `Follower.unfollow`."""

    def failure(self) -> None:
        """See `Follower.failure`."""

    async def close(self) -> None:
        """See `Follower.close`."""


class GatewayLease:
    """A lease store in which the gateway holds its lease; nothing else is asked of it."""

    async def holders(self, resources: Sequence[str]) -> list[Holder | None]:
        """See `LeaseStore.holders`."""
        return [Holder(one, "gw", 1, "gw", 1, 1_000) for one in resources]


def _die(cause: str) -> NoReturn:
    raise AssertionError(cause)


class MailboxBench:
    """A mailbox stage that serves all shards, and what is put back before each sweep."""

    def __init__(self, online: bool) -> None:
        self.store, self.log, self.bodies = NullStore(), NullLog(), FreshBodies()
        leases: Any = GatewayLease()
        self.leases = ShardLeases(leases, self.store, LeaseTerms("bench", 1, "", 1_000_000, 500_000), _die)
        self.progress = DispatchProgress(MemoryTable(), 1_000_000)
        reader: MembershipReader = NoGroups()
        self.push = PushStage(
            "push", connection_shards=1, log_appender=self.log, bodies=self.bodies, leases=leases,
            follower=NoFollower(), die=_die,
        )  # fmt: skip
        self.stage = MailboxMaterialiser(
            "dispatch", store=self.store, leases=self.leases, progress=self.progress,
            floors=WatermarkFloors(MemoryTable()), members=MemberBitmaps(reader, 10), poison=NoPoison(),
            pusher=self.push, log_end=lambda shard: asyncio.sleep(0, FIRST),
            log_begin=lambda shard: asyncio.sleep(0, 0), now_ms=lambda: NOW_MS, entries_max=2_000,
        )  # fmt: skip
        _run(self._open(online))

    async def _open(self, online: bool) -> None:
        for shard in range(SHARDS):
            await self.progress.recover(shard)
            served = Shard(shard, 1, FIRST - 1, FIRST - 1, FIRST - 1, -1)
            self.leases.served[shard] = served
            await self.push.attach(served)
        for name, ordinal, shard in users() if online else ():
            presence = Presence(TENANT, name, ordinal, DEVICE, 0, 1 << 32 | ordinal, 3, NOW_MS)
            record = Record(0, record_key(TENANT, name, DEVICE), presence.encode())
            await self.push.on_presence(shard, [record])

    def sweep(self, batches: Sequence[Batch]) -> tuple[int, int]:
        """Handle the sweep for the first time; entries written and push batches sent."""
        self.store.entries = 0
        self.log.calls.clear()
        self.bodies.forget()
        for shard, served in self.leases.served.items():
            served.coverage = served.pushed_through = FIRST - 1
            noted = self.progress._partitions[shard]
            noted.noted_first, noted.noted = None, {}
        _run(self.stage.handle(batches))
        return self.store.entries, sum(map(len, self.log.calls))


def _mailbox(online: bool) -> Case[tuple[int, int]]:
    bench, batches = MailboxBench(online), dispatch_batches()
    return Case(
        lambda: bench.sweep(batches),
        lambda found: MESSAGES < found[0] <= 2 * MESSAGES and (found[1] > 0) == online,
    )


@benchmark("sweep.mailbox.240_nobody_online")
def mailbox_offline() -> Case[tuple[int, int]]:
    """`MailboxMaterialiser.handle` of 16 shards: taken in, grouped, covered, noted."""
    return _mailbox(online=False)


@benchmark("sweep.mailbox.240_all_online")
def mailbox_online() -> Case[tuple[int, int]]:
    """The same, and pushed to one device of every peer."""
    return _mailbox(online=True)


class NullArchive(MemoryArchive):
    """An archive that takes everything and keeps the count."""

    stored = 0

    async def store(self, partition: int, messages: Sequence[Any], watermark: int) -> None:
        """See `Archive.store`."""
        self.stored += len(messages)


@benchmark("sweep.archiver.240_direct")
def archiver() -> Case[int]:
    """`HistoryArchiver.handle` of 8 partitions."""
    batches, archive = outbox_batches(), NullArchive()

    async def handle() -> None:
        stage = HistoryArchiver("outbox", archive, NoPoison(), now_ms=lambda: NOW_MS)
        for batch in batches:
            await stage.start_position(batch.partition)
            await stage.handle(Batch(batch.partition, batch.records, -1))

    def call() -> int:
        archive.stored = 0
        _run(handle())
        return archive.stored

    return Case(call, lambda count: count == MESSAGES)


@benchmark("sweep.progress.100_noted_and_paged")
def progress_page() -> Case[int | None]:
    """The notes of a batch of 100 and the page that they become; the table is in memory."""
    progress = DispatchProgress(NullTable(), 1_000_000)
    _run(_recovered(progress))
    rows = [
        DoneDispatch(offset, one.dispatch_id, content_digest(one))
        for offset, one in enumerate(dispatches(100, 5), FIRST)
    ]

    def call() -> int | None:
        progress.note(5, FIRST, FIRST + 99, rows)
        last = progress.write_page(5, NOW_MS)
        progress.settle(5)
        return last

    return Case(call, lambda last: last == FIRST + 99)


class NullTable(MemoryTable):
    """A table that keeps nothing."""

    def write_batch(self, partition: int, puts: Any, local: Any = None) -> None:
        """See `ChangelogTable.write_batch`."""


async def _recovered(progress: DispatchProgress) -> None:
    await progress.recover(5)
