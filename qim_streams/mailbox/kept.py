"""KeptPositions: after a total loss of the store, which old cursors still mean what they meant.

mailbox_seq is an offset of the dispatch log. A store that lost everything lost W, mailboxes and the
boundaries of all epochs, but not the numbering: the owner replays the same log, and what comes back stands
under the same numbers. Proof that it is the same log: the table ``lane_watermarks`` says since which epoch
this shard was numbered by it, and the log has not ended before what the table says was done. So a cursor of
one of these epochs stands, as far as the log reached when the owner took over. What the log has no more is
not part of this: it is an effective trim of everybody (`MailboxStore.promise`), which is judged first.

Invariants: pure; without that row nothing is kept, and the device rebuilds.

Spec: §7, §11, §14.4.
"""

import struct
from typing import Final, NamedTuple

from qim_streams.errors import RecordError

_BODY: Final = struct.Struct(">QQq")
FIELD: Final = "kept"  # of the hash of boundaries


class KeptPositions(NamedTuple):
    """Positions up to `through_seq` of the epochs `first_epoch` to `last_epoch` (inclusive) still stand."""

    first_epoch: int
    last_epoch: int
    through_seq: int

    def encode(self) -> bytes:
        """Its bytes."""
        return _BODY.pack(*self)

    def covers(self, from_epoch: int, to_epoch: int) -> bool:
        """Whether it says something about positions of `from_epoch` in a later epoch `to_epoch`."""
        return self.first_epoch <= from_epoch < self.last_epoch <= to_epoch


def decode_kept(data: bytes) -> KeptPositions:
    """The record of these bytes; RecordError for any other."""
    if len(data) != _BODY.size:
        raise RecordError(f"KeptPositions: {len(data)} bytes")
    return KeptPositions(*_BODY.unpack(data))
