"""LeaseKeeper: renews in time, says at once what is lost, never ends by an error of the store."""

import random
from dataclasses import dataclass, field

import pytest

from qim_streams.errors import Outcome, StoreUnavailable
from qim_streams.ownership.keeper import Claimant, LeaseKeeper
from qim_streams.ownership.ports import Grant, Holder
from qim_streams.testing.memory_tier import MemoryHotTier, MemoryLeaseStore

TTL_MS, RENEW_MS = 15_000, 3_000
RESOURCES = ("s:0", "s:1", "s:2", "s:3")


class MoodyStore(MemoryLeaseStore):
    """A lease store that can be out of reach."""

    down = False
    calls = 0

    def _mood(self) -> None:
        self.calls += 1
        if self.down:
            raise StoreUnavailable("down", Outcome.UNKNOWN)

    async def acquire(self, *args: object) -> Grant | Holder:
        self._mood()
        return await super().acquire(*args)  # type: ignore[arg-type]

    async def renew(self, *args: object) -> list[bool]:
        self._mood()
        return await super().renew(*args)  # type: ignore[arg-type]

    async def release(self, *args: object) -> None:
        self._mood()
        await super().release(*args)  # type: ignore[arg-type]


@dataclass
class World:
    """One server, one clock, and what keepers were told."""

    now_ms: int = 0
    granted: list[Grant] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tier = MemoryHotTier(lambda *_: 0, lambda: self.now_ms)
        self.store = MoodyStore(self.tier)

    def keeper(self, node: str = "a", boot: int = 1) -> LeaseKeeper:
        keeper = LeaseKeeper(
            self.store,
            Claimant(node, boot, f"{node}:1"),
            ttl_ms=TTL_MS,
            renew_ms=RENEW_MS,
            on_granted=self.granted.append,
            on_lost=self.lost.append,
            clock=lambda: self.now_ms / 1_000,
            rng=random.Random(1),
        )
        keeper.want(RESOURCES)
        return keeper


@pytest.fixture
def world() -> World:
    return World()


async def test_it_takes_what_is_wanted_and_keeps_it(world: World) -> None:
    keeper = world.keeper()
    for _ in range(20):
        await keeper.round()
        world.now_ms += RENEW_MS
    assert sorted(keeper.held) == sorted(RESOURCES)
    assert len(world.granted) == 4
    assert world.lost == []
    assert keeper.grant_of("s:1") == Grant("s:1", 1)
    assert keeper.grant_of("s:9") is None


async def test_it_holds_no_more_than_its_share(world: World) -> None:
    one, two = world.keeper("a"), world.keeper("b")
    one.hold_max = two.hold_max = 2
    await one.round()
    await two.round()
    assert sorted([*one.held, *two.held]) == sorted(RESOURCES)
    assert len(one.held) == 2


async def test_it_asks_the_store_no_more_often_than_needed(world: World) -> None:
    keeper = world.keeper()
    await keeper.round()
    calls = world.store.calls
    for _ in range(5):
        world.now_ms += 100
        await keeper.round()
    assert world.store.calls == calls


async def test_a_lease_that_somebody_else_has_is_lost_at_the_next_renewal(world: World) -> None:
    keeper, other = world.keeper("a"), world.keeper("b")
    await keeper.round()
    world.now_ms += TTL_MS + 1  # paused past the ttl
    await other.round()
    assert len(other.held) == 4
    await keeper.round()
    assert keeper.held == []
    assert sorted(world.lost) == sorted(RESOURCES)


async def test_without_a_store_a_lease_is_given_up_after_the_ttl(world: World) -> None:
    keeper = world.keeper()
    await keeper.round()
    world.store.down = True
    world.now_ms += TTL_MS - 1
    await keeper.round()
    assert len(keeper.held) == 4
    world.now_ms += 1
    await keeper.round()
    assert keeper.held == []
    world.store.down = False
    await keeper.round()
    assert [grant.epoch for grant in world.granted] == [1] * 4 + [2] * 4


async def test_the_ttl_counts_from_before_the_request(world: World) -> None:
    """A slow answer must not make the local view longer than the store's."""
    keeper = world.keeper()
    await keeper.round()
    slow = world.store.renew

    async def renew(*args: object) -> list[bool]:
        answer = await slow(*args)
        world.now_ms += 5_000
        return answer

    world.store.renew = renew  # type: ignore[method-assign]
    world.now_ms += RENEW_MS
    await keeper.round()
    world.store.down = True
    world.now_ms = RENEW_MS + TTL_MS
    await keeper.round()
    assert keeper.held == []


async def test_a_fenced_write_loses_the_lease_of_that_epoch_only(world: World) -> None:
    keeper = world.keeper()
    await keeper.round()
    keeper.lost("s:1", 0)
    assert "s:1" in keeper.held
    keeper.lost("s:1", 1)
    keeper.lost("s:1", 1)
    assert "s:1" not in keeper.held
    assert world.lost == ["s:1"]


async def test_giving_up_frees_at_once_and_is_no_loss(world: World) -> None:
    keeper, other = world.keeper("a"), world.keeper("b")
    await keeper.round()
    await keeper.give_up(["s:0", "s:9"])
    await other.round()
    assert other.held == ["s:0"]
    await keeper.close()
    await other.round()
    assert sorted(other.held) == sorted(RESOURCES)
    assert world.lost == []


async def test_giving_up_without_a_store_lets_the_leases_expire(world: World) -> None:
    keeper = world.keeper()
    await keeper.round()
    world.store.down = True
    await keeper.close()
    assert keeper.held == []


async def test_a_node_with_an_older_boot_waits(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.keeper("a", boot=5).round()
    old = world.keeper("a", boot=4)
    await old.round()
    assert old.held == []
    assert "was the state directory wiped" in caplog.text


async def test_a_restart_takes_back_what_the_boot_before_it_held(world: World) -> None:
    """A gateway that was killed: devices of the old boot are not online for a whole ttl more."""
    before, other = world.keeper("a", 1), world.keeper("b", 1)
    before.hold_max = other.hold_max = 1
    await other.round()
    await before.round()
    (mine,) = before.held
    for boot in range(2, 12):
        after = world.keeper("a", boot)
        after.hold_max = 1
        await after.round()
        assert after.held == [mine]
        grant = after.grant_of(mine)
        assert grant is not None
        assert grant.epoch == boot, "and the old boot's epoch is over"
