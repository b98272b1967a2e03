"""Grouping the recipients of one large record by lane, and cutting them into chunks and steps.

A lane's members are written in chunks of at most `entries_max`; a *step* is one store call and holds
whole chunks of one or more lanes, at most `entries_max` mailboxes together. Lanes without members get
no chunk. The plan is a pure function of the members and `entries_max`: a resumed record has the same
steps, so that "three steps are done" means the same before and after a crash.

Small records never come here: they are written and covered by one atomic call (``service``).

Spec: §5.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pyroaring import BitMap

from qim_streams.placement import LANES

Ordinals = Sequence[int]
_SPREAD_MAX = 32  # numbers per member up to which patterns are faster than a loop


class Chunk(NamedTuple):
    """Up to `entries_max` members of one lane, ascending. `number` counts the lane's chunks from 0."""

    lane: int
    number: int
    ordinals: Ordinals


class Step(NamedTuple):
    """What one store call writes: chunks in lane order."""

    chunks: tuple[Chunk, ...]

    @property
    def size(self) -> int:
        """Mailboxes that the step writes."""
        return sum(len(chunk.ordinals) for chunk in self.chunks)


def by_lane(members: BitMap) -> list[Ordinals]:
    """The members of each of the 64 lanes, ascending.

    Where members are dense, one intersection per lane with every 64th number: 3 ms for 100,000 members
    of a million, a third of a loop over the members. Where they are sparse, the loop.
    """
    if not members:
        return [array("I") for _ in range(LANES)]
    # Aligned to a multiple of 64, so that the pattern of lane l starts with an ordinal of lane l.
    low, high = members.min() // LANES * LANES, members.max() + 1
    if high - low > _SPREAD_MAX * len(members):
        found: list[Ordinals] = [array("I") for _ in range(LANES)]
        for ordinal in members:
            found[ordinal % LANES].append(ordinal)  # type: ignore[attr-defined]  # arrays, made above
        return found
    return [
        (members & BitMap(range(low + lane, max(high, low + lane + 1), LANES))).to_array()
        for lane in range(LANES)
    ]


def chunks_of(members: BitMap, entries_max: int) -> Iterator[Chunk]:
    """All chunks in the order of lane and number."""
    for lane, ordinals in enumerate(by_lane(members)):
        for start in range(0, len(ordinals), entries_max):
            yield Chunk(lane, start // entries_max, ordinals[start : start + entries_max])


def plan_steps(members: BitMap, entries_max: int) -> list[Step]:
    """The store calls for a record with `members`, each of at most `entries_max` mailboxes."""
    if entries_max < 1:
        raise ValueError("entries_max: must be at least 1")
    steps: list[Step] = []
    current: list[Chunk] = []
    size = 0
    for chunk in chunks_of(members, entries_max):
        if current and size + len(chunk.ordinals) > entries_max:
            steps.append(Step(tuple(current)))
            current, size = [], 0
        current.append(chunk)
        size += len(chunk.ordinals)
    if current:
        steps.append(Step(tuple(current)))
    return steps


def steps_done(steps: Sequence[Step], done: dict[int, int]) -> int:
    """How many steps from the first one on are marked in `done` ({lane: bitmap of chunk numbers})."""
    for count, step in enumerate(steps):
        if any(not done.get(chunk.lane, 0) >> chunk.number & 1 for chunk in step.chunks):
            return count
    return len(steps)


def mark(done: dict[int, int], step: Step) -> dict[int, int]:
    """`done` with the chunks of `step` added: a set union, so a done chunk stays done. Spec: §14.6."""
    marked = dict(done)
    for chunk in step.chunks:
        marked[chunk.lane] = marked.get(chunk.lane, 0) | 1 << chunk.number
    return marked
