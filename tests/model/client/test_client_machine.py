"""The client without sockets against a model server: whatever the network, the mailbox and the process do.

Frames are lost, repeated and reordered; connections break at any frame; the mailbox is trimmed and
rebased; the process dies between any two steps and comes back with its store, to the application's state
of the last kept `given`. At every step: what the application has is ascending per conversation, each once
and for this user (P9, D11); what the cursor covers is kept, or its conversation waits for history (P7);
the cursor moves by pulls only. After healing the application has every message, each once, and every
message that was sent exists once (A1 A2 A5 C1 C2 C13 E7, §8).

Planted bugs show that the machine would see them.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from qim_streams.client.inbox import Inbox
from qim_streams.client.journal import Batch, Journal
from qim_streams.client.line import Line
from qim_streams.client.options import SessionOptions
from qim_streams.client.outbox import Outbox
from qim_streams.client.phases import Phase as Connection
from qim_streams.client.session import Session
from qim_streams.client.store import Change, MemoryStore, Rebuild, Unsent
from qim_streams.history.rules import HistoryPage
from qim_streams.wire.frames import Event, LiveLost, Message, PushEvents, SendAck
from tests.model.client.model_server import ModelServer

ROOMS = ("a", "b", "c")
rooms = st.sampled_from(ROOMS)
OPTIONS = SessionOptions(checkpoint_events=4, checkpoint_interval_ms=0, gap_grace_ms=10, answer_ms=1_000)


class ClientMachine(RuleBasedStateMachine):
    """See the module text."""

    def __init__(self) -> None:
        super().__init__()
        self.server = ModelServer()
        self.store = MemoryStore()
        self.app: list[Event] = []  # what the application has done its work for
        self.ready: list[Event] = []  # handed out, not worked on
        self.sent = 0
        self.now_ms = 1_000
        self.page: tuple[str, list[Message], HistoryPage] | None = None  # on its way
        self.start()

    # -- the process

    def start(self) -> None:
        """A process starts with what the store has."""
        state = self.store.load()
        self.session = Session("phone", OPTIONS, lambda: 0.5, state)
        self.journal = Journal(self.store, state, self.hand_out, self.failed)
        self.outbox = Outbox(self.session, self.journal, 1_000, state.unsent)
        self.ready = list(state.pending)
        # The application's state is as of the last `given`: the work after it is done again.
        self.app = self.app[: state.number - len(state.pending)]
        self.server.cut()
        self.page = None

    def hand_out(self, batch: Batch) -> None:
        for message in batch.sends:
            self.session.sends.queue(message)
        self.session.pump()
        self.ready += [one for one in batch.deliveries if type(one) is Event]

    def failed(self, failure: Exception) -> None:
        raise failure

    def keep(self) -> None:
        """What `QimClient` does after each frame."""
        session, inbox, journal = self.session, self.session.inbox, self.journal
        changed, inbox.changed = inbox.changed, {}
        journal.add_history(session.rebuild, changed, session.gaps)
        shown, session.shown = session.shown, []
        journal.add(shown, session.owner, session.cursor)
        journal.write()
        assert session.ended is None
        if session.broken is not None:
            self.cut()

    def cut(self) -> None:
        self.session.broken = None
        self.session.closed()
        self.server.cut()
        self.page = None
        self.keep()

    def flush(self) -> None:
        """The device's frames reach the server."""
        frames, self.session.frames = self.session.frames, []
        for frame in frames:
            self.server.handle(frame)

    def receive(self, count: int) -> None:
        while count and self.server.wire and self.session.phase is not Connection.OFFLINE:
            count -= 1
            frame = self.server.wire.pop(0)
            before = self.session.cursor
            self.session.receive(frame, self.now_ms)
            if isinstance(frame, (PushEvents, SendAck, LiveLost)):
                assert self.session.cursor == before, "moved by something else than a pull"
            self.keep()
            self.flush()

    # -- steps

    @initialize(past=st.lists(rooms, max_size=4))
    def some_past(self, past: list[str]) -> None:
        for room in past:
            self.server.say(room, "bob", False, 0)  # before this user joined
        self.open()
        self.receive(10)
        assert self.session.phase is Connection.ONLINE

    @rule(room=rooms, for_me=st.sampled_from([True, True, True, False]), skip=st.integers(0, 2))
    def say(self, room: str, for_me: bool, skip: int) -> None:
        self.server.say(room, "bob", for_me, skip)

    @rule(room=rooms)
    def send(self, room: str) -> None:
        self.sent += 1
        self.outbox.add(Unsent(f"m-{self.sent}", b"x", room, None))

    @precondition(lambda self: self.session.phase is Connection.OFFLINE)
    @rule()
    def open(self) -> None:
        self.server.cut()
        self.session.open("token", self.now_ms)
        self.flush()

    @precondition(lambda self: self.session.phase is not Connection.OFFLINE)
    @rule(count=st.integers(1, 6))
    def deliver(self, count: int) -> None:
        self.flush()
        self.receive(count)

    @precondition(lambda self: self.server.wire)
    @rule(data=st.data(), what=st.sampled_from(["drop", "repeat", "late"]))
    def fault(self, data: st.DataObject, what: str) -> None:
        """A push or an ack is lost, comes twice, or after what followed it."""
        wire = self.server.wire
        places = [at for at, one in enumerate(wire) if isinstance(one, (PushEvents, SendAck))]
        if not places:
            return
        at = data.draw(st.sampled_from(places))
        if what == "drop":
            del wire[at]
        elif what == "repeat":
            wire.insert(at, wire[at])
        else:
            wire.append(wire.pop(at))

    @precondition(lambda self: self.session.phase is not Connection.OFFLINE)
    @rule()
    def break_connection(self) -> None:
        self.cut()

    @rule(ms=st.sampled_from([5, 50, 2_000]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.session.tick(self.now_ms)
        self.keep()
        self.flush()

    @precondition(lambda self: self.session.phase is Connection.ONLINE)
    @rule(room=rooms)
    def checkpoint(self, room: str) -> None:
        """Something is said, and the application wants the cursor to cover it."""
        self.server.say(room, "bob", True, 0)
        self.receive(10)
        self.session.checkpoint()
        self.flush()
        self.receive(10)

    @rule(below=st.integers(0, 3))
    def trim(self, below: int) -> None:
        self.server.trim = max(self.server.trim, self.server.watermark - below)

    @rule()
    def take_over(self) -> None:
        self.server.epoch += 1
        self.cut()

    @rule()
    def lose_live(self) -> None:
        self.server.lose()

    @rule()
    def kill(self) -> None:
        self.start()

    @precondition(lambda self: self.ready)
    @rule(count=st.integers(1, 5))
    def work(self, count: int) -> None:
        """The application takes some of what lies ready."""
        taken, self.ready = self.ready[:count], self.ready[count:]
        self.app += taken
        self.journal.took(len(taken), caught_up=not self.ready)

    @precondition(lambda self: self.session.phase is Connection.ONLINE and self.page is None)
    @rule(limit=st.integers(1, 3))
    def ask_history(self, limit: int) -> None:
        """What `Rebuilder` does, one page at a time; the page is on its way for a while."""
        session = self.session
        if session.rebuild is Rebuild.REQUIRED:
            held = [one for one in self.server.log if one.mailbox_seq > self.server.trim]
            named = {one.message.conversation_id for one in held}
            for room in sorted(named - session.inbox.positions().keys()):
                session.inbox.open_history(room)
        if session.inbox.history:
            room, after = next(iter(session.inbox.history.items()))
            self.page = (room, *self.server.history(room, after, limit))
        elif session.rebuild is Rebuild.REQUIRED:
            session.rebuild = Rebuild.PARTIAL
        self.keep()
        self.flush()

    @precondition(lambda self: self.page is not None)
    @rule()
    def answer_history(self) -> None:
        assert self.page is not None
        (room, messages, page), self.page = self.page, None
        self.session.take_history(room, messages, page.next_anchor)
        if not page.has_more:
            assert self.session.close_history(room, None) is None
        self.keep()
        self.flush()

    # -- what must hold

    @invariant()
    def in_order_and_once(self) -> None:
        last: dict[str, int] = defaultdict(int)
        for event in [*self.app, *self.ready]:
            room, seq = event.message.conversation_id, event.message.conversation_seq
            assert seq > last[room], f"{room} {seq} after {last[room]}"
            assert seq in self.server.visible(room)
            last[room] = seq

    @invariant()
    def what_the_cursor_covers_is_kept(self) -> None:
        if self.session.cursor is None or self.session.rebuild is not Rebuild.NONE:
            return  # from history, then
        state = self.store.load()
        assert state.cursor is not None
        at = self.server.position(state.cursor)
        kept = {one.event_id for room in ROOMS for one in self.store.messages(room, 10_000)}
        missing = [one for one in self.server.log if one.mailbox_seq <= at and one.event_id not in kept]
        assert not missing, missing[0]

    def teardown(self) -> None:
        """Heal: each conversation gets one more message; then nothing may be missing or there twice."""
        self.cut()
        for room in ROOMS:
            self.server.say(room, "bob", True, 0)
        for _ in range(400):
            if self.session.phase is Connection.OFFLINE:
                self.open()
            self.receive(10_000)
            self.wait(600)
            self.receive(10_000)
            if self.session.phase is Connection.ONLINE:
                self.session.checkpoint()
                self.flush()
                self.receive(10_000)
            if self.session.phase is Connection.ONLINE:
                self.ask_history(2)
                if self.page is not None:
                    self.answer_history()
            if self.is_quiet():
                break
        assert self.is_quiet(), (self.session.phase, self.session.inbox.history, len(self.session.sends))
        self.in_order_and_once()
        for room in ROOMS:
            seqs = [
                one.message.conversation_seq
                for one in [*self.app, *self.ready]
                if one.message.conversation_id == room
            ]
            assert seqs == self.server.visible(room), room
        mine = sorted(one.client_message_id for one in self.server.log if one.client_message_id)
        assert mine == sorted(f"m-{n}" for n in range(1, self.sent + 1))
        assert self.store.load().unsent == []

    def is_quiet(self) -> bool:
        session = self.session
        return (
            session.phase is Connection.ONLINE
            and not session.inbox.history
            and session.rebuild is not Rebuild.REQUIRED
            and not session.inbox.held
            and not session.coverage.is_pulling
            and session.coverage.pulled_to == self.server.watermark
            and not len(session.sends)
        )


ClientMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestClientMachine = ClientMachine.TestCase


# -- planted bugs


def _push_moves_the_cursor(patch: pytest.MonkeyPatch) -> None:
    """A1: the position of the newest push counts as covered."""
    original = Session._on_push

    def on_push(self: Session, frame: PushEvents) -> None:
        original(self, frame)
        if self.cursor is not None:
            self.cursor = f"{self.cursor.partition('.')[0]}.{frame.events[-1].mailbox_seq}"

    patch.setattr(Session, "_on_push", on_push)


def _gaps_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """A5: the second message is shown though the first is missing."""

    original = Inbox.pushed

    def pushed(self: Inbox, events: Sequence[Event]) -> list[Event]:
        for event in events:
            line = self._lines.setdefault(event.message.conversation_id, Line())
            if not line.reading:
                line.last = max(line.last, event.message.conversation_seq - 1)
        return original(self, events)

    patch.setattr(Inbox, "pushed", pushed)


def _live_events_overtake_history(patch: pytest.MonkeyPatch) -> None:
    """§8 (7): a conversation is not held back while its history is read."""
    patch.setattr(Inbox, "open_all", lambda self: None)


def _the_cursor_is_kept_without_its_events(patch: pytest.MonkeyPatch) -> None:
    """The transaction is torn: first the cursor, then the events, and a kill between."""
    original = MemoryStore.apply

    def apply(self: MemoryStore, change: Change) -> None:
        torn = change.number % 3 == 2
        original(self, change._replace(events=()) if torn else change)

    patch.setattr(MemoryStore, "apply", apply)


def _a_receipt_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """C1: a repeated message gets a new id, as if the outbox did not keep it."""
    original = MemoryStore.load

    def load(self: MemoryStore) -> Any:
        state = original(self)
        state.unsent = [one._replace(client_message_id=f"again-{one[0]}") for one in state.unsent]
        return state

    patch.setattr(MemoryStore, "load", load)


def _handed_out_counts_as_taken(patch: pytest.MonkeyPatch) -> None:
    """What was kept and not yet given to the application is not given after a restart."""
    original = MemoryStore.load

    def load(self: MemoryStore) -> Any:
        state = original(self)
        state.number, state.pending = state.number - len(state.pending), []
        return state

    patch.setattr(MemoryStore, "load", load)


BUGS: Sequence[Callable[[pytest.MonkeyPatch], None]] = (
    _push_moves_the_cursor,
    _gaps_are_ignored,
    _live_events_overtake_history,
    _the_cursor_is_kept_without_its_events,
    _a_receipt_is_forgotten,
    _handed_out_counts_as_taken,
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__.strip("_"))
def test_a_planted_bug_is_found(bug: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bug(patch)
        with pytest.raises((AssertionError, BaseExceptionGroup)):  # a group when teardown fails, too
            run_state_machine_as_test(
                ClientMachine,
                settings=settings(
                    max_examples=500,
                    derandomize=True,
                    stateful_step_count=50,
                    deadline=None,
                    database=None,
                    phases=[Phase.generate],
                    print_blob=False,
                    suppress_health_check=list(HealthCheck),
                ),
            )
