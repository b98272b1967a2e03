"""Local stores: one conformance suite; the SQLite one keeps its promises over a restart and a kill.

Spec: §7, §8 (1) (3). Scenarios A2 C8 C13.
"""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim_streams.client.deliveries import Gap
from qim_streams.client.sqlite_store import _LAYOUT_1, LAYOUT, SqliteStore
from qim_streams.client.store import Change, LocalState, LocalStore, MemoryStore, Rebuild, Unsent
from qim_streams.errors import ConfigError, StoreError
from qim_streams.wire.frames import Event, Message
from tests.support.waiting import eventually_sync

Open = Callable[[], LocalStore]


def event(seq: int, conversation: str = "c", own: str | None = None) -> Event:
    message_id = f"{conversation}{seq}".encode().ljust(16, b".")
    message = Message(message_id, conversation, seq, "bob", 0, 0, seq, bytes([seq % 256]))
    return Event(seq + 10, 0, message_id, 3, 0, message, own)


def change(*events: Event, number: int = 1, **values: Any) -> Change:
    base = Change("t/ann/d", values.pop("cursor", "c-1"), Rebuild.NONE, 0, number, events)
    return base._replace(**values)


@pytest.fixture(params=["memory", "sqlite"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the store of one device; again and again it is the same store."""
    if request.param == "memory":
        store = MemoryStore()
        return lambda: store
    opened: list[SqliteStore] = []

    def open_again() -> LocalStore:
        for old in opened:
            old.close()
        opened.append(SqliteStore(tmp_path / "device.db"))
        return opened[-1]

    return open_again


def test_a_new_store_is_empty(reopen: Open) -> None:
    assert reopen().load() == LocalState()


def test_events_and_cursor_are_kept_together(reopen: Open) -> None:
    store = reopen()
    store.apply(change(event(1), event(2, own="m-2"), event(7, "d")))
    store.apply(change(event(2, own="m-2"), event(3), number=4, cursor="c-2", rebuild=Rebuild.REQUIRED))
    store = reopen()
    state = store.load()
    assert (state.owner, state.cursor, state.rebuild) == ("t/ann/d", "c-2", Rebuild.REQUIRED)
    assert state.positions == {"c": 3, "d": 7}
    assert store.messages("c", 10) == [event(1), event(2, own="m-2"), event(3)]
    assert store.messages("c", 1) == [event(3)]
    assert store.messages("c", 2, before_seq=3) == [event(1), event(2, own="m-2")]
    assert store.messages("none", 2) == []


def test_what_was_not_given_out_is_pending_in_order(reopen: Open) -> None:
    """A process that dies between keeping and giving out loses nothing; a repeat is not pending again."""
    store = reopen()
    store.apply(change(event(5, "d"), event(1), event(2)))
    assert reopen().load().pending == [event(5, "d"), event(1), event(2)]
    store = reopen()
    store.apply(change(event(2), event(3), number=4, given=2))
    state = reopen().load()
    assert (state.pending, state.number) == ([event(2), event(3)], 5)
    store = reopen()
    store.apply(change(number=6, given=5))
    state = reopen().load()
    assert (state.pending, state.number) == ([], 5)


def test_unsent_messages_are_kept_in_order_until_settled(reopen: Open) -> None:
    store = reopen()
    messages = [
        Unsent(f"m-{n}", bytes([n]), "c" if n % 2 else None, None if n % 2 else "bob") for n in range(5)
    ]
    for message in messages:
        store.apply(change(unsent=[message]))
    store.apply(change(unsent=[messages[0]], settled=["m-2", "none"]))  # a repeat changes nothing
    store.apply(change(event(1), settled=["m-2"]))
    store.apply(change(unsent=[messages[1]._replace(client_message_id="x")], settled=["x"]))
    assert reopen().load().unsent == [one for one in messages if one.client_message_id != "m-2"]


def test_history_and_gaps_are_kept_until_closed(reopen: Open) -> None:
    store = reopen()
    gap = Gap("c", 3, None, "NOT_MEMBER")
    store.apply(change(event(3), history={"c": 3, "new": 0}, rebuild=Rebuild.REQUIRED))
    store.apply(change(event(4), number=2, history={"c": 4}, gaps=[gap]))
    state = reopen().load()
    assert (state.history, state.gaps, state.positions) == ({"c": 4, "new": 0}, [gap], {"c": 4})
    store = reopen()
    store.apply(change(number=3, history={"c": None}, rebuild=Rebuild.PARTIAL))
    state = reopen().load()
    assert (state.history, state.rebuild, state.gaps) == ({"new": 0}, Rebuild.PARTIAL, [gap])


_events = st.builds(event, st.integers(1, 12), st.sampled_from("cd"))
_changes = st.builds(
    lambda events, settled, unsent, given, cursor: (events, settled, unsent, given, cursor),
    st.lists(_events, max_size=4),
    st.lists(st.sampled_from(["a", "b"]), max_size=2),
    st.lists(st.sampled_from(["a", "b", "e"]), max_size=2, unique=True),
    st.integers(0, 4),
    st.sampled_from(["c-1", "c-2", None]),
)


@given(steps=st.lists(_changes, max_size=8))
def test_sqlite_equals_memory(steps: Sequence[tuple[Any, ...]], tmp_path_factory: Any) -> None:
    """Whatever is applied, both stores load the same; every change is applied twice to the SQLite one."""
    path = tmp_path_factory.mktemp("store") / "device.db"
    memory, disk = MemoryStore(), SqliteStore(path)
    number = given_out = 0
    for events, settled, unsent, given_now, cursor in steps:
        given_out = min(number, given_out + given_now)
        messages = [Unsent(name, b"x", "c", None) for name in unsent]
        one = Change("o", cursor, Rebuild.NONE, given_out, number + 1, events, messages, settled)
        number += len(events)
        for _ in range(2):
            disk.apply(one)
        memory.apply(one)
    disk.close()
    disk = SqliteStore(path)
    loaded, expected = disk.load(), memory.load()
    disk.close()
    assert loaded.number == max(expected.number, given_out)
    loaded.number = expected.number
    assert loaded == expected


# -- what only a file can do


def test_a_file_in_use_or_damaged_or_newer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "device.db"
    first = SqliteStore(path)
    first.apply(change())
    with pytest.raises(ConfigError, match="locked"):
        SqliteStore(path)
    first._db.execute("PRAGMA user_version = 9")
    first.close()
    with pytest.raises(ConfigError, match="layout 9"):
        SqliteStore(path)
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(ConfigError, match="not a database"):
        SqliteStore(path)
    with pytest.raises(ConfigError, match="cannot be opened"):
        SqliteStore(tmp_path / "no" / "device.db")


def test_a_file_is_for_its_owner_only_and_syncs_every_commit(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "device.db")
    assert (tmp_path / "device.db").stat().st_mode & 0o077 == 0
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    store.close()
    store.close()


def test_a_file_of_the_first_layout_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "device.db"
    with sqlite3.connect(path) as db:
        db.executescript(f"{_LAYOUT_1} PRAGMA user_version = 1;")
        db.execute("UPDATE device SET cursor = 'c-9'")
        db.execute("INSERT INTO unsent VALUES (NULL, 'm-1', x'01', 'c', NULL)")
        row = ("c", 4, b"e" * 16, 8, 0, 3, 0, None, b"m" * 16, "bob", 0, 0, 1, b"hi")
        db.execute(f"INSERT INTO event VALUES ({', '.join('?' * 14)})", row)
    db.close()
    store = SqliteStore(path)
    state = store.load()
    assert (state.cursor, state.positions, state.pending) == ("c-9", {"c": 4}, [])
    assert [one.client_message_id for one in state.unsent] == ["m-1"]
    assert store.messages("c", 1)[0].message.body == b"hi"
    assert store._db.execute("PRAGMA user_version").fetchone() == (LAYOUT,)
    store.close()


def test_a_change_that_fails_is_not_kept_at_all(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "device.db")
    store.apply(change(event(1), cursor="c-1"))
    broken = event(2)._replace(mailbox_seq="no number" * 2, event_id=None)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="not kept"):
        store.apply(change(event(3), broken, cursor="c-2", number=2, gaps=[("c", None, None, None)]))  # type: ignore[list-item]
    assert (store.load().cursor, store.load().positions) == ("c-1", {"c": 1})
    store.close()
    with pytest.raises(StoreError):
        store.apply(change(event(1)))


_WRITER = """
import sys
from pathlib import Path
from tests.contract.client.test_local_store import change, event
from qim_streams.client.sqlite_store import SqliteStore
store = SqliteStore(Path(sys.argv[1]))
for n in range(1, 100_000):
    store.apply(change(event(2 * n - 1), event(2 * n), number=2 * n - 1, cursor=f"c-{2 * n}"))
    print(n, flush=True)
"""


def test_a_killed_process_leaves_no_cursor_ahead_of_its_messages(tmp_path: Path) -> None:
    """SIGKILL in the middle of writing: what was said to be kept is kept, and never half of it."""
    path = tmp_path / "device.db"
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, cwd=root, text=True
    ) as writer:
        assert writer.stdout is not None
        said = 0
        while said < 20:
            said = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.stdout.read().split()
        said = int(rest[-1]) if rest else said
    store = eventually_sync(lambda: SqliteStore(path))
    state = store.load()
    assert state.cursor is not None
    kept = int(state.cursor.partition("-")[2])
    assert kept >= 2 * said
    assert state.positions == {"c": kept}
    assert len(store.messages("c", 1_000_000)) == kept == state.number
    store.close()
