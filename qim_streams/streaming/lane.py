"""One lane: the queue of one partition in one assignment, and what was handled of it since its checkpoint.

`take` says what goes into a sweep. Spec: §5 (order), §14.2.
"""

from collections import deque

from qim_streams.streaming.source import Chunk


class Lane:
    """The queue of one partition in one assignment."""

    __slots__ = (
        "busy",
        "chunks",
        "due_at",
        "epoch",
        "handled_records",
        "next_offset",
        "partition",
        "previous",
        "queued",
        "swept",
    )

    def __init__(self, partition: int, epoch: int, start: int, previous: int) -> None:
        self.partition, self.epoch = partition, epoch
        self.next_offset, self.previous = start, previous
        self.chunks: deque[Chunk] = deque()
        self.queued = 0
        self.busy = False  # in a sweep or a checkpoint
        self.swept = 0  # number of the last sweep that took something
        self.handled_records = 0  # since the last checkpoint
        self.due_at = 0.0  # loop time from which they have waited long enough


def take(ready: list[Lane], records_max: int, turn: int) -> dict[Lane, list[Chunk]]:
    """What is queued, up to `records_max` over all lanes: a chunk of each in turn, as long as they fit.

    The lane that was left out for longest comes first (at least one chunk of it is taken), so that a backlog
    of one starves no other. `turn`: the number of this sweep.
    """
    taken: dict[Lane, list[Chunk]] = {}
    left, waiting = records_max, sorted(ready, key=lambda lane: lane.swept)
    while waiting:
        going_on = []
        for lane in waiting:
            count = len(lane.chunks[0].records)
            if taken and count > left:
                continue
            taken.setdefault(lane, []).append(lane.chunks.popleft())
            left -= count
            if lane.chunks:
                going_on.append(lane)
        waiting = going_on
    for lane in taken:
        lane.swept = turn
    return taken
