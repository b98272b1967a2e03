"""Shards that are split while messages flow, against everything that dies, sleeps or is behind.

The world: Outbox partitions with messages, copies of messages and markers; fan-out workers that die, are
doubled (a paused one wakes) and go on from a page; dispatch logs per shard; mailbox owners that drop repeats
by message; operators who run the split, several at once, each from what it knew last; gateways that know an
older mapping; devices that pull, leave with a cursor and come back at any gateway.

Held at every pull: of every Outbox partition a device has a prefix of what was sent to its user, in order,
and nothing twice but copies, whose event_id is the same. Held at the end: it has everything. A cursor that
was issued is never refused.

Users move up to `SPLITS` times, also out of shards that got nothing meanwhile.

T-M1 and T-M2 for splits; scenarios about growing shards. Spec: §11.
"""

import os
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from qim_streams.sharding import rules
from qim_streams.sharding.mapping_log import encode, fold
from qim_streams.sharding.marker import MARKER_KEY, behind, encode_marker
from qim_streams.sharding.rules import Placement, ShardMapping, Step

GROUPS, OUTBOXES, USERS, ROOM = 2, 2, 12, 16
SPLITS = int(os.environ.get("QIM_TEST_SPLITS", "3"))
PARTITION = st.integers(0, OUTBOXES - 1)


@dataclass(frozen=True)
class Message:
    """A message in the Outbox, or, without recipients, a marker."""

    number: int
    recipients: tuple[int, ...]
    key: bytes = b"acme\0chat"
    value: bytes = b""


@dataclass(frozen=True)
class Dispatch:
    """What fan-out wrote for a shard; recipients are those of the group, the shard takes its own."""

    message: Message
    partition: int
    version: int


@dataclass
class Fanout:
    """A worker on one Outbox partition: where it stands, which version is in force there, what it heard."""

    partition: int
    position: int = 0
    version: int = 0
    knows: Placement = field(default_factory=lambda: Placement(ShardMapping(GROUPS)))


@dataclass
class Device:
    """A device with its cursor (shard, position) and what it has."""

    ordinal: int
    shard: int
    position: int = -1
    got: list[tuple[int, int]] = field(default_factory=list)  # (Outbox partition, message)


def group_of(ordinal: int) -> int:
    """The model's hash of a name."""
    return ordinal % GROUPS


