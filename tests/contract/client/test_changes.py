"""Edits and recalls in the local stores: whatever comes first and how often, the outcome is the same.

Spec: §8. Scenarios C13, C14.
"""

import itertools
import sqlite3
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim_streams.client.changes import as_delivery
from qim_streams.client.deliveries import MessageEdited, MessageRecalled
from qim_streams.client.sqlite_store import _LAYOUT_1, _LAYOUT_2, SqliteStore
from qim_streams.client.store import LocalStore, MemoryStore, Unsent
from qim_streams.records import KIND_EDIT, KIND_RECALL
from qim_streams.wire.frames import Event
from tests.contract.client.test_local_store import Open, change, event, reopen

__all__ = ["reopen"]


def operation(seq: int, target: int, body: bytes | None) -> Event:
    """An edit, or with None a recall."""
    made = event(seq)
    kind, state = (KIND_RECALL, 2) if body is None else (KIND_EDIT, 1)
    changed = made.message._replace(kind=kind, state=state, body=body or b"", target_seq=target)
    return made._replace(message=changed, flags=0)


def state(store: LocalStore, seq: int) -> tuple[int, bytes]:
    (found,) = [one.message for one in store.messages("c", 100) if one.message.conversation_seq == seq]
    return found.state, found.body


def test_an_edit_changes_the_kept_message_and_is_kept_itself(reopen: Open) -> None:
    store = reopen()
    store.apply(change(event(1), event(2)))
    store.apply(change(operation(3, 1, b"new"), number=3))
    store = reopen()
    assert state(store, 1) == (1, b"new")
    assert state(store, 2) == (0, b"\2")
    assert store.messages("c", 1) == [operation(3, 1, b"new")]
    assert store.load().positions == {"c": 3}
    store.apply(change(operation(4, 1, None), number=4))
    assert state(reopen(), 1) == (2, b"")


def test_any_order_and_repeats_end_the_same(reopen: Open) -> None:
    events = [event(1), operation(2, 1, b"a"), operation(3, 1, b"b"), operation(4, 1, None), event(5)]
    for number, order in enumerate(itertools.permutations(events)):
        store = MemoryStore() if number else reopen()
        for at, one in enumerate((*order, *order[:2])):
            store.apply(change(one, number=at + 1))
        assert state(store, 1) == (2, b""), order
        assert state(store, 5) == (0, b"\5")


@given(st.permutations([0, 1, 2, 3]), st.integers(1, 3))
def test_without_a_recall_the_highest_seq_stands(order: list[int], size: int) -> None:
    events = [event(1), operation(2, 1, b"a"), operation(3, 1, b"b"), operation(4, 1, b"c")]
    shuffled = [events[at] for at in order]
    with tempfile.TemporaryDirectory() as directory:
        stores: list[LocalStore] = [MemoryStore(), SqliteStore(Path(directory) / "device.db")]
        for store in stores:
            for at in range(0, 4, size):
                store.apply(change(*shuffled[at : at + size], number=at + 1))
            assert state(store, 1) == (1, b"c")
            store.close()


def test_operations_on_what_this_device_never_had_are_kept(reopen: Open) -> None:
    store = reopen()
    store.apply(change(operation(9, 4, b"x")))
    assert [one.message.conversation_seq for one in reopen().messages("c", 10)] == [9]
    store = reopen()
    store.apply(change(event(4), number=2))  # it comes by history later, as it was when that was read
    assert state(store, 4) == (1, b"x")


def test_unsent_operations_survive_a_restart(reopen: Open) -> None:
    asked = [
        Unsent("m-1", b"x", "c", None),
        Unsent("e-1", b"y", "c", None, KIND_EDIT, 7),
        Unsent("r-1", b"", "c", None, KIND_RECALL, 8),
    ]
    reopen().apply(change(unsent=asked))
    assert reopen().load().unsent == asked


def test_a_file_of_the_second_layout_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "device.db"
    with sqlite3.connect(path) as db:
        db.executescript(f"{_LAYOUT_1} {_LAYOUT_2} PRAGMA user_version = 2;")
        row = ("c", 4, b"e" * 16, 8, 0, 3, 0, None, b"m" * 16, "bob", 0, 0, 1, b"hi", 1)
        db.execute(f"INSERT INTO event VALUES ({', '.join('?' * 15)})", row)
        db.execute("INSERT INTO unsent VALUES (NULL, 'm-1', x'01', 'c', NULL)")
    db.close()
    store = SqliteStore(path)
    assert store.load().unsent == [Unsent("m-1", b"\1", "c", None)]
    store.apply(change(operation(5, 4, b"new"), number=2))
    assert state(store, 4) == (1, b"new")
    store.close()


@pytest.mark.parametrize("body", [b"new", None])
def test_the_application_is_told_what_it_is(body: bytes | None) -> None:
    one = operation(3, 1, body)
    told = as_delivery(one)
    if body is None:
        assert told == MessageRecalled("c", 1, "bob", 3, one)
    else:
        assert told == MessageEdited("c", 1, "bob", 3, one, body)
    recalled_since = one._replace(message=one.message._replace(state=2, body=b""))
    assert as_delivery(recalled_since) == MessageRecalled("c", 1, "bob", 3, recalled_since)
    assert as_delivery(event(1)) == event(1)
    strange = event(1)._replace(message=event(1).message._replace(kind=7))
    assert as_delivery(strange) == strange
