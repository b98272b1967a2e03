"""What a device has shown, and what it may show next: once per event, in order per conversation.

Events come in two ways. A pull is complete: it proves that there is nothing else up to
``covered``. A push is not: one may be lost, repeated or late. So a pushed event that does not follow
the last shown one of its conversation waits until the missing ones come or a pull proves that there
are none (the user was not a member, or a seq was never used).

Invariants: an event_id is shown once; within a conversation seqs are shown ascending, except that an
event that arrives in a hole already proven is shown rather than lost (counted in `reordered`); memory
is bounded by the ids remembered, the events held and the holes kept.
It does no I/O, reads no clock, and never moves a cursor.

Spec: §2 (event_id), §6, §7. Scenarios A1 A5 C2 C13 D11.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from qim_streams.wire.frames import Event

IDS_REMEMBERED = 16_384
HELD_MAX = 4_096
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
class _Line:
    """One conversation: the last shown seq, what waits above it, and proven holes below it."""

    last: int = 0
    held: dict[int, Event | None] = field(default_factory=dict)  # None: own message, not to be shown
    holes: list[tuple[int, int]] = field(default_factory=list)  # inclusive ends, ascending

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


class Inbox:
    """Dedup and order for one device. Methods return the events to show now, in order."""

    def __init__(self, positions: dict[str, int] | None = None, ids_remembered: int = IDS_REMEMBERED) -> None:
        self.counters = Counters()
        self.covered = -1  # everything up to this mailbox_seq was pulled: holes below are proven
        self.held = 0
        self.held_pushed = 0  # of them: pushed events; what is before them should have come
        self._lines = {name: _Line(last) for name, last in (positions or {}).items()}
        self._recent: set[bytes] = set()
        self._older: set[bytes] = set()
        self._ids_remembered = max(1, ids_remembered // 2)
        self._forgets = bool(positions)  # ids of shown events are missing from the window

    def pushed(self, events: Iterable[Event]) -> list[Event]:
        """Take live events. What opens a gap is held; `has_gap` says so."""
        shown: list[Event] = []
        counters, lines, recent, older = self.counters, self._lines, self._recent, self._older
        for event in events:
            counters.events += 1
            if event.event_id in recent or event.event_id in older:
                counters.wire_duplicates += 1
                continue
            message = event.message
            line = lines.get(message.conversation_id)
            if line is None:
                line = lines[message.conversation_id] = _Line()
            seq = message.conversation_seq
            if seq == line.last + 1:
                line.last = seq
                self._show(event, shown)
                if line.held:
                    self._drain(line, shown)
            elif seq <= line.last:
                self._late(line, event, shown)
            elif event.mailbox_seq <= self.covered:
                self._advance(line, seq, shown)
                self._show(event, shown)
                self._drain(line, shown)
            else:
                self._hold(line, seq, event)
        return shown

    def pulled(self, events: Sequence[Event], covered: int) -> list[Event]:
        """Take the next complete stretch of the mailbox, up to `covered` (inclusive)."""
        shown: list[Event] = []
        for event in events:
            self.counters.events += 1
            self._take_pulled(event, shown)
        if covered > self.covered:
            self.covered = covered
            if self.held:
                self._release_covered(shown)
        return shown

    def own(self, conversation_id: str, seq: int, event_id: bytes, event: Event | None) -> list[Event]:
        """Take a message that this device sent and that was acknowledged.

        With `event` it is shown in its place; with None it only counts as known.
        """
        shown: list[Event] = []
        line = self._lines.get(conversation_id)
        if line is None:
            line = self._lines[conversation_id] = _Line()
        if self._knows(event_id) or seq <= line.last:
            return shown  # a pull was faster, or the ack is a repeated one
        if event is None:
            self._remember(event_id)
        if seq == line.last + 1:
            line.last = seq
            if event is not None:
                self._show(event, shown)
            self._drain(line, shown)
        else:
            self._hold(line, seq, event)
        return shown

    def disconnected(self) -> None:
        """Forget what is held: it lies above the cursor and comes again by pull."""
        for line in self._lines.values():
            line.held.clear()
        self.held = self.held_pushed = 0

    def restart_at(self, covered: int) -> None:
        """Pulls go on from `covered`, possibly in the numbers of another shard."""
        self.covered = covered

    @property
    def has_gap(self) -> bool:
        """Whether an event waits for one that did not come.

        Own messages alone are a weaker sign (`held_pushed` is 0): their ack overtakes the pushes of
        what others sent just before.
        """
        return self.held > 0

    @property
    def is_full(self) -> bool:
        """Whether so much is held that the gap must be closed now."""
        return self.held >= HELD_MAX

    def positions(self) -> dict[str, int]:
        """The last shown seq of each conversation."""
        return {name: line.last for name, line in self._lines.items()}

    def _take_pulled(self, event: Event, shown: list[Event]) -> None:
        message = event.message
        seq = message.conversation_seq
        line = self._lines.get(message.conversation_id)
        if line is None:
            line = self._lines[message.conversation_id] = _Line()
        if seq > line.last:
            self._advance(line, seq, shown)
            if seq in line.held:  # the pull was faster than what it waited for
                self._unhold(line, seq)
            if self._knows(event.event_id):  # own message that is not to be shown
                self.counters.wire_duplicates += 1
            else:
                self._show(event, shown)
            self._drain(line, shown)
        elif self._knows(event.event_id):
            self.counters.wire_duplicates += 1
        else:
            self._late(line, event, shown)

    def _advance(self, line: _Line, seq: int, shown: list[Event]) -> None:
        """Make `seq` the last one of the line; what is held below it goes first."""
        for below in sorted(one for one in line.held if one < seq):
            line.jump(below)
            self._let_go(line, below, shown)
        line.jump(seq)

    def _release_covered(self, shown: list[Event]) -> None:
        for line in self._lines.values():
            proven = [
                seq
                for seq, one in line.held.items()
                if one is not None and 0 <= one.mailbox_seq <= self.covered
            ]
            if proven:
                top = max(proven)
                self._advance(line, top, shown)
                self._let_go(line, top, shown)
                self._drain(line, shown)

    def _drain(self, line: _Line, shown: list[Event]) -> None:
        while line.last + 1 in line.held:
            line.last += 1
            self._let_go(line, line.last, shown)

    def _let_go(self, line: _Line, seq: int, shown: list[Event]) -> None:
        event = self._unhold(line, seq)
        if event is not None and not self._knows(event.event_id):
            self._show(event, shown)

    def _hold(self, line: _Line, seq: int, event: Event | None) -> None:
        if seq in line.held:
            self._count_repeat(line.held[seq], event)
            return
        self.counters.gaps += _is_pushed(event) and not self.held_pushed
        if not self.is_full:  # beyond the bound it is dropped like a lost push: the pull brings it
            line.held[seq] = event
            self.held += 1
            self.held_pushed += _is_pushed(event)

    def _unhold(self, line: _Line, seq: int) -> Event | None:
        event = line.held.pop(seq)
        self.held -= 1
        self.held_pushed -= _is_pushed(event)
        return event

    def _count_repeat(self, first: Event | None, second: Event | None) -> None:
        if first is None or second is None or first.event_id == second.event_id:
            self.counters.wire_duplicates += 1
        else:
            self.counters.visible_duplicates += 1

    def _late(self, line: _Line, event: Event, shown: list[Event]) -> None:
        if line.fill(event.message.conversation_seq):
            self.counters.reordered += 1
            self._show(event, shown)
        elif self._forgets:
            self.counters.wire_duplicates += 1
        else:
            self.counters.visible_duplicates += 1

    def _show(self, event: Event, shown: list[Event]) -> None:
        self._remember(event.event_id)
        self.counters.shown += 1
        shown.append(event)

    def _knows(self, event_id: bytes) -> bool:
        return event_id in self._recent or event_id in self._older

    def _remember(self, event_id: bytes) -> None:
        self._recent.add(event_id)
        if len(self._recent) >= self._ids_remembered:
            self._forgets = self._forgets or bool(self._older)
            self._older, self._recent = self._recent, set()


def _is_pushed(event: Event | None) -> bool:
    return event is not None and event.mailbox_seq >= 0
