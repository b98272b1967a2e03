"""REBUILD in the SDK against a scripted server: the eight points of §8 (A10 A11 A16 C7 C13 E10)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from scripted_server import ScriptedServer
from test_qim_client import BOTH, ROOM, Screen, client_of

from qim_streams.client import (
    Conversations,
    Gap,
    HistoryClosed,
    MemoryStore,
    RebuildFinished,
    RebuildRequired,
    RebuildStarted,
    SqliteStore,
)
from qim_streams.client.store import Rebuild
from qim_streams.wire.frames import Auth, Event, HistoryBreak, PullHistory, PullMailbox, SyncComplete
from tests.support.waiting import eventually

OTHER = "other"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    one = ScriptedServer()
    await one.start()
    yield one
    await one.stop()


def seqs_of(screen: Screen, conversation: str) -> list[int]:
    return [
        one.message.conversation_seq
        for one in screen.all
        if type(one) is Event and one.message.conversation_id == conversation
    ]


def marks(screen: Screen, cls: type) -> list[object]:
    return [one for one in screen.all if type(one) is cls]


async def been_here(server: ScriptedServer, store: object, messages: int = 3) -> None:
    """ann was online, got some messages, and went away; then the mailbox moved on without her."""
    screen = Screen()
    async with client_of(server, "ann", screen, store=store) as ann:
        for n in range(messages):
            await server.publish(ROOM, "bob", f"seen {n}".encode(), BOTH)
        await eventually(lambda: len(screen.bodies) == messages)
        await ann.checkpoint()


def trim_all(server: ScriptedServer) -> None:
    """Nothing up to now is in any mailbox any more."""
    server.trim = server.watermark


async def test_what_was_missed_comes_from_history_once_and_in_order(server: ScriptedServer) -> None:
    """§8 (0) (1) (3) (6): empty cursor, online at once, messages stay, pages to the end, fresh cursor."""
    store, screen = MemoryStore(), Screen()
    await been_here(server, store)
    for n in range(25):
        server.store(ROOM, "bob", f"missed {n}".encode(), BOTH)
    trim_all(server)
    server.faults.history_page = 10
    async with client_of(server, "ann", screen, store=store) as ann:
        await eventually(lambda: screen.count(RebuildFinished) == 1)
        assert ann.cursor == f"c.{server.watermark}"
        assert not ann.rebuild_pending
    assert seqs_of(screen, ROOM) == list(range(4, 29))
    assert [type(one).__name__ for one in screen.all if type(one) is not Event] == [
        "RebuildRequired",
        "SyncStarted",
        "SyncFinished",
        "RebuildStarted",
        "HistoryClosed",
        "RebuildFinished",
    ]
    assert [one.mailbox_cursor for one in server.frames(Auth)][-2:] == ["c.2", None]
    assert len(server.frames(SyncComplete)) == 2
    assert [one.anchor for one in server.frames(PullHistory)] == [3, 13, 23]
    assert [one.message.conversation_seq for one in store.messages(ROOM, 100)] == list(range(1, 29))
    assert marks(screen, RebuildFinished) == [RebuildFinished((), complete=False)]
    assert marks(screen, HistoryClosed) == [HistoryClosed(ROOM, 25, (), 0)]


async def test_live_events_wait_for_the_history_of_their_conversation(server: ScriptedServer) -> None:
    """§8 (7), A16: pushed, pulled and own messages meanwhile come after the history, each once."""
    store, screen = MemoryStore(), Screen()
    await been_here(server, store)
    for n in range(5):
        server.store(ROOM, "bob", f"missed {n}".encode(), BOTH)
    trim_all(server)
    server.members[ROOM] = BOTH
    server.faults.history_page = 2
    release = asyncio.Event()
    asked = asyncio.Event()

    async def hold(_: PullHistory) -> None:
        asked.set()
        await release.wait()

    server.before_page = hold
    async with client_of(server, "ann", screen, store=store) as ann, client_of(server, "bob") as bob:
        await asked.wait()
        await server.publish(ROOM, "bob", b"live", BOTH)
        await server.publish(OTHER, "bob", b"elsewhere", BOTH)
        # ann's own connection is busy with the page: what she sends is answered after it
        sending = asyncio.create_task(ann.send(b"mine", conversation_id=ROOM))
        await bob.send(b"bob's", conversation_id=ROOM)
        await eventually(lambda: seqs_of(screen, OTHER) == [1])  # nobody else waits
        assert seqs_of(screen, ROOM) == []
        server.before_page = None
        release.set()
        await sending
        await eventually(lambda: len(seqs_of(screen, ROOM)) == 8)
        await eventually(lambda: screen.count(RebuildFinished) == 1)
        await ann.checkpoint()
        assert ann.session.inbox.waiting == ann.session.inbox.held == 0
    assert seqs_of(screen, ROOM) == list(range(4, 12))


async def test_a_rebuild_that_was_cut_and_killed_goes_on_page_by_page(
    server: ScriptedServer, tmp_path: Path
) -> None:
    """The connection breaks after one page, the process dies after the next ones: no page is read twice."""
    path, first, second = tmp_path / "ann.db", Screen(), Screen()
    await been_here(server, SqliteStore(path))
    for n in range(30):
        server.store(ROOM, "bob", f"missed {n}".encode(), BOTH)
    trim_all(server)
    server.faults.history_page, server.faults.cut_after_pages = 5, 1
    never = asyncio.Event()

    async def stop(frame: PullHistory) -> None:
        if (frame.anchor or 0) >= 18:
            await never.wait()

    server.before_page = stop
    async with client_of(server, "ann", first, store=SqliteStore(path)):
        await eventually(lambda: len(seqs_of(first, ROOM)) == 15)
    server.before_page = None
    never.set()
    kept = SqliteStore(path)
    assert kept.load().rebuild is Rebuild.REQUIRED
    assert kept.load().history == {ROOM: 18}
    before = len(server.frames(PullHistory))
    async with client_of(server, "ann", second, store=kept):
        await eventually(lambda: second.count(RebuildFinished) == 1)
    assert seqs_of(first, ROOM) + seqs_of(second, ROOM) == list(range(4, 34))
    assert server.frames(PullHistory)[before].anchor == 18
    assert second.count(RebuildRequired) == 0  # the cursor of the first process is good
    again = SqliteStore(path)
    assert (again.load().rebuild, again.load().history) == (Rebuild.PARTIAL, {})
    again.close()


async def test_what_was_never_for_this_user_is_a_break_and_no_gap(server: ScriptedServer) -> None:
    """A11, G1: he left after 5 and came back after 9; what is hidden stays so, the rest is one order."""
    store, screen = MemoryStore(), Screen()
    await been_here(server, store)
    for n in range(4, 13):
        server.store(ROOM, "bob", f"{n}".encode(), BOTH if n <= 5 or n > 9 else ["bob"])
    trim_all(server)
    server.ranges[ROOM] = ((0, 5), (9, None))
    server.faults.history_page = 2
    async with client_of(server, "ann", screen, store=store) as ann:
        await eventually(lambda: screen.count(RebuildFinished) == 1)
        await server.publish(ROOM, "bob", b"13", BOTH)
        await eventually(lambda: len(screen.bodies) == 6)
        assert ann.gaps == []
    assert seqs_of(screen, ROOM) == [4, 5, 10, 11, 12, 13]
    (closed,) = marks(screen, HistoryClosed)
    assert closed == HistoryClosed(ROOM, 5, (HistoryBreak(6, 9, "not_member"),), 0)


async def test_history_that_is_refused_leaves_a_marked_gap_and_no_silence(server: ScriptedServer) -> None:
    """A10, A11: what cannot be read is said, kept, and what comes later is shown."""
    store, screen = MemoryStore(), Screen()
    await been_here(server, store)
    for n in range(4):
        server.store(ROOM, "bob", f"missed {n}".encode(), BOTH)
    trim_all(server)
    server.faults.refuse_history[ROOM] = "NOT_MEMBER"
    async with client_of(server, "ann", screen, store=store) as ann:
        await eventually(lambda: screen.count(RebuildFinished) == 1)
        await server.publish(ROOM, "bob", b"later", BOTH)
        await eventually(lambda: screen.bodies == [b"later"])
        assert ann.gaps == [Gap(ROOM, 3, None, "NOT_MEMBER")]
    assert marks(screen, RebuildFinished) == [RebuildFinished((Gap(ROOM, 3, None, "NOT_MEMBER"),), False)]
    assert store.load().gaps == [Gap(ROOM, 3, None, "NOT_MEMBER")]
    assert server.frames(PullHistory)[-1].conversation_id == ROOM


async def test_a_gap_says_where_it_ends_when_that_is_known(server: ScriptedServer) -> None:
    store, screen = MemoryStore(), Screen()
    await been_here(server, store)
    server.store(ROOM, "bob", b"missed", BOTH)
    trim_all(server)
    server.faults.refuse_history[ROOM] = "NOT_MEMBER"

    async def push(_: PullHistory) -> None:
        server.before_page = None
        await server.publish(ROOM, "bob", b"live", BOTH)

    server.before_page = push
    async with client_of(server, "ann", screen, store=store):
        await eventually(lambda: screen.bodies == [b"live"])
        await eventually(lambda: screen.count(RebuildFinished) == 1)
    assert store.load().gaps == [Gap(ROOM, 3, 5, "NOT_MEMBER")]


async def test_conversations_of_the_mailbox_are_found_though_nothing_of_them_is_kept(
    server: ScriptedServer,
) -> None:
    """§8 (2): without a session list, what the mailbox still names and what is kept make the set."""
    store, screen = MemoryStore(), Screen()
    await been_here(server, store)
    for n in range(6):
        server.store(OTHER, "bob", f"new {n}".encode(), BOTH)
    server.trim = server.watermark - 1  # the last of them is still there
    async with client_of(server, "ann", screen, store=store):
        await eventually(lambda: screen.count(RebuildFinished) == 1)
    assert seqs_of(screen, OTHER) == list(range(1, 7))
    assert marks(screen, RebuildStarted) == [RebuildStarted(2)]
    assert len(server.frames(PullMailbox)) >= 1


async def test_a_conversation_met_later_is_read_from_history_first(server: ScriptedServer) -> None:
    """The set was not complete: what nobody named shows its past when it is met, before the new message."""
    store, screen = MemoryStore(), Screen()
    await been_here(server, store)
    for n in range(6):
        server.store(OTHER, "bob", f"new {n}".encode(), BOTH)
    trim_all(server)
    async with client_of(server, "ann", screen, store=store):
        await eventually(lambda: screen.count(RebuildFinished) == 1)
        assert seqs_of(screen, OTHER) == []
    async with client_of(server, "ann", screen, store=store):
        await server.publish(OTHER, "bob", b"live", BOTH)
        await eventually(lambda: seqs_of(screen, OTHER) == list(range(1, 8)))
        await server.publish("fresh", "bob", b"first", BOTH)
        await eventually(lambda: seqs_of(screen, "fresh") == [1])
        await server.publish(OTHER, "bob", b"live", BOTH)
        await eventually(lambda: seqs_of(screen, OTHER)[-1] == 8)
    assert {one.conversation_id for one in server.frames(PullHistory)} == {ROOM, OTHER}
    assert screen.count(RebuildFinished) == 1


async def test_a_complete_set_is_taken_as_such(server: ScriptedServer) -> None:
    """The seam for PULL_SESSION_LIST: its answer is the set, and nothing is suspected afterwards."""
    store, screen = MemoryStore(), Screen()
    await been_here(server, store)
    server.store(OTHER, "bob", b"new", BOTH)
    trim_all(server)

    class SessionList:
        async def conversations(self) -> Conversations:
            return Conversations(frozenset({ROOM, OTHER}), complete=True)

    async with client_of(server, "ann", screen, store=store, conversations=lambda *_: SessionList()):
        await eventually(lambda: screen.count(RebuildFinished) == 1)
    assert seqs_of(screen, OTHER) == [1]
    assert marks(screen, RebuildFinished) == [RebuildFinished((), complete=True)]
    assert store.load().rebuild is Rebuild.NONE


async def test_many_conversations_are_read_a_few_at_a_time(server: ScriptedServer) -> None:
    store, screen = MemoryStore(), Screen()
    names = [f"r{n}" for n in range(20)]
    async with client_of(server, "ann", Screen(), store=store) as ann:
        for name in names:
            await server.publish(name, "bob", b"seen", BOTH)
        await ann.checkpoint()
    for name in names:
        server.store(name, "bob", b"missed", BOTH)
    trim_all(server)
    async with client_of(server, "ann", screen, store=store, history_readers=3) as ann:
        most = 0

        def count(_: PullHistory) -> None:
            nonlocal most
            most = max(most, len(ann.session._calls))

        server.before_page = count
        await eventually(lambda: screen.count(RebuildFinished) == 1)
        assert 1 <= most <= 3
    assert all(seqs_of(screen, name) == [2] for name in names)
    assert [one.left for one in marks(screen, HistoryClosed)] == list(range(19, -1, -1))  # type: ignore[attr-defined]


async def test_a_cursor_that_expires_during_a_rebuild_starts_from_where_it_is(server: ScriptedServer) -> None:
    store, screen = MemoryStore(), Screen()
    await been_here(server, store)
    server.store(ROOM, "bob", b"missed 1", BOTH)
    trim_all(server)
    server.faults.refuse_history = {}
    async with client_of(server, "ann", screen, store=store):
        await eventually(lambda: screen.count(RebuildFinished) == 1)
    server.store(ROOM, "bob", b"missed 2", BOTH)
    trim_all(server)
    async with client_of(server, "ann", screen, store=store):
        await eventually(lambda: screen.count(RebuildFinished) == 2)
    assert screen.bodies == [b"missed 1", b"missed 2"]


async def test_a_silent_history_is_given_up_while_connected(server: ScriptedServer) -> None:
    """A conversation does not stay dark for ever because one tier does not answer."""
    store, screen = MemoryStore(), Screen()
    await been_here(server, store)
    trim_all(server)
    server.store(ROOM, "bob", b"missed", BOTH)
    server.faults.expire = True
    server.faults.refuse_history[ROOM] = "BODY_UNAVAILABLE"  # temporary, and stays so
    async with client_of(server, "ann", screen, store=store, history_patience_s=0.2):
        await eventually(lambda: screen.count(RebuildFinished) == 1)
        await server.publish(ROOM, "bob", b"later", BOTH)
        await eventually(lambda: screen.bodies == [b"later"])
    assert [one.reason for one in store.load().gaps] == ["TIMEOUT"]


async def test_a_server_without_history_ends_in_gaps(server: ScriptedServer) -> None:
    store, screen = MemoryStore(), Screen()
    await been_here(server, store)
    trim_all(server)
    server.store(ROOM, "bob", b"missed", BOTH)
    server.faults.expire = True
    server.faults.refuse_history[ROOM] = "UNKNOWN_FRAME"
    async with client_of(server, "ann", screen, store=store):
        await eventually(lambda: screen.count(RebuildFinished) == 1)
    assert store.load().gaps == [Gap(ROOM, 3, None, "UNKNOWN_FRAME")]
