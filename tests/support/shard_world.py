"""One MailboxShard as a world of its own: a log, a store, tables, a lease, and workers that die.

The services are the product's; everything around them is in memory and may fail at any numbered call:
`Faults` counts the calls of store and tables, and at the one it was told kills the worker (`Crash`), loses
a request or an answer (StoreUnavailable), or lets the store forget its last call. The world keeps its own
account of what the log means (`facts`), from which `expected` says what every mailbox must hold.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from pyroaring import BitMap

from qim_streams import ids
from qim_streams.errors import Outcome, StoreError, StoreUnavailable
from qim_streams.log_ports import Poison
from qim_streams.mailbox import watermark as rule
from qim_streams.mailbox.floors import WatermarkFloors
from qim_streams.mailbox.members import Addressed, MemberBitmaps
from qim_streams.mailbox.memory_store import MemoryMailboxStore
from qim_streams.mailbox.memory_table import Changelog, MemoryTable
from qim_streams.mailbox.pages import decode_page, page_end
from qim_streams.mailbox.ports import EntryGroup, Puts
from qim_streams.mailbox.progress import DispatchProgress
from qim_streams.mailbox.service import MailboxMaterialiser
from qim_streams.mailbox.shards import LeaseTerms, Shard, ShardLeases
from qim_streams.mailbox.slices import SliceTerms
from qim_streams.mailbox.watermark import Marks
from qim_streams.membership.bitmaps import encode
from qim_streams.ownership.ports import Grant, Holder
from qim_streams.placement import lane_of_ordinal
from qim_streams.records import GroupDispatch, decode_entry, pack_ordinals
from qim_streams.spans.service import MessageSpans
from qim_streams.testing.memory_tier import MemoryHotTier, MemoryLeaseStore

SHARD, TENANT, TOPIC = 0, "acme", "qim.dispatch.v1"
ENTRIES_MAX = 3
ORDINALS = (0, 1, 2, 63, 64, 65, 66, 128, 129, 192, 4_097)
RETENTION_MS = 10**12


class Crash(BaseException):
    """The worker process is gone. Outside every error tree, so that nobody handles it."""


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


class Fact(NamedTuple):
    """What a record means: `message` is the number of its message, None for poison and forgeries."""

    offset: int
    message: int | None
    members: tuple[int, ...]
    poison: bool


class Faults:
    """Counts calls and fails the one it was told to."""

    def __init__(self) -> None:
        self.count = 0
        self.at: int | None = None
        self.kind = "crash_before"
        self.armed = 0

    def arm(self, at: int | None, kind: str) -> None:
        """Fail the `at`-th call from now (0 = the next) in this way; None: fail nothing."""
        self.at, self.kind, self.count = at, kind, 0
        self.armed += 1

    async def around(self, call: Any) -> Any:
        """Run `call`, or not, or lose its answer."""
        due = self.at is not None and self.count == self.at
        self.count += 1
        if due and self.kind == "forget":
            due, self.at = False, None  # the store has done it
        if due:
            self.at = None
            if self.kind in ("crash_before", "lost_request"):
                call.close()
                self._fail()
        answer = await call
        if due:
            self._fail()
        return answer

    def _fail(self) -> None:
        if self.kind.startswith("crash"):
            raise Crash
        raise StoreUnavailable(f"armed: {self.kind}", Outcome.UNKNOWN)


class FaultyStore(MemoryMailboxStore):
    """A store whose calls may fail."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self.faults = faults
        self.fell_back = False
        self.peak: Marks = rule.NOTHING  # the highest that W has been, whatever was lost since
        self.refusing: set[int] = set()  # ordinals whose mailboxes take no entries
        self._before: list[Any] = []
        self._armed = 0

    async def write_step(
        self, shard: int, epoch: int, groups: Sequence[EntryGroup], expected: Marks, record: str, step: int
    ) -> int:
        """See the port."""
        self._forget()
        return int(await self.faults.around(super().write_step(shard, epoch, groups, expected, record, step)))

    async def write_and_advance(
        self,
        shard: int,
        epoch: int,
        groups: Sequence[EntryGroup],
        expected: Marks,
        observed: Marks,
        **more: Any,
    ) -> Marks:
        """See the port."""
        self._forget()
        call = super().write_and_advance(shard, epoch, groups, expected, observed, **more)
        stands: Marks
        try:
            stands = await self.faults.around(call)
        finally:
            self.peak = rule.merged(self.peak, rule.marks(self._shard(shard).lanes))
        return stands

    def _write(self, state: Any, groups: Sequence[EntryGroup]) -> None:
        """Like a script: what stands before the entry that is refused has been written."""
        for group in groups:
            fine = list(takewhile(lambda one: one not in self.refusing, group.ordinals))
            super()._write(state, [group._replace(ordinals=fine)])
            if len(fine) < len(group.ordinals):
                raise StoreError("WRONGTYPE", Outcome.NOT_APPLIED)

    def _forget(self) -> None:
        """If armed: fall back to what was before the previous call, and go on as if nothing had been."""
        if self._armed != self.faults.armed:
            self._armed = self.faults.armed
            self._before.clear()
        if self.faults.kind != "forget":
            return
        if self.faults.at == self.faults.count and self._before:
            owner, self.fell_back = self._shard(SHARD).owner, True
            self.restore(self._before[-1])
            self.grant(SHARD, owner)
        self._before.append(self.snapshot())


