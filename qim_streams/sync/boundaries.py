"""EpochBoundary: what a takeover of a MailboxShard did to positions, and how an old one is resolved.

Each grant of a new epoch notes W[64] as it stood at that moment, in the step that makes the epoch. From
then on the former owner is fenced, so a cursor of a former epoch claims nothing above that W: it is the
largest position that means the same before and after. A cursor that was signed under an older epoch is
resolved by the boundaries of all epochs since, and by the lowest of them.

Usually that changes nothing but the epoch. It does where a store came back without its last writes, or a
log was made anew: what lay above the boundary is then not what the device has, and is pulled again.

Invariants: pure; a boundary that is missing makes the position unknown (None), never a guess.

Spec: §7, §11.
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from qim_streams.mailbox import watermark

_TIME: Final = struct.Struct(">Q")


class EpochBoundary(NamedTuple):
    """W[64] when an epoch was granted, and when that was (milliseconds, the store's clock)."""

    granted_at_ms: int
    lanes: tuple[int, ...]

    def encode(self) -> bytes:
        """Eight bytes of time, then W in its packed form."""
        return _TIME.pack(self.granted_at_ms) + watermark.pack(self.lanes)


def decode_boundary(data: bytes) -> EpochBoundary:
    """The record of these bytes; RecordError for any other."""
    packed = data[_TIME.size :]
    lanes = watermark.unpack(packed)  # refuses bytes that are too short for a time, too
    return EpochBoundary(_TIME.unpack(data[: _TIME.size])[0], lanes)


def resolve(since: Iterable[EpochBoundary | None], lane: int) -> int | None:
    """The largest mailbox_seq of `lane` that survived all takeovers `since`; None when one is unknown.

    `since`: the boundaries of every epoch after the cursor's, up to the present one; at least one.
    """
    lowest: int | None = None
    for boundary in since:
        if boundary is None:
            return None
        seq = boundary.lanes[lane]
        lowest = seq if lowest is None else min(lowest, seq)
    return lowest
