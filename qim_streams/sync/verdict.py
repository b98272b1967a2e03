"""The verdict on a cursor, in the contract's fixed order: INVALID, EXPIRED, REBASED, else OK.

=============================================================  ==========================================
the cursor                                                     verdict
=============================================================  ==========================================
bad signature, other device, other shard                       Invalid
last_applied below -1 or above W[lane]                         Invalid
shard_epoch newer than any granted (the store went back)       Invalid
last_applied below effective_trim                              Expired
older shard_epoch, nobody knows what the change did            Expired (the position is lost: rebuild)
older shard_epoch, boundary known                              Rebased to min(last_applied, boundary)
else                                                           Ok
=============================================================  ==========================================

Invariants: pure, total, deterministic; a cursor of an older epoch is never Ok, so a position of a log
that was created anew is never taken for one of this log.

Spec: §7, §11.
"""

from typing import NamedTuple

from qim_streams.errors import SyncVerdict
from qim_streams.ids import NOTHING_COVERED
from qim_streams.sync.cursor import Cursor


class ShardPosition(NamedTuple):
    """A user's shard and lane as of now. `trim` is effective_trim(user)."""

    shard: int
    shard_epoch: int
    lane_watermark: int
    trim: int


class Ok(NamedTuple):
    """The cursor stands."""

    after_seq: int


class Invalid(NamedTuple):
    """Not a cursor that this device can have got from us."""

    why: str


class Expired(NamedTuple):
    """Entries after the cursor may be gone."""

    why: str


class Rebased(NamedTuple):
    """The position in the present epoch that the cursor stands for."""

    last_applied: int

    @property
    def replay_from_seq(self) -> int:
        """The first seq that the device has to pull."""
        return self.last_applied + 1


Verdict = Ok | Invalid | Expired | Rebased


def judge(cursor: Cursor | None, here: ShardPosition, boundary: int | None) -> Verdict:
    """The verdict. `cursor` None: the token did not open. `boundary`: see `EpochBoundaries`.

    `boundary` is looked at only when the cursor's epoch is older than the present one.
    """
    if cursor is None:
        return Invalid("not a cursor of this device")
    if cursor.shard != here.shard:
        return Invalid("a cursor of another shard")
    if not NOTHING_COVERED <= cursor.last_applied <= here.lane_watermark:
        return Invalid("a position that does not exist")
    if cursor.shard_epoch > here.shard_epoch:
        return Invalid("an epoch that was never granted")
    if cursor.last_applied < here.trim:
        return Expired("last_applied is below the trim watermark")
    if cursor.shard_epoch == here.shard_epoch:
        return Ok(cursor.last_applied)
    if boundary is None:
        return Expired("the positions of that epoch are lost")
    return Rebased(max(min(cursor.last_applied, boundary), int(NOTHING_COVERED)))


def refusal(verdict: Invalid | Expired) -> SyncVerdict:
    """The error that a verdict is answered with. (`Rebased` needs a signature: see `SyncService`.)"""
    if isinstance(verdict, Invalid):
        return SyncVerdict("CURSOR_INVALID", verdict.why)
    return SyncVerdict("CURSOR_EXPIRED", verdict.why, rebuild_required=True)
