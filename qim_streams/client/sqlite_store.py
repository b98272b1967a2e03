"""A `LocalStore` in one SQLite file: survives the process, and the loss of power.

Invariants: one file belongs to one device and one process at a time (SQLite's exclusive lock); a file of
a newer layout is refused; every change is one transaction and on the disk when `apply` returns
(``synchronous=FULL``: without it a power cut could take a message that was already handed to the server,
or show an event a second time). That costs a disk flush, so `is_slow` is True and the client calls
`apply` in a thread. The file is readable by its owner only.

Spec: §3 (5), §7, §8 (1) (3).
"""

import os
import sqlite3
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from threading import RLock
from typing import Any

from qim_streams.client.changes import changed, targets_of
from qim_streams.client.deliveries import Gap
from qim_streams.client.store import Change, LocalState, Rebuild, Unsent
from qim_streams.errors import ConfigError, Outcome, StoreError
from qim_streams.wire.frames import Event, Message

LAYOUT = 4
LOCK_WAIT_S = 0.5
SEQ_MAX = 2**63 - 1
_LAYOUT_1 = """
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
# Events of the first layout were all given out: they keep the number 0. A conversation's last seq has a
# row of its own because the events lie in one tree with their bodies: finding it there reads the file.
_LAYOUT_2 = """
ALTER TABLE device RENAME COLUMN rebuild_pending TO rebuild;
ALTER TABLE device ADD COLUMN owner TEXT;
ALTER TABLE device ADD COLUMN given INTEGER NOT NULL DEFAULT 0;
ALTER TABLE event ADD COLUMN number INTEGER NOT NULL DEFAULT 0;
CREATE INDEX event_number ON event (number);
CREATE TABLE conversation (
    conversation_id TEXT PRIMARY KEY, last_seq INTEGER NOT NULL, read_after INTEGER
) WITHOUT ROWID;
INSERT INTO conversation
    SELECT conversation_id, max(conversation_seq), NULL FROM event GROUP BY conversation_id;
CREATE TABLE gap (
    conversation_id TEXT NOT NULL, after_seq INTEGER NOT NULL, before_seq INTEGER, reason TEXT NOT NULL,
    PRIMARY KEY (conversation_id, after_seq)
) WITHOUT ROWID;
"""
_LAYOUT_3 = """
ALTER TABLE event ADD COLUMN target_seq INTEGER;
CREATE INDEX event_target ON event (conversation_id, target_seq) WHERE target_seq IS NOT NULL;
ALTER TABLE unsent ADD COLUMN kind INTEGER NOT NULL DEFAULT 0;
ALTER TABLE unsent ADD COLUMN target_seq INTEGER;
"""
_LAYOUT_4 = """
ALTER TABLE unsent ADD COLUMN mentions BLOB NOT NULL DEFAULT x'';
"""
_STEPS = (_LAYOUT_1, _LAYOUT_2, _LAYOUT_3, _LAYOUT_4)
_ADD = "INSERT OR IGNORE INTO event VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_LAST = """
INSERT INTO conversation VALUES (?, ?, NULL)
ON CONFLICT (conversation_id) DO UPDATE SET last_seq = max(last_seq, excluded.last_seq)
"""
_ANCHOR = """
INSERT INTO conversation VALUES (?, 0, ?)
ON CONFLICT (conversation_id) DO UPDATE SET read_after = excluded.read_after
"""
_COLUMNS = """
SELECT mailbox_seq, event_ordinal, event_id, flags, mention_type, client_message_id, message_id,
       conversation_id, conversation_seq, sender_id, kind, state, committed_at, body, target_seq
