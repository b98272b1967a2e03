"""What a device has shown, and what it may show next: once per event, in order per conversation.

Events come in two ways. A pull is complete: it proves that there is nothing else up to
``covered``. A push is not: one may be lost, repeated or late. So a pushed event that does not follow
the last shown one of its conversation waits until the missing ones come or a pull proves that there
are none (the user was not a member, or a seq was never used).

A conversation whose history is being read (`open_history`) shows nothing but that history, in order;
what arrives meanwhile waits and comes out after it.

Invariants: an event_id is shown once; within a conversation seqs are shown ascending, except that an
event that arrives in a hole already proven is shown rather than lost (counted in `reordered`); memory
is bounded by the ids remembered, the events held or waiting and the holes kept.
It does no I/O, reads no clock, and never moves a cursor.

Spec: §2 (event_id), §6, §7, §8 (3) (7). Scenarios A1 A5 C2 C13 D11.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from qim_streams.client.deliveries import Gap
from qim_streams.client.line import Counters, Line
from qim_streams.wire.frames import Event

IDS_REMEMBERED = 16_384
HELD_MAX = 4_096
WAITING_MAX = 8_192  # for history, all conversations together; more are left to the history itself


class Inbox:
    """Dedup and order for one device. Methods return the events to show now, in order.

    `positions`: the last shown seq of each conversation. `history`: the conversations whose history is
    still to be read, and after which seq.
    """

    def __init__(
        self,
        positions: Mapping[str, int] | None = None,
        ids_remembered: int = IDS_REMEMBERED,
        history: Mapping[str, int] | None = None,
    ) -> None:
        self.counters = Counters()
        self.covered = -1  # everything up to this mailbox_seq was pulled: holes below are proven
        self.held = 0
        self.held_pushed = 0  # of them: pushed events; what is before them should have come
        self.waiting = 0  # for history
        self.reads_unknown = False  # a conversation that is met in its middle is read from history first
        self.history: dict[str, int] = dict(history or {})  # open conversation -> read up to this seq
        self.changed: dict[str, int | None] = {}  # what of `history` the store does not know; None: closed
        self._lines = {name: Line(last) for name, last in (positions or {}).items()}
        for name, after in self.history.items():
            line = self._lines.setdefault(name, Line())
            line.reading, line.last = True, max(line.last, after)
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
            seq = message.conversation_seq
            line = lines.get(message.conversation_id)
            if line is None:
                line = self._meet(message.conversation_id, has_past=seq > 1)
            if line.reading:
                self._wait(line, seq, event)
            elif seq == line.last + 1:
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
        if line is None:  # the ack may repeat an old one: also behind seq 1 something may have been missed
            line = self._meet(conversation_id, has_past=True)
        if self._knows(event_id) or seq <= line.last:
            return shown  # a pull was faster, or the ack is a repeated one
        if event is None:
            self._remember(event_id)
        if line.reading:
            self._wait(line, seq, event)
        elif seq == line.last + 1:
            line.last = seq
            if event is not None:
                self._show(event, shown)
            self._drain(line, shown)
        else:
            self._hold(line, seq, event)
        return shown

    # -- history

    def open_all(self) -> None:
        """Messages may be missing in every conversation: each shows nothing until its history was read."""
        for name in list(self._lines):
            self.open_history(name)

    def open_history(self, conversation_id: str) -> None:
        """The same for one conversation, known or not."""
        line = self._lines.get(conversation_id)
        if line is None:
            line = self._lines[conversation_id] = Line()
        if line.reading:
            return
        self._count_held(line, -1)
        line.reading, line.wanted = True, max(line.held, default=0)
        self.waiting += len(line.held)
        self._note(conversation_id, line.last)

    def read(self, conversation_id: str, events: Sequence[Event], through: int) -> list[Event]:
        """Take the next stretch of a conversation's history: all that there is up to `through`."""
        shown: list[Event] = []
        line = self._lines[conversation_id]
        waits = deque(sorted(line.held))
        for event in events:
            self.counters.events += 1
            seq = event.message.conversation_seq
            if seq <= line.last:
                self.counters.wire_duplicates += 1
                continue
            self._pass_by(line, waits, seq - 1, shown)
            line.jump(seq)
            is_waiting = bool(waits) and waits[0] == seq
            live = self._unhold(line, waits.popleft()) if is_waiting else None
            if (is_waiting and live is None) or self._knows(event.event_id):
                self.counters.wire_duplicates += 1  # own message that is not to be shown
            else:
                # The mailbox knows flags and mentions, the history the latest state of the message.
                self._show(event if live is None else live._replace(message=event.message), shown)
        self._pass_by(line, waits, through, shown)
        if through > line.last:
            line.jump(through)
        self._note(conversation_id, line.last)
        return shown

    def _pass_by(self, line: Line, waits: deque[int], through: int, shown: list[Event]) -> None:
        """Show what waits up to `through` and has no place in the history."""
        while waits and waits[0] <= through:
            line.jump(waits[0])
            self._let_go(line, waits.popleft(), shown)

    def lacks(self, conversation_id: str) -> bool:
        """Whether something came meanwhile that could not wait: the history has to reach it."""
        line = self._lines[conversation_id]
        return line.wanted > max(line.held, default=line.last)

    def close_history(self, conversation_id: str, reason: str | None) -> tuple[list[Event], Gap | None]:
        """The history was read to its end, or (with a `reason`) cannot be read any further.

        Returns what waited for it and may be shown now, and the gap that remains, if any.
        """
        shown: list[Event] = []
        gap = None
        line = self._lines[conversation_id]
        lost = self.lacks(conversation_id)
        for seq in [seq for seq in line.held if seq <= line.last]:
            self._unhold(line, seq)
        if reason is not None or lost:
            before = None if lost or not line.held else min(line.held)
            gap = Gap(conversation_id, line.last, before, reason or "LIMIT")
            if line.held:
                top = max(line.held)
                self._advance(line, top, shown)
                self._let_go(line, top, shown)
        self.waiting -= len(line.held)
        line.reading, line.wanted = False, 0
        self._count_held(line, 1)
        self._release_line(line, shown)
        self.history.pop(conversation_id, None)
        self.changed[conversation_id] = None
        return shown, gap

    def disconnected(self) -> None:
        """Forget what is held: it lies above the cursor and comes again by pull.

        What waits for history may lie below it, and stays.
        """
        for line in self._lines.values():
            if not line.reading:
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
        """The last shown seq of each conversation; 0 for none."""
        return {name: line.last for name, line in self._lines.items()}

    def _meet(self, conversation_id: str, has_past: bool) -> Line:
        """A conversation is met for the first time; if it has a past, this may have been missed."""
        line = self._lines[conversation_id] = Line()
        if self.reads_unknown and has_past:
            self.open_history(conversation_id)
        return line

    def _note(self, conversation_id: str, after: int) -> None:
        self.history[conversation_id] = self.changed[conversation_id] = after

    def _wait(self, line: Line, seq: int, event: Event | None) -> None:
        """Keep what came for a conversation whose history is being read."""
        if seq <= line.last:
            self.counters.wire_duplicates += 1
        elif seq in line.held:
            self._count_repeat(line.held[seq], event)
        else:
            line.wanted = max(line.wanted, seq)
            if self.waiting < WAITING_MAX:
                line.held[seq] = event
                self.waiting += 1

    def _take_pulled(self, event: Event, shown: list[Event]) -> None:
        message = event.message
        seq = message.conversation_seq
        line = self._lines.get(message.conversation_id)
        if line is None:
            line = self._meet(message.conversation_id, has_past=seq > 1)
        if line.reading:
            self._wait(line, seq, event)
        elif seq > line.last:
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

    def _advance(self, line: Line, seq: int, shown: list[Event]) -> None:
        """Make `seq` the last one of the line; what is held below it goes first."""
        for below in sorted(one for one in line.held if one < seq):
            line.jump(below)
            self._let_go(line, below, shown)
        line.jump(seq)

    def _release_covered(self, shown: list[Event]) -> None:
        for line in self._lines.values():
            if line.held and not line.reading:
                self._release_line(line, shown)

    def _release_line(self, line: Line, shown: list[Event]) -> None:
        proven = [
            seq for seq, one in line.held.items() if one is not None and 0 <= one.mailbox_seq <= self.covered
        ]
        if proven:
            top = max(proven)
            self._advance(line, top, shown)
            self._let_go(line, top, shown)
        self._drain(line, shown)

    def _drain(self, line: Line, shown: list[Event]) -> None:
        while line.last + 1 in line.held:
            line.last += 1
            self._let_go(line, line.last, shown)

    def _let_go(self, line: Line, seq: int, shown: list[Event]) -> None:
        event = self._unhold(line, seq)
        if event is not None and not self._knows(event.event_id):
            self._show(event, shown)

    def _hold(self, line: Line, seq: int, event: Event | None) -> None:
        if seq in line.held:
            self._count_repeat(line.held[seq], event)
            return
        self.counters.gaps += _is_pushed(event) and not self.held_pushed
        if not self.is_full:  # beyond the bound it is dropped like a lost push: the pull brings it
            line.held[seq] = event
            self.held += 1
            self.held_pushed += _is_pushed(event)

    def _unhold(self, line: Line, seq: int) -> Event | None:
        event = line.held.pop(seq)
        if line.reading:
            self.waiting -= 1
        else:
            self.held -= 1
            self.held_pushed -= _is_pushed(event)
        return event

    def _count_held(self, line: Line, sign: int) -> None:
        self.held += sign * len(line.held)
        self.held_pushed += sign * sum(map(_is_pushed, line.held.values()))

    def _count_repeat(self, first: Event | None, second: Event | None) -> None:
        if first is None or second is None or first.event_id == second.event_id:
            self.counters.wire_duplicates += 1
        else:
            self.counters.visible_duplicates += 1

    def _late(self, line: Line, event: Event, shown: list[Event]) -> None:
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
