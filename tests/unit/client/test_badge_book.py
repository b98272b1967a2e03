"""The client's rule for totals: late and repeated frames are dropped whole, whatever their order (§9)."""

import random

from qim_streams.client.badge_book import Badge, BadgeBook
from qim_streams.wire.examples import SERVER_EXAMPLES
from qim_streams.wire.frames import AuthOk
from qim_streams.wire.frames_sessions import SessionTotals


def auth(total: int, muted: int, complete: bool = True) -> AuthOk:
    frame = SERVER_EXAMPLES["AUTH_OK"]
    assert isinstance(frame, AuthOk)
    return frame._replace(total_unread=total, muted_unread=muted, projection_complete=complete)


def totals(seq: int, version: int, badge: int, rid: int | None = None) -> SessionTotals:
    return SessionTotals(seq, version, badge + 1, 0, 1, badge, True, rid)


def test_any_order_of_frames_ends_with_the_newest() -> None:
    generator = random.Random(7)
    for _ in range(100):
        frames = [totals(seq, version, 100 * seq + version) for seq in (5, 6) for version in range(4)]
        generator.shuffle(frames)
        book = BadgeBook()
        for frame in frames + frames[:3]:
            book.take(frame)
        assert book.value == Badge(603, 0, 1, True)
        assert book.dropped >= 3


def test_a_connection_begins_with_its_own_totals() -> None:
    """Those of AUTH_OK if they were counted, else what was known; then any frame of the connection."""
    book = BadgeBook()
    book.take(totals(9, 9, 5))
    assert not book.begin(auth(0, 0, complete=False))
    assert book.value == Badge(5, 0, 1, True)
    assert book.begin(auth(7, 3))
    assert book.value == Badge(4, 0, 3, True)
    assert book.take(totals(2, 1, 6)), "of a mailbox that began anew"


def test_an_answer_is_newer_than_what_was_known_when_it_was_asked_for() -> None:
    """Its position may be lower: a list that is vouched for again stands a moment behind W."""
    book = BadgeBook()
    book.take(totals(100, 5, 5))
    asked_at = book.applied
    assert book.take(totals(97, 5, 6, rid=1), asked_at)
    assert book.value is not None
    assert book.value.unread == 6
    assert not book.take(totals(97, 5, 7)), "a signal is judged by its order"
    book.take(totals(101, 6, 8))
    assert not book.take(totals(100, 5, 9, rid=2), asked_at), "something newer came in between"
    assert book.value.unread == 8
