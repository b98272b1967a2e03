"""A pull of one mailbox range, in parts that are asked for ahead and released in order.

The first request asks for the whole range. When the answer is cut by its limits, its width says how
dense the mailbox is, and the rest is asked for in parts of about that width, up to ``window`` at a
time. Answers may be cut again; a part then asks for its rest.

Invariants: the stretches that `answer` returns follow each other without a gap or an overlap from
`after` to `up_to`; every answer makes progress or `ProtocolError` is raised, so a pull ends; at most
``window`` requests are open and at most twice as many parts are kept.

Spec: §7 (pull_mailbox_window, MAILBOX_BATCH). Scenarios A1 A2 C10 C11.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from qim_streams import limits
from qim_streams.errors import ProtocolError
from qim_streams.wire.frames import Event, MailboxBatch


@dataclass(slots=True, eq=False)
class Part:
    """(after, up_to] of the range; covered up to `at`. `events` wait for the parts before."""

    at: int
    up_to: int
    open: bool = False  # a request is unanswered
    events: list[Event] = field(default_factory=list)


class Stretch(NamedTuple):
    """All events up to `covered` that follow the stretch before."""

    events: Sequence[Event]
    covered: int


class RangePull:
    """Pulls (after, up_to]; `after` < `up_to`. The caller numbers and sends the requests."""

    def __init__(self, after: int, up_to: int, window: int = limits.PULL_WINDOW) -> None:
        if after >= up_to:
            raise ValueError(f"nothing to pull in ({after}, {up_to}]")
        self.up_to = up_to
        self._window = window
        self._parts: deque[Part] = deque([Part(after, up_to)])
        self._planned = up_to  # parts exist up to here
        self._width = 0  # of the parts to come; 0: density unknown, one request for everything
        self._capacity = 0  # entries of the latest answer that was cut
        self._open = 0

    @property
    def done(self) -> bool:
        """Whether everything up to `up_to` was released."""
        return not self._parts and self._planned == self.up_to

    def requests(self) -> list[Part]:
        """The parts to ask for now, (at, up_to] each; they count as open until answered or failed."""
        due: list[Part] = []
        for part in self._parts:
            if self._open >= self._window:
                return due
            if not part.open and part.at < part.up_to:
                self._ask(part, due)
        while (
            self._open < self._window and self._planned < self.up_to and len(self._parts) < 2 * self._window
        ):
            part = Part(self._planned, min(self.up_to, self._planned + self._width))
            self._planned = part.up_to
            self._parts.append(part)
            self._ask(part, due)
        return due

    def answer(self, part: Part, batch: MailboxBatch) -> list[Stretch]:
        """Take the answer to a request; returns what may be released, in order."""
        covered, entries = batch.covered_through_seq, batch.entries
        if not part.at < covered <= part.up_to or batch.has_more != (covered < part.up_to):
            raise ProtocolError(
                "FIELD_INVALID",
                f"a batch for ({part.at}, {part.up_to}] covers up to {covered}, has_more={batch.has_more}",
                field="covered_through_seq",
            )
        if entries and not part.at < entries[0].mailbox_seq <= entries[-1].mailbox_seq <= covered:
            raise ProtocolError("FIELD_INVALID", "a batch holds entries outside its range", field="entries")
        self._open -= 1
        part.open = False
        self._learn_width(part, covered, batch.has_more, entries)
        part.at = covered
        part.events.extend(entries)
        return self._release()

    def failed(self, part: Part) -> None:
        """The request was refused for now: `requests` gives the part again."""
        self._open -= 1
        part.open = False

    def _ask(self, part: Part, due: list[Part]) -> None:
        part.open = True
        self._open += 1
        due.append(part)

    def _learn_width(self, part: Part, covered: int, cut: bool, entries: Sequence[Event]) -> None:
        """Parts should just fit one answer: cut ones cost a request more, thin ones waste the window."""
        if not cut:
            if 2 * len(entries) < self._capacity:
                self._width *= 2
            return
        if self._width == 0:  # the first answer: the rest goes into parts of its own
            self._planned = part.up_to = covered
        # From the first entry on: what lies before it may be empty (the user was not there yet).
        dense = covered - entries[0].mailbox_seq + 1 if entries else covered - part.at
        self._width = max(1, dense * 9 // 10)
        self._capacity = len(entries)

    def _release(self) -> list[Stretch]:
        released: list[Stretch] = []
        while self._parts:
            head = self._parts[0]
            if head.events or head.at == head.up_to:
                released.append(Stretch(head.events, head.at))
                head.events = []
            if head.at < head.up_to:
                break
            self._parts.popleft()
        return released
