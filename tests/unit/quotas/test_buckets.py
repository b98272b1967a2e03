"""Fan-out quotas: one writer, several writers over one shared bucket, and a store that is away."""

import asyncio
import random
import time
from collections.abc import Sequence

import pytest

from qim_streams.errors import StoreUnavailable
from qim_streams.quotas.buckets import REPORT_SHARE, Report, Standing, TenantQuotas
from qim_streams.quotas.service import EVERY_S, QuotaKeeper


class SharedBuckets:
    """`SharedQuotas` in memory, by the clock of the test. `rates`: of tenants with one of their own."""

    def __init__(self, now_ms: list[int]) -> None:
        self._now_ms = now_ms
        self.rows: dict[str, tuple[float, int]] = {}
        self.rates: dict[str, float] = {}
        self.away = False
        self.calls = 0

    async def charge(self, reports: Sequence[Report], per_s: float, burst_s: float) -> list[Standing]:
        """See the port."""
        if self.away:
            raise StoreUnavailable("away")
        self.calls += len(reports)
        return [self._charge(one, self.rates.get(one.tenant_id, per_s), burst_s) for one in reports]

    def _charge(self, report: Report, per_s: float, burst_s: float) -> Standing:
        now, burst = self._now_ms[0], per_s * burst_s
        level, at = self.rows.get(report.tenant_id, (burst, now))
        level = min(burst, level + (now - at) * per_s / 1_000) - report.charged
        self.rows[report.tenant_id] = level, now
        return Standing(level, per_s)


class Writers:
    """Several writers and what they share. Time moves in steps of a keeper's pass."""

    def __init__(self, count: int, per_s: float, burst_s: float = 1.0) -> None:
        self.now = [1_000_000]
        self.shared = SharedBuckets(self.now)
        self.quotas = [TenantQuotas(per_s, burst_s) for _ in range(count)]
        self.keepers = [QuotaKeeper(one, self.shared, lambda: self.now[0]) for one in self.quotas]

    def send(self, writer: int, tenant: str, recipients: int) -> bool:
        """Whether the message went."""
        return not self.quotas[writer].bucket(tenant, self.now[0]).take(recipients, self.now[0])

    async def step(self) -> None:
        """A fifth of a second goes by."""
        self.now[0] += int(EVERY_S * 1_000)
        for keeper in self.keepers:
            await keeper.report()


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_all_writers_together_keep_the_quota(count: int) -> None:
    """Over a minute at ten times the quota, whatever the writers' shares of the traffic."""
    seed = time.time_ns() % 2**32
    print(f"seed {seed}")
    rng, world, per_s, sent = random.Random(seed), Writers(count, 10_000), 10_000, 0
    weights = [rng.random() + 0.01 for _ in range(count)]
    steps = 300
    for _ in range(steps):
        for _ in range(200):
            recipients = rng.choice((2, 10, 300))
            (writer,) = rng.choices(range(count), weights)
            sent += recipients if world.send(writer, "a", recipients) else 0
        await world.step()
    seconds = steps * EVERY_S
    untold = count * (per_s / REPORT_SHARE + per_s * EVERY_S + 300)
    assert sent <= per_s * seconds + per_s + untold
    assert sent >= 0.9 * per_s * seconds, "what is allowed is let through"


async def test_a_quiet_tenant_is_not_reported_all_the_time() -> None:
    world = Writers(1, 1_000_000)
    for _ in range(250):  # fifty seconds
        world.send(0, "a", 2)
        await world.step()
    assert world.shared.calls <= 11


async def test_another_tenant_is_not_touched() -> None:
    """§13: the storm of one tenant is its own."""
    world = Writers(2, 1_000)
    for _ in range(50):
        for _ in range(100):
            world.send(0, "a", 100)
        assert world.send(0, "b", 2)
        assert world.send(1, "b", 2)
        await world.step()
    world.send(1, "a", 1)
    world.send(0, "a", 1)
    await world.step()
    more = sum(world.send(1, "a", 1) for _ in range(1_000))
    assert more <= 2 * 1_000 * EVERY_S, "the other writer knows of it once it has asked"


async def test_a_tenant_of_its_own_rate_and_back() -> None:
    world = Writers(1, 1_000)
    world.shared.rates["a"] = 100_000
    assert world.send(0, "a", 1_500)
    assert not world.send(0, "a", 1)
    await world.step()
    assert world.send(0, "a", 50_000)
    world.shared.rates["a"] = 0  # no bound
    await world.step()
    assert all(world.send(0, "a", 10**6) for _ in range(100))
    del world.shared.rates["a"]
    for _ in range(26):
        world.send(0, "a", 1)
        await world.step()
    assert sum(world.send(0, "a", 100) for _ in range(100)) <= 12


async def test_a_store_that_is_away_leaves_each_writer_its_own() -> None:
    """E: sends go on, the copies bound them, and what was charged meanwhile is told afterwards."""
    world = Writers(1, 1_000)
    world.shared.away = True
    sent = 0
    for _ in range(50):
        sent += sum(100 for _ in range(50) if world.send(0, "a", 100))
        await world.step()
    assert 9_000 <= sent <= 12_000
    world.shared.away = False
    await world.step()
    assert world.shared.rows["a"][0] < 1_000, "at most a burst of it"


def test_a_clock_that_went_back_adds_nothing() -> None:
    bucket = TenantQuotas(1_000, 1.0).bucket("a", 1_000_000)
    assert not bucket.take(2_000, 1_000_000)
    assert bucket.take(1, 0)
    assert bucket.take(1, 500)
    assert not bucket.take(1, 1_100)


def test_memory_is_bounded() -> None:
    """P16."""
    quotas = TenantQuotas(1_000, 1.0, tenants_max=10)
    for number in range(1_000):
        quotas.bucket(f"t{number}", 0).take(1, 0)
    assert len(quotas) == 10
    assert len(quotas.due(10_000, 7)) == 7
    assert len(quotas.due(10_000, 7)) == 3


def test_refusals_are_told_once_the_most_refused_first() -> None:
    quotas = TenantQuotas(1, 1.0)
    for tenant, tries in (("a", 3), ("b", 9), ("c", 1)):
        for _ in range(tries):
            quotas.bucket(tenant, 0).take(5, 0)
    assert quotas.take_refused() == [("b", 8), ("a", 2)]
    assert quotas.take_refused() == []


async def test_the_keeper_runs_for_ever() -> None:
    world, sleeps = Writers(1, 1_000), 0

    async def sleep(seconds: float) -> None:
        nonlocal sleeps
        sleeps += 1
        world.now[0] += int(seconds * 1_000)
        world.send(0, "a", 1_000)
        await asyncio.sleep(0)
        if sleeps == 60:
            raise asyncio.CancelledError

    keeper = QuotaKeeper(world.quotas[0], world.shared, lambda: world.now[0], sleep)
    with pytest.raises(asyncio.CancelledError):
        await keeper.run()
    assert world.shared.calls > 10
