"""T-M3 with several devices: one user's devices sync, pull and are pushed to, beside each other.

Each has its own cursor, session and live stream over one mailbox that is written, trimmed by hand and by
age, and taken over by new owners. Owners die between W and push, their successors promise anew, everything
pushed reaches the gateways through one ordered log; devices crash and come back with what they stored.

At every step: what a stored cursor covers since the device's last rebuild is stored (I8, P7); a push moves
no cursor (P8), comes above sync_to_seq, after ONLINE_READY, in order, and never past a gap unless LIVE_LOST
was said (A4, A5, A14); a takeover changes the epoch of a cursor, never its position (E8); what was trimmed
is an explicit error (A10, E14, I9). At the end, once all is quiet: every device has every entry that it was
promised (A2, A16, A17).
"""

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qim_streams.errors import ProtocolError, SyncVerdict
from qim_streams.gateway.live import Fill, LiveStream, Phase
from qim_streams.sync.cursor import CursorSigner
from qim_streams.sync.ports import MailboxAddress
from qim_streams.sync.pull import PulledEvent, PullResult, PullService
from qim_streams.sync.service import Opening, SyncService
from tests.support.mailbox_world import ADDRESS, SHARD, MailboxWorld

SIGNER = CursorSigner(b"k" * 32)
LIVES, TURNS = int(os.environ.get("QIM_TEST_DEVICE_LIVES", "60")), 200
NAMES = ("phone", "laptop", "pad")
HELD_BYTES = 900  # four events or so: overflow is met often
Place = tuple[int, int]
T = TypeVar("T")


def place(event: PulledEvent) -> Place:
    """Where an event lies."""
    return event.mailbox_seq, event.event_ordinal


@dataclass
class Device:
    """A device, its connection, and what the gateway keeps for it. The first three survive a crash."""

    address: MailboxAddress
    stored: set[Place] = field(default_factory=set)
    cursor: str | None = None
    promised_from: int = -1  # entries at or below are not promised: rebuilt, or "from now"
    opening: Opening | None = None
    stream: LiveStream | None = None
    epoch: int = 0
    from_now: bool = False
    online: bool = False
    known: bool = False  # to the present owner, which pushes to it
    promised: bool = False  # it has said PresenceReady
    fill: Fill | None = None
    lost_to: int = -1
    told_lost: bool = False
    sent: list[Place] = field(default_factory=list)

    @property
    def position(self) -> int:
        """What the stored cursor claims."""
        opened = SIGNER.open(self.cursor, self.address) if self.cursor else None
        return self.promised_from if opened is None else opened.last_applied

    def crash(self) -> None:
        """The connection is gone."""
        self.opening = self.stream = self.fill = None
        self.online = self.known = self.promised = self.told_lost = False
        self.sent = []


