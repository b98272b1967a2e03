"""Pages of random conversations against a plain list (A11 C8 C10 D1 D10 E10 E11)."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qim_streams.history.rules import (
    BEFORE_JOIN,
    NOT_MEMBER,
    UNREADABLE,
    UNUSED,
    Break,
    HistoryPage,
    PageQuery,
    PageWalk,
    Scope,
)
from qim_streams.membership.ports import Intervals


@dataclass(frozen=True)
class Chat:
    """A conversation as one user has it: `bodies` by number; what is missing there was never used."""

    scope: Scope
    bodies: dict[int, bytes]
    damaged: frozenset[int] = frozenset()

    def page(
        self,
        newer: bool,
        anchor: int | None,
        limit: int = 100,
        limit_bytes: int = 10**6,
        portion: int = 64,
        reads: int = 10**6,
    ) -> HistoryPage:
        """A page, read in portions."""
        walk = PageWalk(self.scope, PageQuery(newer, anchor, limit, limit_bytes))
        for _ in range(reads):
            span = walk.next_span(walk.portion(portion, portion))
            if span is None:
                break
            assert span.high - span.low < portion
            found = {seq: body for seq, body in self.bodies.items() if span.low <= seq <= span.high}
            walk.take(span, found, self.damaged)
        return walk.page()

    def fate(self, seq: int) -> bytes | str:
        """The body of a number, or why there is none: written anew from the contract."""
        for joined, left in self.scope.ranges:
            if joined < seq and (left is None or seq <= left):
                if seq in self.bodies:
                    return self.bodies[seq]
                return UNREADABLE if seq in self.damaged else UNUSED
        return BEFORE_JOIN if seq <= self.scope.ranges[0][0] else NOT_MEMBER

    @property
    def end(self) -> int:
        """The last number that may be read."""
        left = self.scope.ranges[-1][1]
        return self.scope.committed_seq if left is None else min(left, self.scope.committed_seq)


def check_page(chat: Chat, page: HistoryPage, newer: bool, anchor: int | None) -> list[bytes]:
    """The page covers its range: every number once, with its fate. Returns the messages."""
    if newer:
        covered = range((anchor or 0) + 1, page.next_anchor + 1)
    else:
        start = chat.end + 1 if anchor is None else min(anchor, chat.end + 1)
        covered = range(page.next_anchor, start)
    expected = [chat.fate(seq) for seq in covered]
    assert page.messages == [one for one in expected if isinstance(one, bytes)]
    marked = {seq: one.reason for one in page.breaks for seq in range(one.from_seq, one.to_seq + 1)}
    assert marked == {seq: one for seq, one in zip(covered, expected, strict=True) if isinstance(one, str)}
    assert sum(one.to_seq - one.from_seq + 1 for one in page.breaks) == len(marked), "no overlap"
    for before, after in zip(page.breaks, page.breaks[1:], strict=False):
        assert before.to_seq < after.from_seq
        assert before.to_seq + 1 < after.from_seq or before.reason != after.reason, "one break, not two"
    return page.messages


@st.composite
def intervals(draw: st.DrawFn, last: int) -> Intervals:
    """Joins and leaves at rising numbers up to `last`, with at least one message between two edges."""
    edges = sorted(draw(st.sets(st.integers(0, last), min_size=1, max_size=9)))
    pairs = [(joined, left) for joined, left in zip(edges[::2], edges[1::2], strict=False)]
    if len(edges) % 2:
        return (*pairs, (edges[-1], None))
    return tuple(pairs)


@st.composite
def chats(draw: st.DrawFn) -> Chat:
    """A conversation with holes, damage, joins, leaves, and messages that are not committed yet."""
    allocated = draw(st.integers(0, 60))
    committed = allocated - draw(st.integers(0, min(4, allocated)))
    ranges = draw(intervals(allocated))
    unused = draw(st.sets(st.integers(1, max(1, allocated)), max_size=30))
    damaged = draw(st.sets(st.integers(1, max(1, allocated)), max_size=3)) - unused
    sizes = st.integers(1, 40)
    bodies = {
        seq: b"%03d" % seq + b"x" * draw(sizes)
        for seq in range(1, allocated + 1)
        if seq not in unused and seq not in damaged
    }
    return Chat(Scope(ranges, committed, allocated), bodies, frozenset(damaged))


LIMITS = st.tuples(st.integers(1, 12), st.integers(1, 300), st.integers(1, 9), st.integers(1, 5))


@given(chat=chats(), limits=LIMITS, anchor=st.none() | st.integers(0, 70))
def test_a_page_says_what_becomes_of_every_number_on_its_way(
    chat: Chat, limits: tuple[int, int, int, int], anchor: int | None
) -> None:
    """Both directions, any anchor, any limits: also anchors beyond the end and inside of breaks."""
    limit, limit_bytes, portion, reads = limits
    for newer in (True, False):
        page = chat.page(newer, anchor, limit, limit_bytes, portion, reads)
        messages = check_page(chat, page, newer, anchor)
        assert len(messages) <= limit
        assert len(messages) <= 1 or sum(map(len, messages)) <= limit_bytes
        assert (page.latest_seq, page.oldest_visible_seq) == (chat.end, chat.scope.ranges[0][0] + 1)
        if newer:
            assert page.has_more == (page.next_anchor < chat.scope.promised_seq)
        else:
            assert page.has_more == (page.next_anchor > page.oldest_visible_seq)


@given(chat=chats(), limits=LIMITS, newer=st.booleans())
def test_paging_to_the_end_gives_the_plain_list(
    chat: Chat, limits: tuple[int, int, int, int], newer: bool
) -> None:
    """C8, C10, E11: each message once, in order, whatever the limits; every page makes progress."""
    limit, limit_bytes, portion, reads = limits
    seen: list[bytes] = []
    anchor: int | None = None
    while True:
        page = chat.page(newer, anchor, limit, limit_bytes, portion, reads)
        messages = check_page(chat, page, newer, anchor)
        seen = seen + messages if newer else messages + seen
        if not page.has_more or (newer and page.next_anchor >= chat.end):
            break  # at the end of what is settled the service waits
        before = (0 if newer else chat.end + 1) if anchor is None else anchor
        assert page.next_anchor > before if newer else page.next_anchor < before, "progress"
        anchor = page.next_anchor
    everything = [chat.fate(seq) for seq in range(1, chat.end + 1)]
    assert seen == [one for one in everything if isinstance(one, bytes)]


@given(chat=chats(), anchor=st.integers(1, 60), limit=st.integers(1, 60))
def test_the_edges_of_pages_meet(chat: Chat, anchor: int, limit: int) -> None:
    """Older and newer pages from the same anchor share nothing and leave out the anchor only."""
    older, newer = chat.page(False, anchor, limit), chat.page(True, anchor, limit)
    assert all(int(body[:3]) < anchor for body in older.messages)
    assert all(int(body[:3]) > anchor for body in newer.messages)
    if newer.messages:
        last = int(newer.messages[-1][:3])
        again = chat.page(False, last + 1, len(newer.messages))
        assert again.messages == newer.messages, "the way back from the end of a page is the same page"


def plain(ranges: Intervals, last: int = 30, *, unused: range = range(0)) -> Chat:
    """A conversation of messages 1 to `last`."""
    bodies = {seq: b"%03d" % seq for seq in range(1, last + 1) if seq not in unused}
    return Chat(Scope(ranges, last, last), bodies)


def seqs(page: HistoryPage) -> list[int]:
    """The numbers of a page's messages."""
    return [int(body[:3]) for body in page.messages]


