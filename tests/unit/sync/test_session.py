"""Coverage of a session: any order of answers, no forged or early completion (T-X3, I8)."""

import random
import time
from itertools import pairwise

import pytest

from qim_streams.errors import ProtocolError, SyncVerdict
from qim_streams.sync.session import RANGES_MAX, SyncSession


def test_batches_in_order_move_the_cursor() -> None:
    """Each batch that continues the prefix gets a cursor of its own end."""
    session = SyncSession(10, 100, -1)
    assert [session.cover(a, b) for a, b in ((10, 40), (40, 70), (70, 100))] == [40, 70, 100]
    session.check_complete(100)
    assert session.complete() == 100


def test_a_gap_gets_no_cursor_until_it_is_closed() -> None:
    """Pipelined pulls answered out of order: the late one stands for all."""
    session = SyncSession(10, 100, -1)
    assert session.cover(40, 70) is None
    assert session.cover(70, 100) is None
    with pytest.raises(SyncVerdict, match="SYNC_INCOMPLETE"):
        session.check_complete(100)
    assert session.cover(10, 40) == 100
    session.check_complete(100)


def test_any_order_and_overlap() -> None:
    """I8: the prefix is the contiguous part, whatever the order; cursors only grow."""
    seed = time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(500):
        cuts = sorted({0, 60, *(rng.randrange(60) for _ in range(8))})
        ranges = list(pairwise(cuts))
        ranges += [tuple(sorted(rng.sample(range(61), 2))) for _ in range(3)]
        rng.shuffle(ranges)
        session, covered, last = SyncSession(0, 60, -1), {0}, 0
        for after, through in ranges:
            covered |= set(range(after + 1, through + 1))
            prefix = next(i for i in range(62) if i + 1 not in covered)
            issued = session.cover(after, through)
            assert issued == (prefix if prefix > last else None)
            last = max(last, issued or 0)
        session.check_complete(60)


def test_completion_early_or_forged_is_refused() -> None:
    """T-X3: SYNC_COMPLETE early, with a larger and with a smaller value."""
    session = SyncSession(0, 50, -1)
    session.cover(0, 30)
    for value in (50, 30, 49, 51, -1):
        with pytest.raises(SyncVerdict, match="SYNC_INCOMPLETE"):
            session.check_complete(value)
    session.cover(30, 50)
    with pytest.raises(SyncVerdict):
        session.check_complete(49)
    session.check_complete(50)


def test_bounds_of_pulls() -> None:
    """Up to sync_to_seq before ONLINE_READY, up to W afterwards; never backwards."""
    session = SyncSession(0, 50, -1)
    session.check_pull(0, 50, 80)
    session.check_pull(50, 50, 80)
    for after, up_to in ((0, 51), (30, 29), (0, 80)):
        with pytest.raises(ProtocolError, match="PULL_OUT_OF_RANGE"):
            session.check_pull(after, up_to, 80)
    session.cover(0, 50)
    session.complete()
    session.check_pull(50, 80, 80)
    with pytest.raises(ProtocolError, match="PULL_OUT_OF_RANGE"):
        session.check_pull(50, 81, 80)
    assert session.cover(50, 80) == 80


def test_an_empty_cursor_means_from_now() -> None:
    """SYNC_COMPLETE may follow at once; what comes later continues from sync_to_seq. Spec: §8."""
    session = SyncSession(None, 50, 20)
    session.check_complete(50)
    assert session.complete() == 50
    assert session.cover(20, 40) is None
    assert session.cover(50, 60) == 60


def test_a_new_device_may_take_what_the_mailbox_holds() -> None:
    """Pulling from the trim watermark gives cursors on the way, so that it can be resumed."""
    session = SyncSession(None, 50, 20)
    assert session.cover(20, 35) == 35
    session.check_complete(50)
    assert session.cover(35, 50) == 50
    assert session.complete() == 50


def test_pulling_elsewhere_first_keeps_from_now() -> None:
    """A range that does not start at the trim watermark does not move the start."""
    session = SyncSession(None, 50, 20)
    assert session.cover(30, 40) is None
    assert session.cover(20, 30) is None
    assert session.complete() == 50


def test_ranges_are_bounded() -> None:
    """A client that pulls only islands makes the session forget the far ones, nothing more."""
    session = SyncSession(0, 100_000, -1)
    for seq in range(10, 50_000, 10):
        assert session.cover(seq, seq + 1) is None
    assert len(session._ranges) == RANGES_MAX
    assert session.cover(0, 10) == 11


def test_nothing_yet() -> None:
    """A mailbox without entries: sync is complete from -1 to -1."""
    session = SyncSession(-1, -1, -1)
    session.check_complete(-1)
    assert session.complete() == -1
