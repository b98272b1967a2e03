"""Fair shares: what several writers hold together, and how they learn of each other."""

import pytest

from qim_streams.ownership.keeper import Claimant
from qim_streams.ownership.shares import SEATS, Seat, fair_share
from qim_streams.testing.memory_tier import MemoryHotTier, MemoryLeaseStore


@pytest.mark.parametrize(("resources", "workers"), [(8, 1), (8, 2), (8, 3), (1, 5), (64, 7), (8, 0)])
def test_shares_cover_everything_and_are_no_larger_than_needed(resources: int, workers: int) -> None:
    share = fair_share(resources, workers)
    assert share * max(1, workers) >= resources
    assert (share - 1) * max(1, workers) < resources


async def test_workers_count_each_other() -> None:
    now = 0
    store = MemoryLeaseStore(MemoryHotTier(lambda *_: 0, lambda: now))
    seats = [Seat(store, Claimant(f"w{n}", 1, f"w{n}:1"), "writers", 15_000) for n in range(3)]
    assert [await seat.living() for seat in seats] == [1, 2, 3]
    assert [await seat.living() for seat in seats] == [3, 3, 3]
    await seats[0].leave()
    assert await seats[1].living() == 2
    now = 14_999
    assert await seats[2].living() == 2
    now = 15_001  # the second one said nothing for a ttl
    assert await seats[2].living() == 1
    assert await seats[1].living() == 2


async def test_a_restart_sits_down_in_its_old_seat() -> None:
    store = MemoryLeaseStore(MemoryHotTier(lambda *_: 0))
    await Seat(store, Claimant("w", 1, "w:1"), "writers", 15_000).living()
    assert await Seat(store, Claimant("w", 2, "w:1"), "writers", 15_000).living() == 1


async def test_more_workers_than_seats_still_work() -> None:
    store = MemoryLeaseStore(MemoryHotTier(lambda *_: 0))
    for number in range(SEATS):
        await Seat(store, Claimant(f"w{number}", 1, "a:1"), "writers", 15_000).living()
    assert await Seat(store, Claimant("late", 1, "a:1"), "writers", 15_000).living() == SEATS + 1