def test_leave_and_rejoin_are_marked() -> None:
    """A11: left at 10, back at 20. Newer from 5: 6-10, then a break, never two ranges glued together."""
    chat = plain(((0, 10), (20, None)))
    page = chat.page(True, 5, 100)
    assert seqs(page) == [6, 7, 8, 9, 10, *range(21, 31)]
    assert page.breaks == [Break(11, 20, NOT_MEMBER)]
    assert (page.has_more, page.next_anchor) == (False, 30)
    cut = chat.page(True, 5, 5)
    assert (seqs(cut), cut.breaks, cut.has_more, cut.next_anchor) == ([6, 7, 8, 9, 10], [], True, 10)
    assert chat.page(True, 10, 1).breaks == [Break(11, 20, NOT_MEMBER)]


def test_an_older_page_without_anchor_is_the_newest() -> None:
    """E10: the newest five, ascending."""
    page = plain(((0, None),)).page(False, None, 5)
    assert (seqs(page), page.next_anchor, page.has_more) == ([26, 27, 28, 29, 30], 26, True)


def test_a_newcomer_is_told_what_came_before() -> None:
    """The range before the join is one break; what he may read begins at oldest_visible_seq."""
    page = plain(((12, None),)).page(True, None, 3)
    assert (seqs(page), page.breaks) == ([13, 14, 15], [Break(1, 12, BEFORE_JOIN)])
    older = plain(((12, None),)).page(False, 15, 50)
    assert (seqs(older), older.breaks, older.has_more) == ([13, 14], [], False)
    assert older.oldest_visible_seq == 13