class FaultyTable(MemoryTable):
    """A table whose writes and barriers may be the last thing that happens."""

    def __init__(self, faults: Faults, changelog: Changelog | None = None) -> None:
        super().__init__(changelog)
        self.faults = faults

    def elsewhere(self) -> "FaultyTable":
        """See `MemoryTable.elsewhere`."""
        return FaultyTable(self.faults, self.changelog)

    def write_batch(self, partition: int, puts: Puts, local: Puts | None = None) -> None:
        """See the port."""
        super().write_batch(partition, puts, local)
        if self.faults.kind.startswith("crash"):
            if self.faults.count == self.faults.at:
                self.faults.at = None
                raise Crash
            self.faults.count += 1

    async def barrier(self, partition: int) -> None:
        """See the port."""
        if self.faults.kind.startswith("crash"):
            await self.faults.around(super().barrier(partition))
        else:
            await super().barrier(partition)


class Graveyard:
    """A `PoisonSink`."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    async def send(self, poison: Sequence[Poison]) -> None:
        """See the port."""
        self.offsets.extend(one.record.offset for one in poison)


class PushLog:
    """A `Pusher` that writes down what it was asked to push."""

    def __init__(self) -> None:
        self.pushed: list[tuple[int, int]] = []  # (epoch, offset)
        self._last: dict[tuple[int, int], int] = {}  # (epoch, ordinal) -> offset pushed last

    async def attach(self, shard: Shard) -> None:
        """See the port."""

    async def push(self, work: Sequence[tuple[Shard, Sequence[Addressed]]]) -> None:
        """See the port."""
        for shard, records in work:
            assert all(one.offset <= shard.coverage for one in records), "pushed before W covers it"
            for one in records:
                if one.dispatch is not None and one.offset > shard.pushed_through:
                    self._pushed(shard, one)
            shard.pushed_through = max(shard.pushed_through, records[-1].offset)

    async def push_lanes(self, shard: Shard, records: Sequence[Addressed], through: Marks) -> None:
        """See the port."""
        lanes = shard.open
        assert lanes is not None
        assert not rule.is_below(lanes.stands, through), "told of more than W covers"
        for one in records:
            for ordinal in one.members:
                covered = rule.lane_of_marks(through, lane_of_ordinal(ordinal))
                assert one.offset <= covered, "pushed before W covers it"
            self._pushed(shard, one)
        lanes.pushed = rule.merged(lanes.pushed, through)

    def _pushed(self, shard: Shard, one: Addressed) -> None:
        self.pushed.append((shard.epoch, one.offset))
        for ordinal in one.members:
            who = (shard.epoch, ordinal)
            assert self._last.get(who, -1) < one.offset, "pushed out of a user's order"
            self._last[who] = one.offset

    async def detach(self, shards: frozenset[int]) -> None:
        """See the port."""


class TailLog:
    """A `Tail` that checks what it is fed: the log in order, without a hole, nothing above W."""

    def __init__(self, world: "ShardWorld") -> None:
        self._world = world
        self.next = 0
        self.fed: dict[int, int] = {}  # offset -> members

    def begin(self, shard: int, start: int) -> None:
        """See the port."""
        self.next = start

    def feed(self, shard: int, records: Sequence[Addressed]) -> None:
        """See the port."""
        for one in records:
            assert one.offset <= rule.lowest(self._world.store.peak), "fed before every lane has it"
            between = [row.offset for row in self._world.log if self.next <= row.offset < one.offset]
            assert not between, f"the tail never saw {between}"
            self.next = max(self.next, one.offset + 1)
            self.fed[one.offset] = len(one.members)

    async def release(self, shards: frozenset[int]) -> None:
        """See the port."""


class Bitmaps:
    """A `MembershipReader` of bitmaps."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, int, int], bytes] = {}

    async def bitmaps(self, wanted: Sequence[tuple[str, str, int, int]]) -> list[bytes | None]:
        """See the port."""
        return [self.rows.get(one) for one in wanted]

    async def versions(self, wanted: Sequence[tuple[str, str, int]]) -> list[dict[int, int] | None]:
        """See the port."""
        raise NotImplementedError("the mailbox stage does not read versions")