class SplitMachine(RuleBasedStateMachine):
    """See the module text."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox: list[list[Message]] = [[] for _ in range(OUTBOXES)]
        self.sent: list[list[Message]] = [[] for _ in range(OUTBOXES)]
        self.copied: set[tuple[int, int]] = set()
        self.pages = [Fanout(partition) for partition in range(OUTBOXES)]
        self.workers = [Fanout(partition) for partition in range(OUTBOXES)]
        self.zombies: list[Fanout] = []
        self.dispatch: list[list[Dispatch]] = [[] for _ in range(ROOM)]
        self.read = [0] * ROOM  # by the mailbox owner
        self.owners = [Placement(ShardMapping(GROUPS)) for _ in range(ROOM)]  # what each heard
        self.written: list[set[int]] = [set() for _ in range(ROOM)]
        self.boxes: list[dict[int, list[tuple[int, tuple[int, int]]]]] = [{} for _ in range(ROOM)]
        self.log: list[bytes] = []
        self.operators = [ShardMapping(GROUPS), ShardMapping(GROUPS)]
        self.ends: dict[int, tuple[int, dict[int, int]]] = {}  # what an operator has read, before it writes
        self.gateways = [Placement(ShardMapping(GROUPS)), Placement(ShardMapping(GROUPS))]
        self.devices = [Device(one, group_of(one)) for one in range(USERS)]

    # -- what everybody can look at

    def mapping(self) -> ShardMapping:
        """What stands in the log of mappings."""
        return fold(ShardMapping(GROUPS), self.log)

    def at_least(self, knows: Placement, version: int) -> Placement:
        """What somebody knows who has heard of `knows` and needs a version: he asks only if he must."""
        return knows if knows.known >= version else Placement(self.mapping())

    @rule(shard=st.integers(0, ROOM - 1), partition=PARTITION)
    def tell(self, shard: int, partition: int) -> None:
        """An owner and a worker hear what stands, also of what is only planned."""
        self.owners[shard] = self.workers[partition].knows = Placement(self.mapping())

    # -- messages

    @rule(partition=PARTITION, recipients=st.sets(st.integers(0, USERS - 1), min_size=1, max_size=6))
    def send(self, partition: int, recipients: set[int]) -> None:
        """A message is committed."""
        message = Message(len(self.sent[partition]), tuple(sorted(recipients)))
        self.sent[partition].append(message)
        self.outbox[partition].append(message)

    @rule(partition=PARTITION, back=st.integers(1, 4))
    def copy(self, partition: int, back: int) -> None:
        """A relay appends what is in the Outbox already."""
        if len(self.sent[partition]) >= back:
            self.copied.add((partition, self.sent[partition][-back].number))
            self.outbox[partition].append(self.sent[partition][-back])

    # -- fan-out

    @rule(partition=PARTITION, count=st.integers(1, 6))
    def fan_out(self, partition: int, count: int) -> None:
        """The partition's worker goes on."""
        for _ in range(count):
            self._step(self.workers[partition])

    @rule(partition=PARTITION)
    def checkpoint(self, partition: int) -> None:
        """Its page is durable."""
        self.pages[partition] = replace(self.workers[partition])

    @rule(partition=PARTITION)
    def die(self, partition: int) -> None:
        """Another worker goes on from the page; the old one may only sleep."""
        self.zombies = [*self.zombies[-2:], self.workers[partition]]
        self.workers[partition] = replace(self.pages[partition])

    @precondition(lambda self: self.zombies)
    @rule(data=st.data(), count=st.integers(1, 4))
    def wake(self, data: st.DataObject, count: int) -> None:
        """One that slept goes on where it was; its pages are refused, its dispatches are not."""
        for _ in range(count):
            self._step(data.draw(st.sampled_from(self.zombies)))

    def _step(self, worker: Fanout) -> None:
        if worker.position >= len(self.outbox[worker.partition]):
            return
        message = self.outbox[worker.partition][worker.position]
        version = behind(worker.version, message.key, message.value)
        if message.recipients:
            self._dispatch(worker, message, version)
        worker.version, worker.position = version, worker.position + 1

    def _dispatch(self, worker: Fanout, message: Message, version: int) -> None:
        placement = worker.knows = self.at_least(worker.knows, version)
        for group in {group_of(one) for one in message.recipients}:
            for shard in placement.targets(group, version):
                self.dispatch[shard].append(Dispatch(message, worker.partition, version))

    # -- mailboxes

    @rule(shard=st.integers(0, ROOM - 1), count=st.integers(1, 8))
    def materialise(self, shard: int, count: int) -> None:
        """The shard's owner goes on."""
        for offset in range(self.read[shard], min(self.read[shard] + count, len(self.dispatch[shard]))):
            self._write(shard, offset)
            self.read[shard] = offset + 1

    def _write(self, shard: int, offset: int) -> None:
        one = self.dispatch[shard][offset]
        placement = self.owners[shard] = self.at_least(self.owners[shard], one.version)
        if shard >= GROUPS and not placement.first_of(shard):
            placement = self.owners[shard] = Placement(self.mapping())
        name = one.partition * 1_000_000 + one.message.number
        if name in self.written[shard]:
            return
        self.written[shard].add(name)
        group = placement.group_of(shard)
        members = [ordinal for ordinal in one.message.recipients if group_of(ordinal) == group]
        for ordinal in placement.select(members, shard, one.version):
            entry = (placement.first_of(shard) + offset, (one.partition, one.message.number))
            self.boxes[shard].setdefault(ordinal, []).append(entry)

    # -- operators

    @rule(who=st.integers(0, 1))
    def look(self, who: int) -> None:
        """An operator reads the log of mappings."""
        self.operators[who] = fold(self.operators[who], self.log)

    @rule(who=st.integers(0, 1), data=st.data())
    def plan(self, who: int, data: st.DataObject) -> None:
        """An operator plans a split from what it knew last."""
        mapping = self.operators[who]
        shards = Placement(mapping).shards
        done = sum(bool(split.pairs) for split in mapping.splits)
        if mapping.under_way is not None or done >= SPLITS:
            return
        olds = data.draw(st.sets(st.integers(0, shards - 1), min_size=1, max_size=2))
        ends = {old: len(self.dispatch[old]) for old in olds}
        begins = [len(log) for log in self.outbox]
        self.log.append(encode(rules.plan(mapping, sorted(olds), ends, begins, ROOM)))

    @rule(who=st.integers(0, 1))
    def prepare(self, who: int) -> None:
        """An operator writes down that markers may be appended from now on."""
        split = self.operators[who].under_way
        if split is not None and split.step is Step.PLANNED:
            self.log.append(encode(rules.prepared(self.operators[who])))

    @rule(who=st.integers(0, 1))
    def abandon(self, who: int) -> None:
        """An operator gives up what was only planned, as far as he knows."""
        split = self.operators[who].under_way
        if split is not None and split.step is Step.PLANNED:
            self.log.append(encode(rules.abandoned(self.operators[who])))

    @rule(who=st.integers(0, 1), partition=PARTITION)
    def mark(self, who: int, partition: int) -> None:
        """An operator appends one marker, and may die before the next."""
        split = self.operators[who].under_way
        if split is not None and split.step is Step.PREPARED:
            marker = Message(-1, (), MARKER_KEY, encode_marker(split.version))
            self.outbox[partition].append(marker)

    @rule(who=st.integers(0, 1))
    def note_marks(self, who: int) -> None:
        """An operator that found a marker in every partition says so."""
        split = self.operators[who].under_way
        if split is None or split.step is not Step.PREPARED:
            return
        marks = []
        for begin, log in zip(split.begins, self.outbox, strict=True):
            found = [at for at in range(begin, len(log)) if log[at].value == encode_marker(split.version)]
            marks += found[:1]
        if len(marks) == OUTBOXES:
            self.log.append(encode(rules.marked(self.operators[who], marks)))

    @rule(who=st.integers(0, 1))
    def read_ends(self, who: int) -> None:
        """An operator sees that all is dispatched, and reads where the old shards end."""
        mapping = self.operators[who]
        split = mapping.under_way
        if split is None or split.step is not Step.MARKED:
            return
        if all(page.position > mark for page, mark in zip(self.pages, split.marks, strict=True)):
            ends = {pair.old: len(self.dispatch[pair.old]) for pair in split.pairs}
            self.ends[who] = mapping.revision, ends

    @rule(who=st.integers(0, 1))
    def settle(self, who: int) -> None:
        """And writes it down, perhaps much later."""
        revision, ends = self.ends.pop(who, (-1, {}))
        if revision == self.operators[who].revision:
            self.log.append(encode(rules.settled(self.operators[who], ends)))

    @rule(who=st.integers(0, 1), dispatched=st.booleans())
    def operate(self, who: int, dispatched: bool) -> None:
        """One whole step, as it is done when nothing goes wrong."""
        self.look(who)
        self.prepare(who)
        for partition in range(OUTBOXES):
            self.mark(who, partition)
        self.note_marks(who)
        for partition in range(OUTBOXES if dispatched else 0):
            self.fan_out(partition, 3)
            self.checkpoint(partition)
        self.read_ends(who)
        self.settle(who)

    @rule(data=st.data(), dispatched=st.booleans())
    def split(self, data: st.DataObject, dispatched: bool) -> None:
        """All steps in a row: as far as nobody else is in between, a whole split."""
        self.look(0)
        self.plan(0, data)
        for _ in range(4):
            self.operate(0, dispatched)

    # -- devices

    @rule(gateway=st.integers(0, 1), hears=st.booleans(), count=st.integers(1, 9))
    def pull_all(self, gateway: int, hears: bool, count: int) -> None:
        """All owners go on, and all devices pull at one gateway, which may have heard what stands."""
        if hears:
            self.hear(gateway)
        for shard in range(ROOM):
            self.materialise(shard, count)
        for user in range(USERS):
            self.pull(gateway, user, count)

    @rule(gateway=st.integers(0, 1))
    def hear(self, gateway: int) -> None:
        """A gateway reads the log of mappings."""
        self.gateways[gateway] = Placement(self.mapping())

    @rule(gateway=st.integers(0, 1), user=st.integers(0, USERS - 1), count=st.integers(1, 5))
    def pull(self, gateway: int, user: int, count: int) -> None:
        """A device signs on at a gateway and pulls a few entries."""
        device, placement = self.devices[user], self.gateways[gateway]
        home = placement.place(group_of(user), user, placement.version)
        if device.shard not in [part.shard for part in placement.parts(home)]:
            # A cursor from a mapping that this gateway has not heard of: it asks, then judges.
            placement = self.gateways[gateway] = Placement(self.mapping())
            home = placement.place(group_of(user), user, placement.version)
        parts = placement.parts(home)
        held = [part for part in parts if part.shard == device.shard]
        assert held, f"the cursor of {device} is refused"
        position = min(device.position, held[0].through)
        watermark = rules.covered(parts, [self._watermark(placement, part.shard) for part in parts])
        entries = [
            entry
            for shard, after, up_to in rules.stretch(parts, position, watermark)
            for entry in self.boxes[shard].get(user, [])
            if after < entry[0] <= up_to
        ][:count]
        # A copy behind a marker gives those who move a second entry with the same event_id: clients drop it.
        for _, what in entries:
            if what not in self.copied or what not in device.got:
                device.got.append(what)
        device.shard = home
        device.position = entries[-1][0] if len(entries) == count else max(position, watermark)
        self._check(device)

    def _watermark(self, placement: Placement, shard: int) -> int:
        return placement.first_of(shard) + self.read[shard] - 1 if self.read[shard] else -1

    def _check(self, device: Device) -> None:
        for partition in range(OUTBOXES):
            got = [number for where, number in device.got if where == partition]
            wanted = [one.number for one in self.sent[partition] if device.ordinal in one.recipients]
            assert got == wanted[: len(got)], f"{device}: sent {wanted}"

    @invariant()
    def what_is_known_stays_known(self) -> None:
        """Every gateway's mapping is the beginning of what stands."""
        stands = self.mapping()
        for placement in self.gateways:
            for mine, now in zip(placement.mapping.splits, stands.splits, strict=False):
                assert now.pairs == mine.pairs or (mine.step is Step.PLANNED and not now.pairs)
                assert mine.step <= now.step

    def teardown(self) -> None:
        """Somebody finishes what was begun, and everything is handled."""
        self.look(0)
        self.prepare(0)
        self.look(0)
        for partition in range(OUTBOXES):
            self.mark(0, partition)
        self.note_marks(0)
        for partition in range(OUTBOXES):
            self.fan_out(partition, 10_000)
            self.checkpoint(partition)
        self.look(0)
        self.read_ends(0)
        self.settle(0)
        assert self.mapping().under_way is None
        for shard in range(ROOM):
            self.materialise(shard, 10_000)
        for device in self.devices:
            for _ in range(2):
                self.pull(device.ordinal % 2, device.ordinal, 10_000)
            self.hear(0)
            self.pull(0, device.ordinal, 10_000)
            for partition in range(OUTBOXES):
                got = [number for where, number in device.got if where == partition]
                wanted = [one.number for one in self.sent[partition] if device.ordinal in one.recipients]
                assert got == wanted, f"{device} lacks something of {partition}"


TestSplitMachine = SplitMachine.TestCase
TestSplitMachine.settings = settings(
    max_examples=int(os.environ.get("QIM_TEST_SPLIT_RUNS", "60")), stateful_step_count=60, deadline=None
)