def test_who_left_reads_up_to_the_leave() -> None:
    """Nothing of what came later shows, not even how much it was."""
    chat = plain(((0, 10),))
    page = chat.page(True, 8, 50)
    assert (seqs(page), page.has_more, page.latest_seq, page.next_anchor) == ([9, 10], False, 10, 10)
    assert chat.page(False, None, 2).messages == [b"009", b"010"]
    beyond = chat.page(True, 25, 50)
    assert (beyond.messages, beyond.breaks, beyond.has_more, beyond.next_anchor) == ([], [], False, 25)


def test_a_hole_longer_than_a_page_costs_a_page_at_a_time() -> None:
    """D1: a stretch of unused numbers ends a page when it has cost enough, with progress; then it is over."""
    chat = plain(((0, None),), 999, unused=range(3, 998))
    first = chat.page(True, 0, 100, reads=4)
    assert (seqs(first), first.breaks, first.has_more) == ([1, 2], [Break(3, 256, UNUSED)], True)
    pages, anchor = 1, first.next_anchor
    while True:
        page = chat.page(True, anchor, 100, reads=4)
        pages, anchor = pages + 1, page.next_anchor
        if not page.has_more:
            break
    assert (seqs(page), anchor, pages) == ([998, 999], 999, 4)


def walked(scope: Scope, anchor: int, limit: int = 100) -> PageWalk:
    """A newer page, read as far as it goes."""
    walk = PageWalk(scope, PageQuery(True, anchor, limit, 10**6))
    read(walk)
    return walk


def read(walk: PageWalk) -> None:
    """Read what the page asks for; every number has a message."""
    while (span := walk.next_span(64)) is not None:
        walk.take(span, {seq: b"%03d" % seq for seq in range(span.low, span.high + 1)}, ())


def test_nothing_is_shown_that_is_not_committed() -> None:
    """RESERVED messages are not shown; a newer page is short of them and says that more is to come."""
    scope = Scope(((0, None),), 8, 10)
    for anchor, messages in ((6, [7, 8]), (8, []), (9, [])):
        walk = walked(scope, anchor)
        assert (walk.is_short, walk.is_empty) == (True, not messages)
        assert (seqs(walk.page()), walk.page().has_more) == (messages, True)
    assert not walked(scope, 10).is_short
    assert not walked(scope, 6, 2).is_short, "it is full"
    assert not walked(Scope(((0, 8),), 8, 10), 8).is_short, "what is to come is not for him"
    older = PageWalk(scope, PageQuery(False, None, 2, 10**6))
    read(older)
    assert (seqs(older.page()), older.is_short) == ([7, 8], False)


def test_a_short_page_goes_on_to_its_goal() -> None:
    """What was numbered before the page was asked for comes in; what comes later is no reason to go on."""
    walk = walked(Scope(((0, None),), 8, 10), 6)
    walk.go_on(Scope(((0, None),), 9, 13))
    read(walk)
    assert (walk.is_short, walk.page().has_more, seqs(walk.page())) == (True, True, [7, 8, 9])
    walk.go_on(Scope(((0, None),), 12, 15))
    read(walk)
    page = walk.page()
    assert (seqs(page), page.has_more, page.latest_seq) == ([7, 8, 9, 10, 11, 12], False, 12)
    left = walked(Scope(((0, None),), 8, 10), 6)
    left.go_on(Scope(((0, 9),), 10, 12))
    read(left)
    assert (seqs(left.page()), left.page().has_more) == ([7, 8, 9], False)
    limited = walked(Scope(((0, None),), 8, 10), 6, 3)
    limited.go_on(Scope(((0, None),), 10, 10))
    read(limited)
    assert (seqs(limited.page()), limited.page().has_more) == ([7, 8, 9], True)


@pytest.mark.parametrize("newer", [True, False])
def test_one_message_larger_than_the_limit_is_a_page(newer: bool) -> None:
    """A byte limit never makes an empty page."""
    chat = Chat(Scope(((0, None),), 2, 2), {1: b"001" * 100, 2: b"002" * 100})
    page = chat.page(newer, None, 10, 1)
    assert (len(page.messages), page.has_more) == (1, True)


def test_an_empty_conversation() -> None:
    """Nothing was said yet, or nothing since the join."""
    for scope in (Scope(((0, None),), 0, 0), Scope(((7, None),), 7, 7), Scope(((7, None),), 5, 7)):
        for newer in (True, False):
            page = Chat(scope, {}).page(newer, 7 if newer else None)
            assert (page.messages, page.has_more) == ([], False)
