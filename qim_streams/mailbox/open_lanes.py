"""OpenLanes: a shard whose lanes stand apart, because records wait in some of them.

Every record that is read is cut by lane into *pieces*, and each lane has a queue of its pieces in the order
of the log. A piece is written when it is the first of its lane; records pass one another in different
lanes, never in one. A *cut* is what one store call writes: the first pieces of some lanes, and W as it
stands afterwards.

The proof. W[lane] is the offset of the record read before the lane's first waiting piece, or of the last
record read, if nothing waits. So (1) every record up to W[lane] was read and judged, (2) every one of them
that touches the lane is durable in it: its piece was in front of what waits now. No lane needs another
one. What the store already had when the shard was taken over (`stands`) is not queued again, lane by lane.

Within one lane of one record with more members than a call takes, the members are written in *steps* that
leave W alone; the store counts them under the name of that lane (`Cut.record`), and the last part moves W
only if all of them stand. Other cuts may come in between.

Pure: no I/O, no clock. Not here: calls (``writer``), turns (``slices``).

Spec: §5, §11, §13, §14.2.
"""

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from pyroaring import BitMap

from qim_streams.mailbox import lanes
from qim_streams.mailbox import watermark as rule
from qim_streams.mailbox.lanes import Ordinals
from qim_streams.mailbox.members import Addressed
from qim_streams.mailbox.watermark import Marks
from qim_streams.placement import LANES
from qim_streams.records import GroupDispatch

_LOOK_AHEAD = 4  # pieces of a lane that are looked at for a small record behind large ones


class OpenRecord:
    """A record that is not durable in all its lanes."""

    __slots__ = ("before", "chunks", "dispatch", "is_large", "offset", "pieces", "taken_at_s")

    def __init__(
        self, offset: int, before: int, dispatch: GroupDispatch, is_large: bool, taken_at_s: float
    ) -> None:
        self.offset, self.before = offset, before  # `before`: offset of the record read before it
        self.dispatch, self.is_large = dispatch, is_large
        self.taken_at_s = taken_at_s
        self.pieces = 0  # lanes in which it waits
        self.chunks: dict[int, int] = {}  # of a large record: calls per lane


class Piece(NamedTuple):
    """The members that a record has in one lane, ascending."""

    record: OpenRecord
    ordinals: Ordinals


class Part(NamedTuple):
    """What a cut writes of one record."""

    record: OpenRecord
    ordinals: Ordinals


class Cut(NamedTuple):
    """What one call writes. `parts` are in the order of the log."""

    taken: dict[int, int]  # lane -> how many of its first pieces are written to their end
    parts: list[Part]
    record: str = ""  # the lane that is written in steps, "" = none
    step: int = -1  # number of the step, W stays; -1: W moves
    steps: int = 0  # with `record` and W moving: how many steps must stand before


