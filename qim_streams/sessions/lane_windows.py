"""Windows of the mailbox-tail compactor: what was fed and is not written yet, lane by lane. Pure.

A window opens with the first event of a lane and is over after `events_max` of them or at the lane's own
time, which comes once in `window_s`. The times of the lanes are spread over it, so that not all of them write
at once; whatever is due about now is taken together.

Invariants: what is taken and put back again is as if it had never been taken; `through` names offsets up to
which nothing is in any window.

Spec: §9 (the mailbox-tail compactor).
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from qim_streams.mailbox.members import Addressed
from qim_streams.placement import LANES
from qim_streams.records import KIND_MESSAGE
from qim_streams.sessions.projection_records import SessionRow, Slot, activity_of
from qim_streams.sessions.projection_rules import Folded, Folder, RowMap, grown

GRAINS: Final = 16  # parts of a window that are taken together
_LANE_BITS: Final = LANES - 1
_new = tuple.__new__


@dataclass(slots=True)
class Window:
    """What a lane of a tenant waits to write. `first`: the lowest offset in it, by shard."""

    due_at: float
    events: int = 0
    first: dict[int, int] = field(default_factory=dict)
    rows: RowMap = field(default_factory=dict)


class Taken(NamedTuple):
    """Windows that are over. `wide`: messages of wide conversations, which belong to no lane."""

    windows: dict[Slot, Window]
    wide: list[tuple[int, Addressed]]

    def folded(self, wide_above: int) -> Folded:
        """What is to be written."""
        folder = Folder(wide_above)
        for shard, record in self.wide:
            folder.add(shard, [record])
        rows = {slot: list(window.rows.values()) for slot, window in self.windows.items()}
        return Folded(rows, folder.folded().wide)


class LaneWindows:
    """Open windows of any number of shards. Times are seconds of any clock that does not go back."""

    def __init__(self, wide_above: int, window_s: float, events_max: int) -> None:
        self._wide_above, self._window_s, self._events_max = wide_above, window_s, events_max
        self._open: dict[str, list[Window | None]] = {}
        self._wide: list[tuple[int, Addressed]] = []
        self._full = False
        self.events = 0  # in all windows
        self.fed: dict[int, int] = {}  # the last offset, by shard

    def add(self, shard: int, records: Sequence[Addressed], now_s: float) -> bool:
        """Take records of a shard; whether something is due before its time."""
        self.fed[shard] = records[-1].offset
        for record in records:
            offset, dispatch, members = record
            if dispatch is None or dispatch.kind != KIND_MESSAGE:
                continue
            if len(members) > self._wide_above:
                self._wide.append((shard, record))
                self.events += self._wide_above
                self._full = True
                continue
            activity = activity_of(dispatch.last_activity_id)
            self._add(shard, offset, dispatch.tenant_id, dispatch.conversation_id,
                      (activity, dispatch.conversation_seq), members, now_s)  # fmt: skip
        return self._full

    def _add(
        self, shard: int, offset: int, tenant: str, conversation: str, at: tuple[int, int],
        members: Iterable[int], now_s: float,
    ) -> None:  # fmt: skip
        activity, seq = at
        lanes = self._open.get(tenant)
        if lanes is None:
            lanes = self._open[tenant] = [None] * LANES
        for ordinal in members:
            window = lanes[ordinal & _LANE_BITS]
            if window is None:
                window = lanes[ordinal & _LANE_BITS] = Window(self._due(ordinal & _LANE_BITS, now_s))
            window.first.setdefault(shard, offset)
            window.events += 1
            self.events += 1
            if window.events >= self._events_max:
                self._full = True
            rows, key = window.rows, (ordinal, conversation)
            row = rows.get(key)
            if row is None:
                rows[key] = _new(SessionRow, (ordinal, conversation, activity, seq, False))
            elif activity > row[2] or seq < row[3]:
                rows[key] = grown(row, activity, seq)

    def _due(self, lane: int, now_s: float) -> float:
        """The next time of a lane after now."""
        phase = lane * self._window_s / LANES
        return phase + (math.floor((now_s - phase) / self._window_s) + 1) * self._window_s

    def next_due(self, now_s: float) -> float:
        """Seconds from now until something may be due, at most a part of a window: what opens may be next."""
        if self._full:
            return 0.0
        times = [window.due_at for lanes in self._open.values() for window in lanes if window is not None]
        most = self._window_s / GRAINS
        return max(0.0, min(min(times, default=math.inf) - now_s, most))

    def take(self, now_s: float | None) -> Taken:
        """What is due now or nearly so; everything without a time."""
        taken = Taken({}, self._wide)
        until = math.inf if now_s is None else now_s + self._window_s / GRAINS
        for tenant, lanes in list(self._open.items()):
            for lane, window in enumerate(lanes):
                if window is not None and (window.due_at <= until or window.events >= self._events_max):
                    taken.windows[tenant, lane] = window
                    lanes[lane] = None
            if not any(lanes):
                del self._open[tenant]
        self._wide, self._full = [], False
        self.events -= sum([window.events for window in taken.windows.values()])
        self.events -= self._wide_above * len(taken.wide)
        return taken

    def put_back(self, taken: Taken) -> None:
        """What was taken could not be written: it is due again at once."""
        for (tenant, lane), window in taken.windows.items():
            lanes = self._open.setdefault(tenant, [None] * LANES)
            later = lanes[lane]
            if later is not None:
                _merge(window, later)
            lanes[lane] = window
        self._wide = taken.wide + self._wide
        self._full = self._full or bool(self._wide)
        self.events += sum([window.events for window in taken.windows.values()])
        self.events += self._wide_above * len(taken.wide)

    def through(self) -> dict[int, int]:
        """By shard, the offset up to which no window holds anything."""
        through = dict(self.fed)
        for lanes in self._open.values():
            for window in lanes:
                if window is not None:
                    for shard, first in window.first.items():
                        through[shard] = min(through.get(shard, first), first - 1)
        for shard, record in self._wide:
            through[shard] = min(through[shard], record.offset - 1)
        return through

    def forget(self, shards: Collection[int]) -> None:
        """Shards leave, and hold no checkpoint any more. Rows of theirs that still wait harm nobody."""
        for shard in shards:
            self.fed.pop(shard, None)
        for lanes in self._open.values():
            for window in lanes:
                if window is not None:
                    window.first = {shard: at for shard, at in window.first.items() if shard not in shards}
        stay = [one for one in self._wide if one[0] not in shards]
        self.events -= self._wide_above * (len(self._wide) - len(stay))
        self._wide = stay

    def clear(self) -> None:
        """Drop everything that waits."""
        self._open.clear()
        self._wide, self._full, self.events = [], False, 0


def _merge(into: Window, later: Window) -> None:
    """Fold a window of later events into an earlier one of the same lane."""
    into.events += later.events
    for shard, first in later.first.items():
        into.first[shard] = min(first, into.first.get(shard, first))
    for key, row in later.rows.items():
        before = into.rows.get(key)
        if before is not None:
            row = row._replace(
                activity=max(row.activity, before.activity), first_seq=min(row.first_seq, before.first_seq)
            )
        into.rows[key] = row
