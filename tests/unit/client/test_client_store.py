"""Local stores: both keep the same promises; the SQLite one keeps them over a restart."""

from collections.abc import Callable
from pathlib import Path

import pytest

from qim_streams.client.sqlite_store import SqliteStore
from qim_streams.client.store import LocalStore, MemoryStore, Unsent
from qim_streams.errors import ConfigError
from qim_streams.wire.frames import Event, Message

Open = Callable[[], LocalStore]


def event(seq: int, conversation: str = "c", own: str | None = None) -> Event:
    message_id = f"{conversation}{seq}".encode().ljust(16, b".")
    return Event(
        seq + 10,
        0,
        message_id,
        3,
        0,
        Message(message_id, conversation, seq, "bob", 0, 0, seq, bytes([seq])),
        own,
    )


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
    state = reopen().load()
    assert (state.cursor, state.positions, state.unsent, state.rebuild_pending) == (None, {}, [], False)


def test_events_and_cursor_are_kept(reopen: Open) -> None:
    store = reopen()
    store.apply([event(1), event(2, own="m-2"), event(7, "d")], "cursor-1", False)
    store.apply([event(2, own="m-2"), event(3)], "cursor-2", True)
    store = reopen()
    state = store.load()
    assert (state.cursor, state.positions, state.rebuild_pending) == ("cursor-2", {"c": 3, "d": 7}, True)
    assert store.messages("c", 10) == [event(1), event(2, own="m-2"), event(3)]
    assert store.messages("c", 1) == [event(3)]
    assert store.messages("c", 2, before_seq=3) == [event(1), event(2, own="m-2")]
    assert store.messages("none", 2) == []


def test_unsent_messages_are_kept_in_order_until_settled(reopen: Open) -> None:
    store = reopen()
    messages = [
        Unsent(f"m-{n}", bytes([n]), "c" if n % 2 else None, None if n % 2 else "bob") for n in range(5)
    ]
    for message in messages:
        store.add_unsent(message)
    store.settle("m-2")
    store.settle("m-2")
    assert reopen().load().unsent == [one for one in messages if one.client_message_id != "m-2"]


def test_a_file_in_use_or_damaged_or_newer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "device.db"
    first = SqliteStore(path)
    first.apply([], "c", False)
    with pytest.raises(ConfigError, match="locked"):
        SqliteStore(path)
    first._db.execute("PRAGMA user_version = 9")
    first.close()
    with pytest.raises(ConfigError, match="layout 9"):
        SqliteStore(path)
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(ConfigError, match="not a database"):
        SqliteStore(path)
