"""The marker of a split in the Outbox: where a partition changes to the next mapping version.

What lies before the first marker of version v in a partition is dispatched by an earlier version, what lies
behind it by v. Whoever reads the partition, late, twice or long dead to the others, reads the marker
before the first record of the version and draws the line at the same place: no clock and no agreement is
part of it.

A marker is a barrier (`ownership.log_fence`) of the lowest epoch, which fences nobody, with the version
behind its fields: readers that know barriers and no mappings pass over it. A second marker of a version
changes nothing.

Pure. Spec: §11.
"""

from typing import Final

from qim_streams.errors import RecordError
from qim_streams.ownership.log_fence import BARRIER_KEY, barrier_epoch
from qim_streams.records import OUTBOX_BARRIER, OutboxRecord, decode_outbox

MARKER_KEY: Final = BARRIER_KEY
_LOWEST_EPOCH: Final = 1


def encode_marker(version: int) -> bytes:
    """The value of the marker of a version; its key is `MARKER_KEY`."""
    return OutboxRecord(b"", _LOWEST_EPOCH, OUTBOX_BARRIER, None, (version,)).encode()


def marked_version(key: bytes | None, value: bytes | None) -> int | None:
    """The version of a marker, None for any other record (a malformed one is poison to whoever reads it)."""
    if key != MARKER_KEY:
        return None
    try:
        if barrier_epoch(key, value) is None:
            return None
        extra = decode_outbox(value or b"").extra
    except RecordError:
        return None
    return extra[0] if extra and isinstance(extra[0], int) and extra[0] > 0 else None


def behind(version: int, key: bytes | None, value: bytes | None) -> int:
    """The version behind a record, which stands at `version` before it.

    Versions only grow, and those of splits that were abandoned have no marker: they are passed over.
    """
    return max(version, marked_version(key, value) or 0)