class Died(Exception):
    """A worker ended itself: `die` of the product."""


class GrantingLeases(MemoryLeaseStore):
    """A lease store whose grants the mailbox store knows at once, as on one server."""

    def __init__(self, world: "ShardWorld") -> None:
        super().__init__(world.tier)
        self._world = world

    async def acquire(self, resource: str, node: str, boot: int, address: str, ttl_ms: int) -> Grant | Holder:
        """See the port."""
        answer = await super().acquire(resource, node, boot, address, ttl_ms)
        if isinstance(answer, Grant):
            self._world.store.grant(SHARD, answer.epoch)
        return answer


class Worker:
    """One worker process: what is in its memory."""

    def __init__(self, world: "ShardWorld", boot: int, slice_max: int = ENTRIES_MAX) -> None:
        def die(why: str) -> Any:
            raise Died(why)

        self.world, self.boot = world, boot
        self.progress_table, self.floor_table = world.progress_table, world.floor_table
        terms = LeaseTerms("node", boot, "", 10**9, 10**9)
        self.leases = ShardLeases(GrantingLeases(world), world.store, terms, die)
        self.progress = DispatchProgress(world.progress_table, RETENTION_MS)
        self.service = MailboxMaterialiser(
            TOPIC,
            store=world.store,
            leases=self.leases,
            progress=self.progress,
            floors=WatermarkFloors(world.floor_table),
            members=MemberBitmaps(world.bitmaps, 16),
            poison=world.graveyard,
            pusher=world.pushes,
            log_end=world.log_end,
            log_begin=world.log_begin,
            now_ms=lambda: world.now_ms,
            entries_max=ENTRIES_MAX,
            slicing=SliceTerms(ENTRIES_MAX, slice_max, 0.9),
            monotonic=lambda: world.clock_s,
            tail=TailLog(world),
            spans=world.spans,
        )
        self.service.slices.begin = lambda *_: None  # type: ignore[method-assign]  # `slice` does it
        self.next_offset = 0
        self.previous = -1
        self.acknowledged = -1
        self.unsettled = False

    async def start(self) -> None:
        """Take the shard over and find the start position."""
        self.leases._watch = lambda: None  # type: ignore[method-assign]  # no background task in a model
        self.next_offset = await self.service.start_position(SHARD)
        self.previous = self.acknowledged = self.next_offset - 1

    async def checkpoint(self) -> None:
        """What the lane does every now and then, and when it stops."""
        if self.unsettled:
            reached = await self.service.checkpoint([SHARD])
            self.acknowledged = min(self.previous, reached[SHARD])
            self.unsettled = self.acknowledged < self.previous

    @property
    def shard(self) -> Shard:
        """What the worker knows of the shard."""
        return self.leases.served[SHARD]

    async def slice(self) -> int:
        """What the background does: one slice, and what follows it. 0: nothing to do."""
        self.world.clock_s += 0.4
        lanes = self.shard.open
        return 0 if lanes is None else await self.service.slices.step(self.shard, lanes)

    async def drain(self) -> None:
        """All slices."""
        while await self.slice():
            pass

    async def work(self, count: int, *, checkpoint: bool = True) -> bool:
        """Handle up to `count` records; False when there are none. Retries are the caller's."""
        records = [one for one in self.world.log if one.offset >= self.next_offset][:count]
        if not records:
            return False
        await self.service.handle([Batch(SHARD, records, self.previous)])
        self.previous, self.next_offset = records[-1].offset, records[-1].offset + 1
        self.unsettled = True
        if checkpoint:
            await self.checkpoint()
        return True


