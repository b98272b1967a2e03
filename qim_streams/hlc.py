"""Hybrid logical clock: message ids that are unique and increase, whatever the wall clock does.

A message id is 16 bytes, big-endian: 48 bits of milliseconds, 16 bits of a logical counter, 64 bits
of node (a random number drawn at each boot). Time comes in as an argument; the clock only remembers.

Invariants: ids of one clock strictly increase; after a restart they exceed every id issued before,
because the clock never passes a bound that was stored first (`reserve`); a remote stamp further
ahead than `drift_max_ms` is refused. It does not read a clock, store a bound or draw a node number.

Spec: §2.
"""

import struct
from dataclasses import dataclass

from qim_streams.ids import ID_BYTES, MessageId

LOGICAL_MAX = 0xFFFF
MILLIS_MAX = 2**48 - 1
DRIFT_MAX_MS = 2 * 3_600_000  # wall clocks may jump an hour either way: two of them may differ by two

_HEAD = struct.Struct(">QQ")


class ClockDriftError(ValueError):
    """A remote stamp lies further ahead of this node's time than the drift bound allows."""


def encode(millis: int, logical: int, node: int) -> MessageId:
    """The 16 bytes of an id. `millis` < 2**48, `logical` < 2**16, `node` < 2**64."""
    return MessageId(_HEAD.pack((millis << 16) | logical, node))


def millis_of(message_id: bytes) -> int:
    """The milliseconds since the epoch that a message id carries."""
    return int.from_bytes(message_id[:6], "big")


@dataclass(slots=True)
class HybridClock:
    """The clock of one writer process.

    `bound_ms` is exclusive: ids stay below it until `reserve` moved it, and the caller stores the new
    bound durably before it calls `reserve`. Start a restarted clock with `millis=stored bound`.
    """

    node: int
    millis: int = 0
    logical: int = -1
    bound_ms: int = 0
    drift_max_ms: int = DRIFT_MAX_MS

    def next(self, now_ms: int) -> MessageId:
        """The next id, greater than all before; OverflowError if the stored bound would be passed."""
        if now_ms > self.millis:
            self.millis, self.logical = now_ms, -1
        if self.logical >= LOGICAL_MAX:
            self.millis, self.logical = self.millis + 1, -1
        self.logical += 1
        if self.millis >= self.bound_ms:
            self.logical -= 1
            raise OverflowError(f"clock bound {self.bound_ms} reached: reserve more time first")
        return encode(self.millis, self.logical, self.node)

    def needs_reserve(self, now_ms: int, margin_ms: int) -> bool:
        """Whether less than `margin_ms` of reserved time is left."""
        return max(now_ms, self.millis) + margin_ms >= self.bound_ms

    def reserve(self, bound_ms: int) -> None:
        """Allow ids below `bound_ms`, which the caller has stored durably."""
        self.bound_ms = max(self.bound_ms, min(bound_ms, MILLIS_MAX))

    def observe(self, remote: bytes, now_ms: int) -> None:
        """Move past an id issued elsewhere; ClockDriftError (clock unchanged) if it is too far ahead."""
        if len(remote) != ID_BYTES:
            raise ValueError(f"a message id has {ID_BYTES} bytes, got {len(remote)}")
        head = int.from_bytes(remote[:8], "big")
        millis, logical = head >> 16, head & LOGICAL_MAX
        if millis > now_ms + self.drift_max_ms:
            raise ClockDriftError(f"remote stamp is {millis - now_ms} ms ahead, over {self.drift_max_ms}")
        if (millis, logical) > (self.millis, self.logical):
            self.millis, self.logical = millis, logical
