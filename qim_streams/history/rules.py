"""What a user may read of a conversation, and how a page of it is cut. Pure.

Numbers and edges are those of membership: an interval (joined, left] holds the messages that were for
the user, exactly those of which his mailbox got an entry (`membership.rules.visible_ranges` adds the
group's policy). The end of what may be read is the last committed message, or the last leave.

A page goes from its anchor (exclusive) in one direction and covers every number on its way: each is a
message of the page or lies in one of its breaks, which say why there is none:

* ``before_join``: said before the user first was a member, and the group does not show that to newcomers;
* ``not_member``: said between a leave and the next join;
* ``deleted``: the user has deleted it for himself, one by one or with all that is below, or it changes a
  message that he has deleted;
* ``unused``: the number was given out and no message has it, in either tier;
* ``unreadable``: there is a record, and its bytes cannot be understood.

Invariants: messages and breaks of a page cover its range without gap or overlap; pages that follow each
other's `next_anchor` cover the conversation without gap or overlap, in both directions; no message
outside the user's ranges; at least one message, whatever the byte limit, if there is one on the way;
`has_more` is false only when every message that was numbered before the page was asked for, and that is
for the user, is on this page or before it.

Spec: §5, §8.
"""

from collections import deque
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from qim_streams.membership.ports import Intervals
from qim_streams.wire.events import target_in_body

BEFORE_JOIN, NOT_MEMBER, UNUSED, UNREADABLE = "before_join", "not_member", "unused", "unreadable"
DELETED = "deleted"
REASONS = (BEFORE_JOIN, NOT_MEMBER, DELETED, UNUSED, UNREADABLE)


class Break(NamedTuple):
    """Numbers without a message for this user, both ends inclusive."""

    from_seq: int
    to_seq: int
    reason: str


class Span(NamedTuple):
    """Numbers that the user may read, both ends inclusive."""

    low: int
    high: int


class PageQuery(NamedTuple):
    """A page: `anchor` is exclusive; None is the beginning (newer) or the end (older)."""

    newer: bool
    anchor: int | None
    limit: int
    limit_bytes: int


class HistoryPage(NamedTuple):
    """A page; messages (common bodies) and breaks ascend in either direction.

    `next_anchor` is the far end of what the page covers: the anchor of the next one.
    """

    messages: list[bytes]
    breaks: list[Break]
    has_more: bool
    next_anchor: int
    oldest_visible_seq: int
    latest_seq: int


class _Segment(NamedTuple):
    low: int
    high: int
    reason: str  # empty: readable


@dataclass(frozen=True, slots=True)
class Scope:
    """What one user may read: `ranges` (see `visible_ranges`; not empty), and how far messages go."""

    ranges: Intervals
    committed_seq: int
    allocated_seq: int
    cleared_to_seq: int = 0  # what the user has deleted for himself: everything up to here,
    deleted: frozenset[int] = frozenset()  # and these, one by one

    @property
    def oldest_seq(self) -> int:
        """The first number that is for this user; above `latest_seq` while there is none."""
        return self.ranges[0][0] + 1

    @property
    def latest_seq(self) -> int:
        """The last number that this user may read now."""
        return self._bounded(self.committed_seq)

    @property
    def promised_seq(self) -> int:
        """The last number that this user will be able to read once what is RESERVED is settled."""
        return self._bounded(self.allocated_seq)

    def hides(self, seq: int, body: bytes | None) -> bool:
        """Whether the user has deleted what a number holds: a message, or the one that it edits or recalls.

        An edit has the text of its message, so it goes with it, whenever it was made.
        """
        if seq in self.deleted:
            return True
        if body is None or not (self.deleted or self.cleared_to_seq):
            return False
        target = target_in_body(body)
        return target is not None and (target <= self.cleared_to_seq or target in self.deleted)

    def _bounded(self, seq: int) -> int:
        end = self.ranges[-1][1]
        return seq if end is None else min(seq, end)

    def _segments(self, low: int, high: int) -> Iterator[_Segment]:
        """As `_shown`; what the user has cleared is not readable."""
        for segment in self._shown(low, high):
            start, end, reason = segment
            cleared = min(end, self.cleared_to_seq)
            if reason or start > cleared:
                yield segment
                continue
            yield _Segment(start, cleared, DELETED)
            if cleared < end:
                yield _Segment(cleared + 1, end, "")

    def _shown(self, low: int, high: int) -> Iterator[_Segment]:
        """`low` to `high`, ascending, cut where it becomes readable or ceases to be; high <= latest_seq."""
        reason = BEFORE_JOIN
        for start, end in self.ranges:
            if low > high:
                return
            if low <= start:
                yield _Segment(low, min(start, high), reason)
                low = start + 1
            reason = NOT_MEMBER
            top = high if end is None else min(end, high)
            if low <= top:
                yield _Segment(low, top, "")
                low = top + 1

    def segments(self, query: PageQuery) -> tuple[int, "deque[_Segment]"]:
        """Where the page starts, and what lies on its way, in its direction."""
        if query.newer:
            start = query.anchor or 0
            return start, deque(self._segments(start + 1, self.latest_seq))
        end = self.latest_seq + 1
        start = end if query.anchor is None else min(query.anchor, end)
        on_the_way = list(self._segments(self.oldest_seq, start - 1))
        return start, deque(reversed(on_the_way))


