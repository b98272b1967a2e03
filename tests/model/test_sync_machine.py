"""T-M3: one device syncs while its mailbox is written, trimmed and taken over.

The device pipelines pulls, answers come in any order, pushes arrive in between, the device crashes and
comes back with what it has stored. After every step: everything that its stored cursor covers since its
last rebuild is stored (I8, P7), the cursor moved only by batches and ONLINE_READY (P8), a batch holds
exactly the entries of its range (I8), and a trimmed range was an explicit error (I9).
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from qim_streams import limits
from qim_streams.errors import ProtocolError, SyncVerdict
from qim_streams.sync.cursor import CursorSigner
from qim_streams.sync.pull import PullResult, PullService
from qim_streams.sync.service import Opening, SyncService
from qim_streams.wire.connection import ServerConnection, State
from qim_streams.wire.frames import Auth, PullMailbox, SyncComplete
from tests.support.mailbox_world import ADDRESS, MailboxWorld

SIGNER = CursorSigner(b"k" * 32)


@dataclass
class Device:
    """What survives a crash of the device: entries and cursor, and where its promise starts."""

    stored: set[tuple[int, int]] = field(default_factory=set)
    cursor: str | None = None
    promised_from: int = -1  # entries at or below are not promised: rebuilt or "from now"


class SyncMachine(RuleBasedStateMachine):
    """The machine of T-M3."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.world = MailboxWorld()
        self.pulls = PullService(self.world.store, self.world.hot, self.world.archive)
        self.sync = SyncService(self.world.store, self.world.epochs, self.world.epochs, SIGNER)
        self.device = Device()
        self.opening: Opening | None = None
        self.shard_epoch = 0  # the newest that the session has seen
        self.connection = ServerConnection(8)
        self.unanswered: list[PullMailbox] = []
        self.from_now = False

    def teardown(self) -> None:
        self.loop.close()

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    # -- the world

    @initialize(counts=st.lists(st.integers(0, 3), max_size=12), known=st.sampled_from([True, True, False]))
    def some_past(self, counts: list[int], known: bool) -> None:
        for count in counts:
            self.write(1, count)
        if known:  # the device has synced before, when the mailbox was empty
            self.device.cursor = SIGNER.issue(ADDRESS, self.world.epochs.epoch, -1)

    @rule(gap=st.integers(1, 3), counts=st.lists(st.integers(0, 3), min_size=1, max_size=5))
    def write_some(self, gap: int, counts: list[int]) -> None:
        for events in counts:
            self.write(gap, events)

    def write(self, gap: int, events: int) -> None:
        self.run(self.world.write(self.world.tail + gap, events))

    @rule(below=st.integers(0, 12))
    def trim(self, below: int) -> None:
        self.world.trim(min(max(self.world.tail - below, -1), self.world.tail))

    @rule()
    def take_over(self) -> None:
        self.world.take_over()

    @rule()
    def archive(self) -> None:
        self.world.archive_all()

    # -- the device

    @precondition(lambda self: self.connection.state in (State.CONNECTED, State.CLOSED))
    @rule()
    def authenticate(self) -> None:
        self.connection, self.unanswered = ServerConnection(8), []
        cursor = SIGNER.open(self.device.cursor, ADDRESS) if self.device.cursor else None
        assert self.connection.receive(Auth(1, "t", "phone", self.device.cursor)) is None
        try:
            self.opening = self.run(self.sync.open(ADDRESS, self.device.cursor))
        except SyncVerdict as verdict:
            self.connection.auth_refused()
            self.refused(verdict, cursor)
            return
        self.from_now, self.shard_epoch = cursor is None, self.opening.here.shard_epoch
        if cursor is None:
            self.device.promised_from = self.opening.sync_to_seq
        else:
            assert cursor.shard_epoch == self.world.epochs.epoch
            assert cursor.last_applied >= self.world.trimmed
        self.connection.auth_accepted()

    def refused(self, verdict: SyncVerdict, cursor: Any) -> None:
        assert cursor is not None
        if verdict.code == "CURSOR_EXPIRED":
            assert cursor.last_applied < self.world.trimmed
            self.device.cursor = None
        else:
            assert verdict.code == "CURSOR_REBASED"
            assert cursor.shard_epoch < self.world.epochs.epoch
            assert verdict.fields["replay_from_seq"] == cursor.last_applied + 1
            self.device.cursor = str(verdict.fields["new_cursor"])

    @precondition(lambda self: self.connection.authenticated)
    @rule(data=st.data())
    def pull(self, data: st.DataObject) -> None:
        assert self.opening is not None
        session, top = self.opening.session, self.world.tail + 2
        last = self.world.tail if session.online else self.opening.sync_to_seq
        inside = st.integers(min(session.prefix, last), last)
        after = data.draw(st.one_of(st.just(session.prefix), inside, inside, st.integers(-1, top)))
        up_to = data.draw(st.one_of(st.just(last), inside, st.integers(-1, top)))
        size = data.draw(st.just(limits.PULL_BYTES_MAX) | st.integers(1, 900))
        frame = PullMailbox(2, after, up_to, data.draw(st.integers(1, 8)), size)
        refusal = self.connection.receive(frame)
        if len(self.unanswered) == limits.PULL_WINDOW:
            assert refusal is not None
            assert refusal.name == "PULL_WINDOW_EXCEEDED"
        else:
            assert refusal is None
            self.unanswered.append(frame)

    @precondition(lambda self: self.unanswered)
    @rule(data=st.data(), trim_to=st.none() | st.integers(0, 8), early=st.booleans())
    def answer(self, data: st.DataObject, trim_to: int | None, early: bool) -> None:
        """One of the unanswered pulls is served, with a trim right before or after its rows are read."""
        frame = self.unanswered.pop(data.draw(st.integers(0, len(self.unanswered) - 1)))
        if trim_to is not None:
            hook = "before_read" if early else "after_read"
            up_to = max(min(self.world.tail - trim_to, self.world.tail), -1)
            setattr(self.world.store, hook, lambda: self.world.trim(up_to))
        self.connection.pull_answered()
        self.serve(frame)
        self.world.store.before_read = self.world.store.after_read = None

    def serve(self, frame: PullMailbox) -> None:
        assert self.opening is not None
        session = self.opening.session
        bound = self.world.tail if session.online else self.opening.sync_to_seq
        legal = frame.after_seq <= frame.up_to_seq <= bound
        result = self.attempt(frame)
        if isinstance(result, ProtocolError):
            assert (result.code, legal) == ("PULL_OUT_OF_RANGE", False)
            return
        if isinstance(result, SyncVerdict):
            assert (result.code, legal) == ("CURSOR_EXPIRED", True)
            assert frame.after_seq < self.world.trimmed
            return
        assert legal
        span = (frame.after_seq, result.covered_through_seq)
        got = [(event.mailbox_seq, event.event_ordinal) for event in result.events]
        assert got == [place for place in self.world.entries if span[0] < place[0] <= span[1]]
        assert result.has_more == (span[1] < frame.up_to_seq)
        self.shard_epoch = max(self.shard_epoch, result.shard_epoch)
        self.apply(got, session.cover(*span))

    def attempt(self, frame: PullMailbox) -> PullResult | ProtocolError | SyncVerdict:
        assert self.opening is not None
        try:
            self.opening.session.check_pull(frame.after_seq, frame.up_to_seq, self.world.tail)
            return self.run(self.pulls.pull(ADDRESS, *frame[1:]))
        except (ProtocolError, SyncVerdict) as error:
            return error

    def apply(self, got: list[tuple[int, int]], position: int | None) -> None:
        """The device stores the entries, then the cursor."""
        assert self.opening is not None
        self.device.stored |= set(got)
        if position is None:
            return
        if position < self.device.promised_from:  # a new device that takes the past as well
            self.device.promised_from = self.opening.here.trim
        self.device.cursor = self.sync.cursor(ADDRESS, self.shard_epoch, position)

    @precondition(lambda self: self.connection.authenticated)
    @rule(error=st.sampled_from([0, 0, 0, 1, -1]))
    def complete(self, error: int) -> None:
        assert self.opening is not None
        session = self.opening.session
        value = self.opening.sync_to_seq + error
        assert self.connection.receive(SyncComplete(3, max(value, -1))) is None
        try:
            session.check_complete(value)
        except SyncVerdict:
            self.connection.completion_refused()
            assert error or session.prefix < self.opening.sync_to_seq
            return
        assert not error
        if self.connection.state is not State.ONLINE:
            position = session.complete()
            self.device.cursor = self.sync.cursor(ADDRESS, self.shard_epoch, position)
            if self.from_now:
                self.device.promised_from = max(self.device.promised_from, position)
        self.connection.completion_accepted()

    @precondition(lambda self: self.connection.state is State.ONLINE)
    @rule(back=st.integers(0, 3))
    def push(self, back: int) -> None:
        """Any event of the mailbox arrives by push: it is stored and the cursor stays."""
        cursor = self.device.cursor
        if self.world.entries:
            self.device.stored.add(self.world.entries[-1 - min(back, len(self.world.entries) - 1)])
        assert self.device.cursor == cursor

    @rule()
    def crash(self) -> None:
        """The connection ends: what was unanswered is lost, what was stored is not."""
        self.connection.close()
        self.unanswered, self.opening = [], None

    @invariant()
    def what_the_cursor_covers_is_stored(self) -> None:
        if self.device.cursor is None:
            return
        cursor = SIGNER.open(self.device.cursor, ADDRESS)
        assert cursor is not None
        promised = {p for p in self.world.entries if self.device.promised_from < p[0] <= cursor.last_applied}
        assert promised <= self.device.stored, promised - self.device.stored


SyncMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestSyncMachine = SyncMachine.TestCase
