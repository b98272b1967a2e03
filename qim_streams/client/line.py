"""One conversation as a device shows it, and the figures of the device.

Pure data with the arithmetic of holes; `inbox` decides.

Invariants: `held` lies above `last`; holes are disjoint, ascending and below `last`, the newest 64 kept.

Spec: §6, §7, §8.
"""

from dataclasses import dataclass, field

from qim_streams.wire.frames import Event

HOLES_MAX = 64


@dataclass(slots=True)
class Counters:
    """Raw figures of one device, for tests and load reports.

    `visible_duplicates`: a second event for a place already shown, under another event_id; it is not
    shown, but a client that compares event ids alone would. `reordered`: shown below a later one.
    """

    frames: int = 0
    events: int = 0
    shown: int = 0
    wire_duplicates: int = 0
    visible_duplicates: int = 0
    reordered: int = 0
    gaps: int = 0


@dataclass(slots=True)
class Line:
    """The last shown seq of a conversation, what waits above it, and proven holes below it."""

    last: int = 0
    held: dict[int, Event | None] = field(default_factory=dict)  # None: own message, not to be shown
    holes: list[tuple[int, int]] = field(default_factory=list)  # inclusive ends, ascending
    reading: bool = False  # its history: what is held waits for that, not for a push
    wanted: int = 0  # the highest seq that came meanwhile

    def jump(self, seq: int) -> None:
        """Move `last` up to `seq`; what lies between is a hole."""
        if seq > self.last + 1:
            self.holes.append((self.last + 1, seq - 1))
            del self.holes[:-HOLES_MAX]
        self.last = seq

    def fill(self, seq: int) -> bool:
        """Whether `seq` lies in a hole; if so it no longer does."""
        for index, (low, high) in enumerate(self.holes):
            if low <= seq <= high:
                rest = [(low, seq - 1), (seq + 1, high)]
                self.holes[index : index + 1] = [part for part in rest if part[0] <= part[1]]
                return True
        return False