class PageWalk:
    """One page in the making: `next_span` says what to read, `take` takes it, until there is none.

    A newer page has a goal: the last number as of `scope`, settled or not. See `is_short` and `go_on`.
    """

    def __init__(self, scope: Scope, query: PageQuery) -> None:
        self._scope, self._query = scope, query
        self._position, self._segments = scope.segments(query)
        self._start, self.goal = self._position, scope.promised_seq
        self._messages: list[bytes] = []
        self._breaks: list[Break] = []
        self._used = 0
        self._full = False

    def next_span(self, seqs_max: int) -> Span | None:
        """The numbers to read next, at most `seqs_max`; None when the page is done."""
        while self._segments and not self._full:
            low, high, reason = self._segments[0]
            if reason:
                self._segments.popleft()
                self._mark(low, high, reason)
                self._position = high if self._query.newer else low
                continue
            count = min(seqs_max, self._query.limit - len(self._messages))
            if self._query.newer:
                return Span(low, min(high, low + count - 1))
            return Span(max(low, high - count + 1), high)
        return None

    def portion(self, first: int, most: int) -> int:
        """How many messages to read at once: `first`, later what the byte limit still has room for."""
        if not self._used:
            return first
        room = (self._query.limit_bytes - self._used) * len(self._messages) // self._used
        return min(max(room, 1), most)

    def take(self, span: Span, bodies: Mapping[int, bytes], unreadable: Container[int]) -> None:
        """Common bodies of the messages of `span`, the span of the last `next_span`."""
        ascending = range(span.low, span.high + 1)
        for seq in ascending if self._query.newer else reversed(ascending):
            body = bodies.get(seq)
            if self._scope.hides(seq, body):
                self._mark(seq, seq, DELETED)
            elif body is None:
                self._mark(seq, seq, UNREADABLE if seq in unreadable else UNUSED)
            elif self._messages and self._used + len(body) > self._query.limit_bytes:
                self._full = True
                break
            else:
                self._messages.append(body)
                self._used += len(body)
            self._position = seq
        self._full = self._full or len(self._messages) >= self._query.limit
        self._cut()

    @property
    def is_short(self) -> bool:
        """Whether the page has room for messages up to its goal that are RESERVED yet."""
        return self._query.newer and not self._full and not self._segments and self._position < self.goal

    @property
    def is_empty(self) -> bool:
        """Whether the page covers nothing yet."""
        return self._position == self._start

    def go_on(self, scope: Scope) -> None:
        """Something was settled: a short page goes on with what `scope` has after it."""
        self._scope, self.goal = scope, min(self.goal, scope.promised_seq)
        _, self._segments = scope.segments(self._query._replace(anchor=self._position))

    def page(self) -> HistoryPage:
        """The page as far as it was read."""
        scope, at = self._scope, self._position
        more, step = (at < self.goal, 1) if self._query.newer else (at > scope.oldest_seq, -1)
        return HistoryPage(
            self._messages[::step], self._breaks[::step], more, at, scope.oldest_seq, scope.latest_seq
        )

    def _cut(self) -> None:
        low, high, reason = self._segments.popleft()
        if self._query.newer:
            low = max(low, self._position + 1)
        else:
            high = min(high, self._position - 1)
        if low <= high:
            self._segments.appendleft(_Segment(low, high, reason))

    def _mark(self, low: int, high: int, reason: str) -> None:
        """Note a break, as one with the last where it continues it."""
        if self._breaks:
            last = self._breaks[-1]
            if last.reason == reason and last.to_seq + 1 == low:
                self._breaks[-1] = Break(last.from_seq, high, reason)
                return
            if last.reason == reason and high + 1 == last.from_seq:
                self._breaks[-1] = Break(low, last.to_seq, reason)
                return
        self._breaks.append(Break(low, high, reason))
