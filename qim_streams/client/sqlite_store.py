"""A `LocalStore` in one SQLite file: survives the process, and the loss of power up to the last commit.

Invariants: one file belongs to one device and one process at a time (SQLite's exclusive lock); a file of
another layout is refused; every change is one transaction.

Spec: §7, §8 (1).
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qim_streams.client.store import LocalState, Unsent
from qim_streams.errors import ConfigError
from qim_streams.wire.frames import Event, Message

LAYOUT = 1
LOCK_WAIT_S = 0.5
_TABLES = """
CREATE TABLE device (
    only INTEGER PRIMARY KEY CHECK (only = 1), cursor TEXT, rebuild_pending INTEGER NOT NULL
);
INSERT INTO device VALUES (1, NULL, 0);
CREATE TABLE event (
    conversation_id TEXT NOT NULL, conversation_seq INTEGER NOT NULL, event_id BLOB NOT NULL UNIQUE,
    mailbox_seq INTEGER NOT NULL, event_ordinal INTEGER NOT NULL, flags INTEGER NOT NULL,
    mention_type INTEGER NOT NULL, client_message_id TEXT, message_id BLOB NOT NULL, sender_id TEXT NOT NULL,
    kind INTEGER NOT NULL, state INTEGER NOT NULL, committed_at INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (conversation_id, conversation_seq)
) WITHOUT ROWID;
CREATE TABLE unsent (
    number INTEGER PRIMARY KEY, client_message_id TEXT NOT NULL UNIQUE, body BLOB NOT NULL,
    conversation_id TEXT, to_user_id TEXT
);
"""
_ADD = "INSERT OR IGNORE INTO event VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_READ = """
SELECT mailbox_seq, event_ordinal, event_id, flags, mention_type, client_message_id, message_id,
       conversation_id, conversation_seq, sender_id, kind, state, committed_at, body
FROM event WHERE conversation_id = ? AND conversation_seq < ? ORDER BY conversation_seq DESC LIMIT ?
"""
SEQ_MAX = 2**63 - 1


class SqliteStore:
    """Opens or makes the file at `path`; ConfigError when it is in use, damaged or of another layout."""

    def __init__(self, path: Path) -> None:
        try:
            self._db = sqlite3.connect(path, timeout=LOCK_WAIT_S, isolation_level=None)
        except sqlite3.Error as error:
            raise ConfigError(f"{path}: cannot be opened as a client's store ({error})") from error
        try:
            self._prepare(path)
        except sqlite3.Error as error:
            self._db.close()
            raise ConfigError(f"{path}: cannot be used as a client's store ({error})") from error
        except ConfigError:
            self._db.close()
            raise

    def _prepare(self, path: Path) -> None:
        for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = NORMAL"):
            self._db.execute(f"PRAGMA {pragma}")
        (layout,) = self._db.execute("PRAGMA user_version").fetchone()
        if layout == 0:
            self._db.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {LAYOUT}; COMMIT;")
        elif layout != LAYOUT:
            raise ConfigError(f"{path}: layout {layout}, this version knows {LAYOUT}; use another file")

    def load(self) -> LocalState:
        """See `LocalStore.load`."""
        cursor, pending = self._db.execute("SELECT cursor, rebuild_pending FROM device").fetchone()
        positions = dict(
            self._db.execute(
                "SELECT conversation_id, max(conversation_seq) FROM event GROUP BY conversation_id"
            )
        )
        unsent = self._db.execute(
            "SELECT client_message_id, body, conversation_id, to_user_id FROM unsent ORDER BY number"
        )
        return LocalState(cursor, positions, [Unsent(*row) for row in unsent], bool(pending))

    def apply(self, events: Sequence[Event], cursor: str | None, rebuild_pending: bool) -> None:
        """See `LocalStore.apply`."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany(_ADD, map(_row, events))
            self._db.execute("UPDATE device SET cursor = ?, rebuild_pending = ?", (cursor, rebuild_pending))

    def add_unsent(self, message: Unsent) -> None:
        """See `LocalStore.add_unsent`."""
        self._db.execute("INSERT OR IGNORE INTO unsent VALUES (NULL, ?, ?, ?, ?)", message)

    def settle(self, client_message_id: str) -> None:
        """See `LocalStore.settle`."""
        self._db.execute("DELETE FROM unsent WHERE client_message_id = ?", (client_message_id,))

    def messages(self, conversation_id: str, limit: int, before_seq: int | None = None) -> list[Event]:
        """See `LocalStore.messages`."""
        before = SEQ_MAX if before_seq is None else before_seq
        rows = self._db.execute(_READ, (conversation_id, before, limit)).fetchall()
        return [_event(*row) for row in reversed(rows)]

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def _event(
    seq: int, ordinal: int, event_id: bytes, flags: int, mention: int, own: str | None, *message: Any
) -> Event:
    return Event(seq, ordinal, event_id, flags, mention, Message._make(message), own)


def _row(event: Event) -> tuple[object, ...]:
    message = event.message
    return (
        message.conversation_id,
        message.conversation_seq,
        event.event_id,
        event.mailbox_seq,
        event.event_ordinal,
        event.flags,
        event.mention_type,
        event.client_message_id,
        message.message_id,
        message.sender_id,
        message.kind,
        message.state,
        message.committed_at,
        message.body,
    )