class DevicesMachine(RuleBasedStateMachine):
    """See the module text."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.world = MailboxWorld()
        self.pulls = PullService(self.world.store, self.world.hot, self.world.archive)
        self.sync = SyncService(self.world.store, self.world.epochs, self.world.epochs, SIGNER)
        self.devices = [Device(ADDRESS._replace(device_id=name)) for name in NAMES]
        self.log: deque[tuple[str, int, int, Any]] = deque()  # push or ready, epoch, seq, for whom
        self.pushed_through = -1
        self.met = Counter[str]()

    def teardown(self) -> None:
        """All is quiet in the end: nothing promised is missing."""
        try:
            self.settle_down()
        finally:
            self.loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    # -- the mailbox stage

    @initialize(counts=st.lists(st.integers(0, 3), max_size=6))
    def some_past(self, counts: list[int]) -> None:
        self.write_some(1, counts)
        for device in self.devices[:2]:  # they have synced before, when the mailbox was empty
            device.cursor = SIGNER.issue(device.address, self.world.epochs.epoch, -1)

    @rule(gap=st.integers(1, 3), counts=st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def write_some(self, gap: int, counts: list[int]) -> None:
        for events in counts:
            self.run(self.world.write(self.world.tail + gap, events))

    @rule(below=st.integers(0, 10), by_age=st.booleans())
    def trim(self, below: int, by_age: bool) -> None:
        up_to = max(self.world.tail - below, -1)
        if not by_age:
            self.world.trim(up_to)
            return
        store, epoch = self.world.store, self.world.epochs.epoch
        self.run(store.trim_aged(SHARD, epoch, up_to, 64, 2_000))
        self.world.trimmed = self.run(store.trim_watermark(SHARD, ADDRESS.tenant_id, ADDRESS.ordinal))

    @rule(steps=st.integers(1, 8))
    def push(self, steps: int) -> None:
        """The owner pushes the next visible seqs to the devices that it knows."""
        end = min(self.world.tail, self.pushed_through + steps)
        for device in self.devices:
            if device.known:
                self._say_events(device, self.pushed_through, end)
        self.pushed_through = end

    def _say_events(self, device: Device, after: int, end: int) -> None:
        seqs = sorted({seq for seq, _ in self.world.entries if after < seq <= end})
        self.log.extend(("push", self.world.epochs.epoch, seq, device) for seq in seqs)

    @rule(which=st.integers(0, len(NAMES) - 1))
    def hear_of(self, which: int) -> None:
        """A device's presence reaches the owner, or an owner that found it in the log has caught up."""
        device = self.devices[which]
        if device.stream is not None and not device.promised:
            device.known = device.promised = True
            self.log.append(("ready", self.world.epochs.epoch, self.pushed_through, device))

    @rule(lost=st.integers(0, 4), late=st.booleans(), at_once=st.booleans())
    def take_over(self, lost: int, late: bool, at_once: bool) -> None:
        """The owner dies with its last words unsaid, or heard after its successor's first ones."""
        words = [self.log.pop() for _ in range(min(lost, len(self.log)))]
        self.world.take_over()
        self.pushed_through = self.world.tail
        for which, device in enumerate(self.devices):
            device.promised = False  # its successor finds the presence in the log, and may push before
            if device.known and at_once:
                self.hear_of(which)
        if late:
            self.log.extend(reversed(words))

    # -- devices and their gateways

    @rule(which=st.integers(0, len(NAMES) - 1))
    def sign_on(self, which: int) -> None:
        """AUTH, with what the verdicts ask for."""
        device = self.devices[which]
        device.crash()
        opening = None
        for _ in range(3):
            before = device.position
            try:
                opening = self.run(self.sync.open(device.address, device.cursor))
                break
            except SyncVerdict as verdict:
                self._refused(device, verdict, before)
        assert opening is not None, "no AUTH_OK after three attempts"
        device.from_now = device.cursor is None
        if device.from_now:
            device.promised_from = opening.sync_to_seq
        device.opening, device.epoch = opening, opening.here.shard_epoch
        device.stream = LiveStream(opening.sync_to_seq, HELD_BYTES)

    def _refused(self, device: Device, verdict: SyncVerdict, before: int) -> None:
        self.met[verdict.code] += 1
        if verdict.code == "CURSOR_EXPIRED":
            assert before < self.world.trimmed, "expired although nothing after the cursor was trimmed"
            device.cursor = None
            return
        assert verdict.code == "CURSOR_REBASED"
        assert verdict.fields["replay_from_seq"] == before + 1, "a takeover moved a position"
        device.cursor = str(verdict.fields["new_cursor"])
        assert device.position == before

    @rule(which=st.integers(0, len(NAMES) - 1), random=st.randoms(use_true_random=False))
    def pull(self, which: int, random: Random) -> None:
        """A pull from the prefix or elsewhere, with a trim right before or after its rows are read."""
        device = self.devices[which]
        if device.opening is None:
            return
        session = device.opening.session
        last = self.world.tail if session.online else device.opening.sync_to_seq
        start = min(session.prefix, last)
        after = random.choice([start, start, start, random.randint(-1, last)])
        up_to = random.choice([last, random.randint(after, max(after, last))])
        if random.random() < 0.05:
            cut = max(self.world.tail - random.randint(0, 20), -1)
            hook = random.choice(["before_read", "after_read"])
            setattr(self.world.store, hook, lambda: self.world.trim(cut))
        self._pull(device, after, up_to, random.randint(1, 6))
        self.world.store.before_read = self.world.store.after_read = None

    def _pull(self, device: Device, after: int, up_to: int, entries: int) -> bool:
        """One PULL_MAILBOX; False for CURSOR_EXPIRED, which ends the session as the client does."""
        assert device.opening is not None
        session = device.opening.session
        session.check_pull(after, up_to, self.world.tail)
        result = self._read(device, after, up_to, entries)
        if result is None:
            assert after < self.world.trimmed
            self.met["pull expired"] += 1
            device.cursor = None
            device.crash()
            return False
        through, got = result.covered_through_seq, [place(event) for event in result.events]
        assert got == [one for one in self.world.entries if after < one[0] <= through], "a hole"
        device.stored |= set(got)
        device.epoch = max(device.epoch, result.shard_epoch)
        position = session.cover(after, through)
        if position is not None:
            if position < device.promised_from:  # a new device that takes the past as well
                device.promised_from = device.opening.here.trim
            device.cursor = self.sync.cursor(device.address, device.epoch, position)
        assert device.stream is not None
        self._take(device, device.stream.pulled(after, through))
        if device.stream.phase is not Phase.LOST:
            device.told_lost = False
        return True

    def _read(self, device: Device, after: int, up_to: int, entries: int) -> PullResult | None:
        try:
            return self.run(self.pulls.pull(device.address, after, up_to, entries, 100_000))
        except SyncVerdict as verdict:
            if verdict.code != "CURSOR_EXPIRED":
                raise
            return None

    @rule(which=st.integers(0, len(NAMES) - 1))
    def complete(self, which: int) -> None:
        """SYNC_COMPLETE: refused until the pulls cover sync_to_seq, then ONLINE_READY."""
        device = self.devices[which]
        if device.opening is None or device.stream is None or device.online:
            return
        session = device.opening.session
        try:
            session.check_complete(device.opening.sync_to_seq)
        except SyncVerdict:
            assert session.prefix < device.opening.sync_to_seq
            return
        device.online = True
        self.met["online"] += 1
        if device.from_now and session.prefix < device.opening.sync_to_seq:
            device.promised_from = (
                device.opening.sync_to_seq
            )  # it took a part of the past, and leaves the rest
        position = session.complete()
        device.cursor = self.sync.cursor(device.address, device.epoch, position)
        self._take(device, device.stream.online())

    @rule(count=st.integers(1, 10))
    def read_log(self, count: int) -> None:
        """The gateways handle the next words of the push log."""
        for _ in range(min(count, len(self.log))):
            what, epoch, seq, device = self.log.popleft()
            if device.stream is None:
                continue
            if what == "ready":
                self._take(device, device.stream.ready(epoch, seq))
            else:
                self._send(device, device.stream.push(epoch, self._events(seq - 1, seq)))

    def _events(self, after: int, through: int) -> list[PulledEvent]:
        return [
            PulledEvent(seq, ordinal, b"", 0, 0, None, b"b" * 100)
            for seq, ordinal in self.world.entries
            if after < seq <= through
        ]

    @precondition(lambda self: any(device.fill is not None for device in self.devices))
    @rule(which=st.integers(0, len(NAMES) - 1), entries=st.integers(1, 5))
    def run_fill(self, which: int, entries: int) -> None:
        """A piece of a running fill; over a trimmed stretch it ends in LIVE_LOST."""
        device = self.devices[which]
        fill, stream = device.fill, device.stream
        if fill is None or stream is None or stream.phase is not Phase.FILLING:
            return
        self.met["fill"] += 1
        through = fill.after_seq
        if fill.up_to_seq > fill.after_seq:
            try:
                result = self._read(device, fill.after_seq, fill.up_to_seq, entries)
            except ProtocolError:
                return  # above W in this reader's view: tried again
            if result is None:
                self._lose(device, stream.owed)
                return
            self._send(device, result.events)
            through = result.covered_through_seq
        step = stream.filled(through)
        device.fill = step if isinstance(step, Fill) else None
        if not isinstance(step, Fill):
            self._send(device, step)

    @rule(which=st.integers(0, len(NAMES) - 1))
    def slow_reader(self, which: int) -> None:
        """The socket's queue is full: LIVE_LOST."""
        device = self.devices[which]
        if device.stream is not None and device.stream.phase is Phase.FLOWING:
            self._lose(device, self.world.tail)

    @rule(which=st.integers(0, len(NAMES) - 1))
    def crash(self, which: int) -> None:
        self.devices[which].crash()

    def _take(self, device: Device, fill: Fill | None) -> None:
        if fill is not None:
            device.fill = fill

    def _lose(self, device: Device, up_to: int) -> None:
        assert device.stream is not None
        self.met["lost"] += 1
        device.lost_to, device.told_lost, device.fill = device.stream.lose(up_to), True, None

    def _send(self, device: Device, events: Sequence[PulledEvent]) -> None:
        """PUSH_EVENTS: checked, stored, and the cursor stays."""
        if not events:
            return
        assert device.opening is not None
        assert device.online, "pushed before ONLINE_READY"
        cursor = device.cursor
        self.met["pushed"] += len(events)
        for event in events:
            at = place(event)
            assert device.opening.sync_to_seq < at[0] <= self.world.tail
            assert not device.sent or at > device.sent[-1], "out of order or twice"
            device.sent.append(at)
            device.stored.add(at)
        due = {one for one in self.world.entries if device.opening.sync_to_seq < one[0] < device.sent[-1][0]}
        if not device.told_lost:
            assert due <= device.stored, f"pushed past a gap: {sorted(due - device.stored)}"
        assert device.cursor == cursor

    # -- what must hold

    @invariant()
    def what_a_cursor_covers_is_stored(self) -> None:
        for device in self.devices:
            span = (device.promised_from, device.position)
            promised = {one for one in self.world.entries if span[0] < one[0] <= span[1]}
            assert promised <= device.stored, (device.address.device_id, promised - device.stored)

    def settle_down(self) -> None:
        """Nothing dies any more: every device signs on, syncs, goes online and is told everything."""
        for which, device in enumerate(self.devices):
            while not device.online:
                if device.opening is None:
                    self.sign_on(which)
                assert device.opening is not None
                session = device.opening.session
                if session.prefix < device.opening.sync_to_seq:
                    self._pull(device, session.prefix, device.opening.sync_to_seq, 5)
                else:
                    self.complete(which)
        for _ in range(20):
            self._one_quiet_turn()
        for device in self.devices:
            assert device.stream is not None
            assert device.stream.phase is Phase.FLOWING, device.stream.phase
            missing = {one for one in self.world.entries if one[0] > device.promised_from} - device.stored
            assert not missing, (device.address.device_id, sorted(missing))

    def _one_quiet_turn(self) -> None:
        for which in range(len(self.devices)):
            self.hear_of(which)
        self.push(100)
        self.read_log(len(self.log))
        for which, device in enumerate(self.devices):
            while device.fill is not None and device.stream is not None:
                self.run_fill(which, 5)
                if device.stream.phase is not Phase.FILLING:
                    break
            if not device.told_lost:
                continue
            assert device.opening is not None
            start = device.opening.session.prefix
            if self._pull(device, start, self.world.tail, 100):
                continue
            self.sign_on(which)
            self.complete(which)


DevicesMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=70, deadline=None, suppress_health_check=list(HealthCheck)
)
TestDevicesMachine = DevicesMachine.TestCase


# -- long lives by the same rules: Hypothesis makes short ones, and shrinks what fails


def turn(machine: DevicesMachine, random: Random) -> None:
    """One step of a life in which devices are mostly online and things mostly go on."""
    which, low = random.randrange(len(NAMES)), random.randint(0, 8)
    device = machine.devices[which]
    if device.opening is None and random.random() < 0.7:
        machine.sign_on(which)
        return
    steps: list[tuple[int, Callable[[], None]]] = [
        (8, lambda: machine.write_some(random.randint(1, 3), [random.randint(0, 3)])),
        (8, lambda: machine.push(low)),
        (8, lambda: machine.read_log(low + 1)),
        (8, lambda: machine.pull(which, random)),
        (5, lambda: machine.complete(which)),
        (5, lambda: machine.hear_of(which)),
        (8, lambda: machine.run_fill(which, random.randint(1, 5))),
        (2, lambda: machine.take_over(random.randint(0, 4), *(random.random() < 0.5 for _ in range(2)))),
        (2, lambda: machine.trim(random.randint(0, 40), random.random() < 0.7)),
        (1, lambda: machine.slow_reader(which)),
        (1, lambda: machine.crash(which)),
    ]
    random.choices([step for _, step in steps], [weight for weight, _ in steps])[0]()


def test_long_lives() -> None:
    """T-M3: many steps, mostly online; every kind of trouble is met in some of the lives."""
    first = time.time_ns() % 2**32
    print(f"seeds {first} to {first + LIVES - 1}")
    met = Counter[str]()
    for seed in range(first, first + LIVES):
        random, machine = Random(seed), DevicesMachine()
        machine.met = met
        try:
            machine.some_past([random.randint(0, 3) for _ in range(random.randint(0, 6))])
            for _ in range(TURNS):
                turn(machine, random)
                if random.random() < 0.2:
                    machine.what_a_cursor_covers_is_stored()
            machine.teardown()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    print(met)
    wanted = {"CURSOR_EXPIRED", "CURSOR_REBASED", "pull expired", "fill", "lost", "pushed", "online"}
    assert all(met[what] > LIVES // 20 for what in wanted), met