class ShardWorld:
    """The world. `facts` is the oracle's knowledge of the log."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.tier = MemoryHotTier(lambda *_: 0)
        self.store = FaultyStore(self.faults)
        self.progress_table, self.floor_table = FaultyTable(self.faults), FaultyTable(self.faults)
        self.bitmaps, self.graveyard, self.pushes = Bitmaps(), Graveyard(), PushLog()
        self.log: list[Record] = []
        self.facts: list[Fact] = []
        self.begin, self.next_offset, self.messages, self.now_ms = 0, 0, 0, 1_000
        self.clock_s = 0.0
        self.spans: MessageSpans | None = None  # set before a worker is made
        self.members_of: dict[int, tuple[int, ...]] = {}
        self.senders: dict[int, int] = {}
        self._first: dict[int, int] = {}
        self._owed: dict[int, list[tuple[int, int]]] = {ordinal: [] for ordinal in ORDINALS}

    async def log_begin(self, shard: int) -> int:
        """The first offset that the log still has."""
        return self.begin

    async def log_end(self, shard: int) -> int:
        """See `MailboxMaterialiser`."""
        return self.next_offset

    def lose_disk(self) -> None:
        """The next worker recovers its tables from the changelogs alone."""
        self.progress_table, self.floor_table = self.progress_table.elsewhere(), self.floor_table.elsewhere()

    # -- the log grows

    def append_message(self, members: Sequence[int], *, sender: int, inline: bool) -> int:
        """A new message for `members`; its number."""
        number = self.messages
        self.messages += 1
        self.members_of[number], self.senders[number] = tuple(sorted(members)), sender
        self._append(self.dispatch(number, sender, inline).encode(), number, self.members_of[number], False)
        return number

    def append_repeat(self, number: int, *, inline: bool) -> None:
        """Message `number` again, as a relay or a replay of the fan-out stage appends it."""
        again = self.dispatch(number, self.senders[number], inline)
        again = again._replace(outbox_offset=10_000 + self.next_offset, fencing_epoch=9)
        self._append(again.encode(), number, self.members_of[number], False)

    def append_forged(self, number: int) -> None:
        """The dispatch_id of message `number` with other content."""
        forged = self.dispatch(number, self.senders[number], True)._replace(body_digest=b"otherone")
        self._append(forged.encode(), None, (), True)

    def append_bytes(self, value: bytes | None) -> None:
        """Poison."""
        self._append(value, None, (), True)

    def skip_offsets(self, count: int) -> None:
        """A hole, as transaction markers leave it."""
        self.next_offset += count

    def _append(
        self, value: bytes | None, message: int | None, members: tuple[int, ...], poison: bool
    ) -> None:
        self.log.append(Record(self.next_offset, b"k", value))
        self.facts.append(Fact(self.next_offset, message, members, poison))
        if message is not None and message not in self._first:
            self._first[message] = self.next_offset
            for ordinal in members:
                self._owed[ordinal].append((self.next_offset, message))
        self.next_offset += 1
        self.begin = 0
        self.now_ms += 1

    def dispatch(self, number: int, sender: int, inline: bool) -> GroupDispatch:
        """The GroupDispatch of message `number`."""
        message_id = (number + 1).to_bytes(16, "big")
        members = self.members_of[number]
        self.bitmaps.rows[TENANT, f"c{number}", SHARD, number] = encode(BitMap(members))
        return GroupDispatch(
            tenant_id=TENANT,
            dispatch_id=ids.dispatch_id(message_id, SHARD),
            message_id=message_id,
            conversation_id=f"c{number}",
            conversation_seq=1,
            last_activity_id=message_id,
            sender_id=f"u{sender}",
            fencing_epoch=1,
            membership_version=1,
            target_mailbox_shard=SHARD,
            kind=0,
            sender_ordinal=sender,
            sender_device_id="d",
            client_message_id=f"m{number}",
            body_digest=b"8 bytes!",
            outbox_partition=0,
            outbox_offset=number,
            committed_at=1_000,
            bitmap_version=number,
            members=pack_ordinals(list(members)) if inline else None,
        )

    # -- the account

    def first_occurrences(self) -> dict[int, int]:
        """Offset of each message's first occurrence."""
        return self._first

    def expected(self, ordinal: int, up_to: int) -> list[tuple[int, int]]:
        """(offset, message) of everything that `ordinal` must hold up to `up_to`."""
        return [one for one in self._owed[ordinal] if one[0] <= up_to]

    async def held(self, ordinal: int) -> list[tuple[int, int]]:
        """(offset, message) of everything in the mailbox of `ordinal`, W or not."""
        rows = await self.store.read(SHARD, TENANT, ordinal, -1, rule.SEQ_MAX - 2, 10_000)
        return [
            (row.mailbox_seq, int.from_bytes(decode_entry(row.value).message_id, "big") - 1) for row in rows
        ]

    async def watermark(self) -> tuple[int, ...]:
        """W of the store."""
        return (await self.store.watermark(SHARD)).lanes

    async def check(self) -> None:
        """I3, I5, I6, I8: every mailbox holds exactly what W says, once, in order."""
        lanes = await self.watermark()
        for ordinal in ORDINALS:
            held = await self.held(ordinal)
            covered = lanes[lane_of_ordinal(ordinal)]
            visible = [one for one in held if one[0] <= covered]
            assert visible == self.expected(ordinal, covered), f"ordinal {ordinal} at W {covered}"
            assert held == self.expected(ordinal, held[-1][0] if held else -1), f"ordinal {ordinal}: a hole"
            assert len({message for _, message in held}) == len(held), f"ordinal {ordinal}: twice"

    def check_pages(self, covered: int | None) -> None:
        """I17: what the changelog says is done is covered by W; and its pages hold every id up to there."""
        recovered = self.progress_table.elsewhere()
        pages = [decode_page(value) for key, value in recovered.iterate(SHARD) if page_end(key) is not None]
        newest = max((page.last for page in pages), default=-1)
        assert covered is None or newest <= covered, "a page above W"
        done = min(newest, rule.lowest(WatermarkFloors(self.floor_table.elsewhere()).read(SHARD)))
        paged = {row.dispatch_id for page in pages for row in page.rows}
        lost = [
            n
            for n, offset in self.first_occurrences().items()
            if offset <= done and self.id_of(n) not in paged
        ]
        assert not lost, f"dispatch_ids of {lost} are in no page"

    def check_memory(self, worker: "Worker") -> None:
        """Deduplication is exact: the worker knows every id up to where it is."""
        first = {n: at for n, at in self.first_occurrences().items() if at <= worker.previous}
        seen = worker.progress.seen(SHARD, [self.id_of(number) for number in first])
        for (number, offset), one in zip(first.items(), seen, strict=True):
            assert one is not None, f"message {number} of offset {offset} is not remembered"
            assert one.offset == offset, f"message {number} of offset {offset}: {one}"

    def id_of(self, number: int) -> bytes:
        """The dispatch_id of message `number`."""
        return ids.dispatch_id((number + 1).to_bytes(16, "big"), SHARD)

    def poison_offsets(self, up_to: int) -> set[int]:
        """Offsets of the poison up to `up_to`."""
        return {fact.offset for fact in self.facts if fact.poison and fact.offset <= up_to}
