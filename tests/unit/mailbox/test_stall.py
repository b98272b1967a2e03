"""A record that waits for too long: seen, told, and the shard given up. Spec: §13 (lane_stall_failover)."""

from pathlib import Path
from typing import Any

import pytest

from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.mailbox import metrics
from qim_streams.mailbox.given_up import GivenUp
from qim_streams.mailbox.stall import LaneStall
from tests.support.shard_world import SHARD, Died, ShardWorld, Worker


class Clock:
    def __init__(self, world: ShardWorld) -> None:
        self._world = world

    def __call__(self) -> float:
        return self._world.clock_s


NOW_MS = 1_000_000


@pytest.fixture
def given_up(tmp_path: Path) -> GivenUp:
    return GivenUp(tmp_path, 600.0, lambda: NOW_MS)


async def stuck(given_up: GivenUp) -> tuple[ShardWorld, Worker, LaneStall]:
    """A worker with a mailbox that refuses, since 0 s."""
    world = ShardWorld()
    world.store.refusing = {65}
    world.append_message([65], sender=1, inline=True)
    world.append_message([2], sender=1, inline=True)
    worker = Worker(world, 1)
    await worker.start()
    await worker.work(2)
    return world, worker, LaneStall(worker.leases, world.store, 120.0, given_up, monotonic=Clock(world))


def shown() -> float:
    return float(metrics.OLDEST.labels(str(SHARD))._value.get())


async def test_the_age_is_shown_and_too_much_of_it_costs_the_shard(
    caplog: pytest.LogCaptureFixture, given_up: GivenUp
) -> None:
    """Alarm, error, lease given up, exit: whoever takes the lease next need not wait for it to end."""
    world, worker, stall = await stuck(given_up)
    world.clock_s = 100.0
    await stall.look()
    assert shown() == 100.0
    before = metrics.ALARMS.labels("lane_stall")._value.get()
    world.clock_s = 120.0
    with pytest.raises(Died, match=r"lane stall: shard 0 waits for 120 s .* after offset -1, lanes \[1\]"):
        await stall.look()
    assert metrics.ALARMS.labels("lane_stall")._value.get() == before + 1
    assert "is given up" in caplog.text
    elsewhere = Worker(world, 2)
    await elsewhere.start()
    assert elsewhere.shard.epoch > worker.shard.epoch
    assert list(given_up.read()) == [SHARD]  # so that it does not come straight back


async def test_what_moves_is_no_stall(given_up: GivenUp) -> None:
    world, worker, stall = await stuck(given_up)
    world.store.refusing.clear()
    world.clock_s = 119.0
    await worker.drain()
    world.clock_s = 500.0
    await stall.look()
    assert shown() == 0.0


async def test_a_batch_that_cannot_be_done_counts_too(given_up: GivenUp) -> None:
    """Not only what is queued: a batch whose members cannot be read holds the shard as well."""
    world, worker, stall = await stuck(given_up)
    world.store.refusing.clear()
    world.clock_s = 10.0
    await worker.drain()
    world.faults.arm(0, "lost_request")
    world.append_message([2], sender=1, inline=True)
    with pytest.raises(StoreUnavailable):
        await worker.work(1)
    world.clock_s += 120.0
    with pytest.raises(Died, match="lane stall"):
        await stall.look()


async def test_a_store_that_is_away_is_no_stall(monkeypatch: pytest.MonkeyPatch, given_up: GivenUp) -> None:
    """Every worker has that one: moving the shard would help nobody."""
    world, _, stall = await stuck(given_up)

    async def away(*_: Any) -> Any:
        raise StoreUnavailable("away", Outcome.UNKNOWN)

    monkeypatch.setattr(world.store, "watermark", away)
    world.clock_s = 1_000.0
    await stall.look()
    assert shown() == 1_000.0


async def test_without_a_bound_it_is_only_shown(given_up: GivenUp) -> None:
    world, worker, _ = await stuck(given_up)
    world.clock_s = 10_000.0
    await LaneStall(worker.leases, world.store, 0.0, given_up, monotonic=Clock(world)).look()
    assert shown() == 10_000.0


async def test_a_note_that_cannot_be_written_stops_nothing(
    given_up: GivenUp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk: the shard is given up all the same."""

    def full(path: Path, data: bytes) -> None:
        raise OSError("no space")

    monkeypatch.setattr("qim_streams.mailbox.given_up.write_durably", full)
    world, _, stall = await stuck(given_up)
    world.clock_s = 120.0
    with pytest.raises(Died, match="lane stall"):
        await stall.look()
    assert "this cannot be noted: no space" in caplog.text
