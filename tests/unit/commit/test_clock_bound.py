"""The durable bound of the clock: no id at or above what was stored, none below after a restart (P5)."""

import asyncio
from pathlib import Path

import pytest

from qim_streams.commit.clock_bound import REFILL_MS, RESERVE_MS, FileClockBound, ReservedClock
from qim_streams.errors import ConfigError
from qim_streams.hlc import ClockDriftError, encode, millis_of

NOW = 1_700_000_000_000


class Wall:
    """A wall clock in hand."""

    now_ms = NOW

    def __call__(self) -> int:
        return self.now_ms


async def test_ids_stay_below_what_is_on_disk(tmp_path: Path) -> None:
    wall, bound = Wall(), FileClockBound(tmp_path / "clock" / "bound")
    clock = ReservedClock(bound, 1, wall)
    last = b""
    for _ in range(50):
        wall.now_ms += 700
        for fresh in await clock.ids(20):
            assert fresh > last
            assert millis_of(fresh) < bound.load() <= wall.now_ms + RESERVE_MS
            last = fresh
        await asyncio.sleep(0)


async def test_after_a_crash_ids_go_on_above_although_the_clock_went_back(tmp_path: Path) -> None:
    wall, bound = Wall(), FileClockBound(tmp_path / "bound")
    before = await ReservedClock(bound, 2, wall).ids(10)
    wall.now_ms -= 3_600_000
    after = await ReservedClock(bound, 1, wall).ids(10)
    assert after[0] > before[-1]
    assert millis_of(after[0]) == NOW + RESERVE_MS


async def test_after_a_clean_stop_the_clock_is_near_the_wall(tmp_path: Path) -> None:
    wall, bound = Wall(), FileClockBound(tmp_path / "bound")
    clock = ReservedClock(bound, 1, wall)
    (last,) = await clock.ids(1)
    await clock.close()
    assert bound.load() == NOW + 1
    (following,) = await ReservedClock(bound, 0, wall).ids(1)
    assert last < following
    assert millis_of(following) == NOW + 1


async def test_the_bound_moves_in_the_background_in_good_time(tmp_path: Path) -> None:
    wall, bound = Wall(), FileClockBound(tmp_path / "bound")
    clock = ReservedClock(bound, 1, wall)
    await clock.ids(1)
    wall.now_ms += RESERVE_MS - REFILL_MS + 1
    await clock.ids(1)
    await clock.close()  # waits for what is under way
    assert bound.load() == wall.now_ms + 1


async def test_a_disk_that_fails_stops_ids_only_when_none_are_left(tmp_path: Path) -> None:
    wall = Wall()

    class Failing(FileClockBound):
        broken = False

        def store(self, bound_ms: int) -> None:
            if self.broken:
                raise OSError("disk full")
            super().store(bound_ms)

    bound = Failing(tmp_path / "bound")
    clock = ReservedClock(bound, 1, wall)
    await clock.ids(1)
    bound.broken = True
    wall.now_ms += RESERVE_MS - 100
    assert await clock.ids(1)
    wall.now_ms += 200
    with pytest.raises(OSError, match="disk full"):
        await clock.ids(1)
    bound.broken = False
    assert await clock.ids(1)


async def test_two_lanes_at_once_get_different_ids(tmp_path: Path) -> None:
    clock = ReservedClock(FileClockBound(tmp_path / "bound"), 1, Wall())
    batches = await asyncio.gather(*(clock.ids(100) for _ in range(20)))
    assert len({one for batch in batches for one in batch}) == 2_000


async def test_observing_moves_on_and_refuses_the_far_future(tmp_path: Path) -> None:
    clock = ReservedClock(FileClockBound(tmp_path / "bound"), 1, Wall())
    remote = encode(NOW + 60_000, 9, 2**64 - 1)
    clock.observe(remote)
    (fresh,) = await clock.ids(1)
    assert fresh > remote
    with pytest.raises(ClockDriftError):
        clock.observe(b"\xff" * 16)


def test_a_damaged_file_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "bound").write_text("soon")
    with pytest.raises(ConfigError, match="milliseconds"):
        FileClockBound(tmp_path / "bound").load()
    assert FileClockBound(tmp_path / "none").load() == 0