FROM event
"""
_OF_TARGET = f"{_COLUMNS} WHERE conversation_id = ? AND target_seq = ?"
_AT = f"{_COLUMNS} WHERE conversation_id = ? AND conversation_seq = ?"
_CHANGE = "UPDATE event SET state = ?, body = ? WHERE conversation_id = ? AND conversation_seq = ?"
_READ = (
    f"{_COLUMNS} WHERE conversation_id = ? AND conversation_seq < ? ORDER BY conversation_seq DESC LIMIT ?"
)
_PENDING = f"{_COLUMNS} WHERE number > ? ORDER BY number"


class SqliteStore:
    """Opens or makes the file at `path`; ConfigError when it is in use, damaged or of a newer layout."""

    is_slow = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = RLock()  # `apply` comes from a thread while the application reads
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(
                path, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False
            )
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"{path}: cannot be opened as a client's store ({error})") from error
        try:
            self._prepare()
        except sqlite3.Error as error:
            self._db.close()
            raise ConfigError(f"{path}: cannot be used as a client's store ({error})") from error
        except ConfigError:
            self._db.close()
            raise

    def _prepare(self) -> None:
        for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
            self._db.execute(f"PRAGMA {pragma}")
        (layout,) = self._db.execute("PRAGMA user_version").fetchone()
        if layout > LAYOUT:
            raise ConfigError(f"{self.path}: layout {layout}, this version knows {LAYOUT}; use another file")
        if layout < LAYOUT:
            steps = "".join(_STEPS[layout:])
            self._db.executescript(f"BEGIN IMMEDIATE; {steps} PRAGMA user_version = {LAYOUT}; COMMIT;")

    def load(self) -> LocalState:
        """See `LocalStore.load`."""
        with self._lock:
            db = self._db
            owner, cursor, rebuild, given = db.execute(
                "SELECT owner, cursor, rebuild, given FROM device"
            ).fetchone()
            rows = db.execute("SELECT conversation_id, last_seq, read_after FROM conversation").fetchall()
            unsent = db.execute(
                "SELECT client_message_id, body, conversation_id, to_user_id, kind, target_seq, mentions "
                "FROM unsent ORDER BY number"
            )
            gaps = db.execute("SELECT conversation_id, after_seq, before_seq, reason FROM gap")
            (number,) = db.execute("SELECT coalesce(max(number), 0) FROM event").fetchone()
            return LocalState(
                owner,
                cursor,
                Rebuild(rebuild),
                {name: last for name, last, _ in rows if last},
                [Unsent(*row) for row in unsent],
                [_event(*row) for row in db.execute(_PENDING, (given,))],
                max(number, given),
                {name: after for name, _, after in rows if after is not None},
                [Gap(*row) for row in gaps],
            )

    def apply(self, change: Change) -> None:
        """See `LocalStore.apply`."""
        with self._lock:
            try:
                with self._db:
                    self._db.execute("BEGIN IMMEDIATE")
                    self._write(change)
            except sqlite3.Error as error:
                raise StoreError(f"{self.path}: not kept ({error})", Outcome.NOT_APPLIED) from error

    def _write(self, change: Change) -> None:
        many = self._db.executemany
        self._db.execute(
            "UPDATE device SET owner = ?, cursor = ?, rebuild = ?, given = ?",
            (change.owner, change.cursor, int(change.rebuild), change.given),
        )
        if change.events:
            many(_ADD, (_row(*pair) for pair in zip(change.events, count(change.number))))
            many(_LAST, _last_seqs(change.events).items())
            for place in targets_of(change.events):
                self._change(*place)
        if change.unsent:
            many("INSERT OR IGNORE INTO unsent VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)", change.unsent)
        if change.settled:
            many("DELETE FROM unsent WHERE client_message_id = ?", ((name,) for name in change.settled))
        if change.history:
            many(_ANCHOR, change.history.items())
        if change.gaps:
            many("INSERT OR REPLACE INTO gap VALUES (?, ?, ?, ?)", change.gaps)

    def _change(self, conversation_id: str, seq: int) -> None:
        """Give a message the state that the kept edits and recalls of it lead to."""
        place = (conversation_id, seq)
        operations = [_event(*row).message for row in self._db.execute(_OF_TARGET, place)]
        row = self._db.execute(_AT, place).fetchone() if operations else None
        if row is None:
            return
        message = _event(*row).message
        after = changed(message, operations)
        if after is not message:
            self._db.execute(_CHANGE, (after.state, after.body, *place))

    def messages(self, conversation_id: str, limit: int, before_seq: int | None = None) -> list[Event]:
        """See `LocalStore.messages`."""
        before = SEQ_MAX if before_seq is None else before_seq
        with self._lock:
            rows = self._db.execute(_READ, (conversation_id, before, limit)).fetchall()
        return [_event(*row) for row in reversed(rows)]

    def close(self) -> None:
        """Close the file. Safe to repeat."""
        with self._lock:
            self._db.close()


def _last_seqs(events: Iterable[Event]) -> dict[str, int]:
    last: dict[str, int] = {}
    for event in events:
        name, seq = event.message.conversation_id, event.message.conversation_seq
        last[name] = max(seq, last.get(name, 0))
    return last


def _event(
    seq: int, ordinal: int, event_id: bytes, flags: int, mention: int, own: str | None, *message: Any
) -> Event:
    return Event(seq, ordinal, event_id, flags, mention, Message._make(message), own)


def _row(event: Event, number: int) -> tuple[object, ...]:
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
        number,
        message.target_seq,
    )
