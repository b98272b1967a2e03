"""Fair shares: what several writers hold together, and how they learn of each other."""

import pytest

from qim_streams.ownership.keeper import Claimant
from qim_streams.ownership.shares import SEATS, Seat, fair_share
from qim_streams.testing.memory_tier import MemoryHotTier, MemoryLeaseStore


@pytest.mark.parametrize(("resources", "workers"), [(8, 1), (8, 2), (8, 3), (6, 4), (64, 7), (64, 20)])
def test_shares_cover_everything_and_differ_by_one_at_most(resources: int, workers: int) -> None:
    """B7: with as many workers as resources or fewer nobody goes without (2, 2, 2 and none of six)."""
    shares = [fair_share(resources, workers, rank) for rank in range(workers)]
    assert sum(shares) == resources
    assert max(shares) - min(shares) <= 1
    assert min(shares) >= 1


def test_who_is_one_too_many_may_hold_what_becomes_free() -> None:
    assert [fair_share(2, 5, rank) for rank in range(5)] == [1] * 5
    assert fair_share(8, 0, 0) == 8


async def test_workers_count_each_other() -> None:
    now = 0
    store = MemoryLeaseStore(MemoryHotTier(lambda *_: 0, lambda: now))
    seats = [Seat(store, Claimant(f"w{n}", 1, f"w{n}:1"), "writers", 15_000) for n in range(3)]
    assert [await seat.living() for seat in seats] == [(1, 0), (2, 1), (3, 2)]
    assert [await seat.living() for seat in seats] == [(3, 0), (3, 1), (3, 2)]
    await seats[0].leave()
    assert await seats[1].living() == (2, 0)
    now = 14_999
    assert await seats[2].living() == (2, 1)
    now = 15_001  # the second one said nothing for a ttl
    assert await seats[2].living() == (1, 0)
    assert await seats[1].living() == (2, 0)


async def test_a_restart_sits_down_in_its_old_seat() -> None:
    store = MemoryLeaseStore(MemoryHotTier(lambda *_: 0))
    await Seat(store, Claimant("w", 1, "w:1"), "writers", 15_000).living()
    assert await Seat(store, Claimant("w", 2, "w:1"), "writers", 15_000).living() == (1, 0)


async def test_more_workers_than_seats_still_work() -> None:
    store = MemoryLeaseStore(MemoryHotTier(lambda *_: 0))
    for number in range(SEATS):
        await Seat(store, Claimant(f"w{number}", 1, "a:1"), "writers", 15_000).living()
    assert await Seat(store, Claimant("late", 1, "a:1"), "writers", 15_000).living() == (SEATS + 1, 0)
