"""The client's rule for deltas: applied only if newer, else dropped whole; rows never go back (Spec: §9)."""

import random

from qim_streams.client.session_book import SessionBook
from qim_streams.wire.frames_sessions import ReadReceipt, SessionDelta, SessionList, SessionRow


def row(version: int, read_seq: int = 0, unread: int = 0, chat: str = "team", **more: object) -> SessionRow:
    return SessionRow(chat, "direct", version, 5, 50, unread, True, 0, read_seq, 0, **more)  # type: ignore[arg-type]


def test_late_and_repeated_deltas_are_dropped_whole() -> None:
    book = SessionBook()
    book.begin(SessionList(1, [row(1, 10, 40), row(3, 5, 5, "room")], 100, True))
    assert not book.take_delta(SessionDelta(99, 9, [row(9, 45, 5)]))
    assert book.take_delta(SessionDelta(100, 5, [row(5, 20, 30)]))
    before = dict(book.rows)
    assert not book.take_delta(SessionDelta(100, 5, [row(5, 20, 30)])), "twice"
    assert not book.take_delta(SessionDelta(100, 4, [row(4, 50, 0), row(9, 50, 0, "room")])), (
        "late, and whole"
    )
    assert book.rows == before
    assert book.dropped == 3
    assert book.take_delta(SessionDelta(101, 2, [row(2, 12, 38)])), (
        "newer by position: its rows are judged alone"
    )
    assert book.rows["team"].read_seq == 20
    assert (book.total_unread, book.muted_unread) == (35, 0)


def test_any_order_of_deltas_ends_with_the_newest() -> None:
    generator = random.Random(3)
    for _ in range(100):
        frames = [
            SessionDelta(100, version, [row(version, version, 50 - version)]) for version in range(1, 9)
        ]
        generator.shuffle(frames)
        book = SessionBook()
        for frame in frames + frames[:3]:
            book.take_delta(frame)
        assert book.rows["team"].read_seq == 8


def test_receipts_only_grow_and_only_of_the_peer() -> None:
    book = SessionBook()
    book.take([row(1, peer_user_id="ben")])
    assert book.take_receipt(ReadReceipt("team", "ben", 9))
    assert not book.take_receipt(ReadReceipt("team", "ben", 7))
    assert not book.take_receipt(ReadReceipt("team", "eve", 20))
    assert not book.take_receipt(ReadReceipt("room", "ben", 20))
    book.take([row(2, peer_user_id="ben", peer_read_seq=4, muted=True, unread=3)])
    assert book.rows["team"].peer_read_seq == 9
    assert (book.total_unread, book.muted_unread) == (3, 3)