class OpenLanes:
    """The queues of one shard. `known` is the last offset read, `stands` W in the store."""

    def __init__(
        self,
        stands: Marks,
        known: int,
        pushed: int,
        entries_max: int,
        *,
        opened: tuple[str, int] = ("", 0),
    ) -> None:
        self.stands, self.known = stands, known
        self._max = entries_max  # members per call
        self.pushed: Marks = pushed  # what devices were told of: pieces at or below are not pushed
        self.records: dict[int, OpenRecord] = {}
        self.unpushed: deque[Addressed] = deque()
        self.unfed: deque[Addressed] = deque()
        self.completed: list[OpenRecord] = []
        self.pending: tuple[Cut, Marks] | None = None  # a call whose outcome is not known yet
        self._pushed_before = pushed
        self._held: dict[int, float] = {}  # lanes that refuse, and until when they are left alone
        self._opened = opened  # (name, steps) as the store counts them
        self._stepping: tuple[int, Piece] | None = None  # the lane that is being written in steps
        self._queues: list[deque[Piece]] = [deque() for _ in range(LANES)]

    # -- what is known

    @property
    def is_even(self) -> bool:
        """Whether nothing waits anywhere and all lanes stand where reading does: there is nothing to keep."""
        return not self.records and not self.unpushed and not self.unfed and self.stands == self.known

    @property
    def through(self) -> int:
        """Up to here, inclusive, everything is durable in every lane."""
        return rule.lowest(self.visible())

    @property
    def behind(self) -> int:
        """How many records are kept because of the oldest that waits."""
        return len(self.unfed)

    def oldest_s(self) -> float | None:
        """When the oldest record that waits was read; None when none does."""
        return next(iter(self.records.values())).taken_at_s if self.records else None

    def visible(self) -> Marks:
        """Lane by lane, what was read and is durable: what pushes may tell of."""
        reach = [queue[0].record.before if queue else self.known for queue in self._queues]
        return rule.marks(list(map(min, reach, rule.lanes_of(self.stands))))

    def chunks_done(self) -> tuple[int, str, dict[int, int]] | None:
        """The oldest large record: offset, name of its plan, {lane: bitmap of chunks in the store}."""
        large = next((one for one in self.records.values() if one.is_large), None)
        if large is None:
            return None
        done = {
            lane: (1 << count) - 1
            for lane, count in large.chunks.items()
            if self._stands_at(lane) >= large.offset
        }
        if self._stepping is not None and self._stepping[1].record is large:
            done[self._stepping[0]] = (1 << self._opened[1]) - 1
        return large.offset, f"{large.offset}.{self._max}", done

    # -- records come

    def take(self, one: Addressed, before: int, *, is_large: bool, now_s: float) -> None:
        """The next record of the log; `before` is the offset of the one read before it."""
        offset, dispatch, members = one
        self.known = offset
        self.unfed.append(one)
        if dispatch is None or not members:
            return
        if offset <= rule.lowest(self.stands):
            self._to_push(one)
            return
        record = OpenRecord(offset, before, dispatch, is_large, now_s)
        covered: list[int] = []
        for lane, ordinals in lanes.touched(members):
            if offset <= self._stands_at(lane):
                covered.extend(ordinals)
            else:
                self._queues[lane].append(Piece(record, ordinals))
                record.pieces += 1
            if is_large:
                record.chunks[lane] = -(-len(ordinals) // self._max)
        if covered:
            self._to_push(Addressed(offset, dispatch, covered))
        if record.pieces:
            self.records[offset] = record

    # -- cuts

    def small(self, now_s: float) -> Cut | None:
        """What small records have at the front of their lanes, as one call takes; None: nothing moves."""
        taken: dict[int, int] = {}
        pieces: list[Piece] = []
        size = 0
        for lane in self._free_lanes(now_s):
            for piece in self._queues[lane]:
                count = len(piece.ordinals)
                if piece.record.is_large or size + count > self._max:
                    break
                taken[lane] = taken.get(lane, 0) + 1
                pieces.append(piece)
                size += count
        cut = Cut(taken, _parts(pieces))
        return cut if pieces or self.after(cut) != self.stands else None

    def slice(self, size_max: int, now_s: float, *, by_age: bool = False) -> Cut | None:
        """The next slice: whole lanes, first those in which a small record waits behind a large one.

        `by_age`: first those whose first piece is the oldest, whoever waits behind it. At most `size_max`
        members, but at least what the first piece has or a call takes. None: nothing waits, or every lane
        that waits is held.
        """
        turn = self._age if by_age else self._turn
        waiting = sorted(self._free_lanes(now_s), key=turn)
        urgent = not by_age and bool(waiting) and self._turn(waiting[0])[0] == 0
        taken: dict[int, int] = {}
        pieces: list[Piece] = []
        size = 0
        for lane in waiting:
            if size >= size_max or (urgent and self._turn(lane)[0]):
                break
            for piece in self._queues[lane]:
                count = len(piece.ordinals)
                if not pieces and count > self._max:
                    return self._step(lane, piece)
                if pieces and size + count > size_max:
                    break
                taken[lane] = taken.get(lane, 0) + 1
                pieces.append(piece)
                size += count
        return Cut(taken, _parts(pieces)) if pieces else None

    def only(self, lane: int, cut: Cut) -> Cut:
        """What `cut` writes of one lane."""
        count = cut.taken[lane]
        return Cut({lane: count}, _parts(list(islice(self._queues[lane], count))))

    def after(self, cut: Cut) -> Marks:
        """W after `cut`: in each lane up to the record before the first piece that still waits."""
        found = []
        for lane, (queue, stands) in enumerate(zip(self._queues, rule.lanes_of(self.stands), strict=True)):
            count = cut.taken.get(lane, 0)
            reach = queue[count].record.before if len(queue) > count else self.known
            found.append(max(reach, stands))
        return rule.marks(found)

    def done(self, cut: Cut, stands: Marks) -> None:
        """`cut` is durable, and W stands at `stands`."""
        self.stands = stands
        whole: list[Piece] = []
        for lane, count in cut.taken.items():
            queue = self._queues[lane]
            for _ in range(count):
                whole.append(queue.popleft())
                self._leaves(whole[-1].record)
            self._held.pop(lane, None)
        if cut.record:
            self._opened, self._stepping = ("", 0), None
        # Of a lane that was written in steps all of it becomes visible, not the last part alone.
        for record, ordinals in _parts(whole) if cut.record else cut.parts:
            members = BitMap(ordinals) if len(ordinals) > LANES else list(ordinals)
            self._to_push(Addressed(record.offset, record.dispatch, members))

    def stepped(self, cut: Cut, steps: int) -> None:
        """A step is durable; `steps` of its lane stand."""
        self._opened = (cut.record, steps)

    def hold(self, lane: int, until_s: float) -> bool:
        """`lane` refuses what is written to it: leave it alone for a while. True for the first time."""
        is_new = lane not in self._held
        self._held[lane] = until_s
        if self._stepping is not None and self._stepping[0] == lane:
            self._stepping = None
        return is_new

    def next_try_s(self) -> float | None:
        """When the first lane that is held may be tried again; None when none is."""
        return min(self._held.values(), default=None)

    @property
    def waits(self) -> bool:
        """Whether any piece waits."""
        return bool(self.records)

    def is_urgent(self, now_s: float) -> bool:
        """Whether a small record waits behind a large one in a lane that may be written to."""
        return any(self._turn(lane)[0] == 0 for lane in self._free_lanes(now_s))

    # -- what follows the mailboxes

    def feed(self) -> Sequence[Addressed]:
        """Take the records that all lanes have and that were not taken yet, in order."""
        through, found = self.through, []
        while self.unfed and self.unfed[0].offset <= through:
            found.append(self.unfed.popleft())
        return found

    def take_completed(self) -> list[OpenRecord]:
        """Take the records that became durable in their last lane."""
        found, self.completed = self.completed, []
        return found

    # -- inside

    def _stands_at(self, lane: int) -> int:
        return rule.lane_of_marks(self.stands, lane)

    def _free_lanes(self, now_s: float) -> Iterator[int]:
        for lane, queue in enumerate(self._queues):
            if queue and self._held.get(lane, now_s) <= now_s:
                yield lane

    def _turn(self, lane: int) -> tuple[int, int]:
        """The order of slices: (0, offset of the oldest small record that waits) before (1, lane)."""
        for piece in islice(self._queues[lane], _LOOK_AHEAD):
            if not piece.record.is_large:
                return 0, piece.record.offset
        return 1, lane

    def _age(self, lane: int) -> tuple[int, int]:
        """The order in which nobody starves."""
        return self._queues[lane][0].record.offset, lane

    def _step(self, lane: int, piece: Piece) -> Cut:
        """The next part of a lane that takes several calls; one that was begun comes first."""
        lane, piece = self._stepping = self._stepping or (lane, piece)
        name = f"{piece.record.offset}.{lane}.{self._max}"
        last = (len(piece.ordinals) - 1) // self._max
        number = min(self._opened[1], last) if self._opened[0] == name else 0
        part = Part(piece.record, piece.ordinals[number * self._max : (number + 1) * self._max])
        if number < last:
            return Cut({}, [part], name, step=number)
        return Cut({lane: 1}, [part], name, steps=last)

    def _leaves(self, record: OpenRecord) -> None:
        record.pieces -= 1
        if not record.pieces:
            del self.records[record.offset]
            self.completed.append(record)

    def _to_push(self, one: Addressed) -> None:
        if one.offset > self._pushed_before:
            self.unpushed.append(one)


def _parts(pieces: Sequence[Piece]) -> list[Part]:
    """The pieces of each record together, records in the order of the log."""
    found: dict[int, tuple[OpenRecord, array[int]]] = {}
    for record, ordinals in pieces:
        known = found.get(record.offset)
        if known is None:
            found[record.offset] = record, array("I", ordinals)
        else:
            known[1].extend(ordinals)
    return [Part(*found[offset]) for offset in sorted(found)]
