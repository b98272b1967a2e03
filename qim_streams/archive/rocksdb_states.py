"""States of users in the RocksDB archive: the blocking half, for its writer and its readers.

Of one address the highest version stands: the one writer looks before it writes.

Spec: §9, §14.8.
"""

from collections.abc import Sequence

from rocksdict import Rdict, WriteBatch

from qim_streams.archive import rocksdb_layout as layout
from qim_streams.sessions.ports import ArchivedState


def write_states(db: Rdict, states: Sequence[ArchivedState]) -> None:
    """Write what is newer than what is stored, and wait for the disk."""
    addresses = [layout.state_key(one.tenant_id, one.user_id, one.conversation_id) for one in states]
    if not addresses:
        return
    batch = WriteBatch(raw_mode=True)
    for one, key, value in zip(states, addresses, db.get(addresses), strict=True):
        if value is None or layout.decode_state(value)[1] < one.version:
            batch.put(key, layout.encode_state(one.state, one.version))
    if not batch.is_empty():
        db.write(batch)
        db.flush_wal(True)


def read_states(db: Rdict, user: tuple[str, str], after: str, limit: int) -> list[ArchivedState]:
    """States of (tenant, user) in conversations with an id above `after`, ascending, at most `limit`."""
    prefix, lowest = layout.user_prefix(*user), layout.state_key(*user, after) + (b"\0" if after else b"")
    cursor = db.iter()
    cursor.seek(lowest)
    found: list[ArchivedState] = []
    while len(found) < limit and cursor.valid() and cursor.key().startswith(prefix):
        state, version = layout.decode_state(cursor.value())
        found.append(ArchivedState(*user, cursor.key()[len(prefix) :].decode(), version, state))
        cursor.next()
    cursor.status()  # an iterator that met an I/O error looks like one at its end; this raises
    return found
