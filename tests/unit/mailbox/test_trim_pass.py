"""MailboxTrimmer: rounds, rests, errors that cost a round, and an end when nobody would trim (P16)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

import pytest

from qim_streams.errors import FencedError, InvariantViolation, StoreError, StoreUnavailable
from qim_streams.mailbox.memory_store import MemoryMailboxStore
from qim_streams.mailbox.ports import EntryGroup
from qim_streams.mailbox.shards import Shard
from qim_streams.mailbox.trim_pass import (
    MAILBOXES_MAX,
    NOTES,
    REST,
    REST_S_MAX,
    REST_S_MIN,
    ROUND_S_MAX,
    MailboxTrimmer,
)
from qim_streams.mailbox.trim_ports import TrimStep
from tests.support.waiting import eventually

RETENTION_MS = NOTES * 10_000  # a note every ten seconds
EPOCH = 4


class Died(Exception):
    """`die` was called."""


def die(why: str) -> NoReturn:
    raise Died(why)


class World:
    """Two shards with mailboxes, a clock, and a trimmer that rests without waiting."""

    def __init__(self) -> None:
        self.store = MemoryMailboxStore()
        self.served: dict[int, Shard] = {}
        self.now_ms, self.monotonic_s = 1_000_000, 0.0
        self.rests: list[float] = []
        self.step_s = 0.001
        self.on_step: Callable[[int], Awaitable[None]] | None = None
        self.steps: list[tuple[int, TrimStep]] = []
        for shard in (2, 5):
            self.store.grant(shard, EPOCH)
            self.served[shard] = Shard(shard, EPOCH, -1, -1, -1, -1)
        self.trimmer = MailboxTrimmer(
            self.served,
            self,
            retention_ms=RETENTION_MS,
            now_ms=lambda: self.now_ms,
            die=die,
            sleep=self.sleep,
            monotonic=lambda: self.monotonic_s,
        )

    async def sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        await asyncio.sleep(0)

    async def aged(
        self, shard: int, epoch: int, now_ms: int, covered: int, retention_ms: int, note_ms: int
    ) -> int:
        return await self.store.aged(shard, epoch, now_ms, covered, retention_ms, note_ms)

    async def trim_aged(
        self, shard: int, epoch: int, up_to_seq: int, mailboxes_max: int, entries_max: int
    ) -> TrimStep:
        if self.on_step is not None:
            await self.on_step(shard)
        step = await self.store.trim_aged(shard, epoch, up_to_seq, mailboxes_max, entries_max)
        self.monotonic_s += self.step_s
        self.steps.append((shard, step))
        return step

    async def write(self, shard: int, mailboxes: int) -> None:
        """The next entry of so many mailboxes."""
        state = self.served[shard]
        group = EntryGroup("acme", state.coverage + 1, 0, b"v", range(mailboxes))
        await self.store.write_and_advance(shard, EPOCH, [group], state.coverage, state.coverage + 1)
        state.coverage += 1

    async def held(self, shard: int, mailboxes: int) -> int:
        """How many entries are left."""
        return sum([len(await self.store.read(shard, "acme", n, -1, 10**6, 100)) for n in range(mailboxes)])


@pytest.fixture
def world() -> World:
    return World()


async def old_and_new(world: World, mailboxes: int) -> None:
    """Three old entries and a new one per mailbox, in both shards."""
    for shard in world.served:
        for _ in range(3):
            await world.write(shard, mailboxes)
    assert await world.trimmer.round() == 0  # notes that W stands there
    world.now_ms += RETENTION_MS
    for shard in world.served:
        await world.write(shard, mailboxes)


async def test_a_round_trims_every_shard_and_rests_after_each_step(world: World) -> None:
    mailboxes = MAILBOXES_MAX + 10
    await old_and_new(world, mailboxes)
    world.rests.clear()
    assert await world.trimmer.round() == 2 * 3 * mailboxes
    assert [await world.held(shard, mailboxes) for shard in (2, 5)] == [mailboxes, mailboxes]
    assert [shard for shard, _ in world.steps] == [2, 2, 5, 5]
    assert world.rests == [pytest.approx(REST * world.step_s)] * 4
    assert await world.trimmer.round() == 0


@pytest.mark.parametrize(("step_s", "rest_s"), [(0.0, REST_S_MIN), (1.0, REST_S_MAX)])
async def test_rests_are_bounded(world: World, step_s: float, rest_s: float) -> None:
    """A store that answers at once is not asked without a pause; a stuck one does not stop the pass."""
    await old_and_new(world, 2)
    world.step_s = step_s
    world.rests.clear()
    await world.trimmer.round()
    assert world.rests == [rest_s] * 2


@pytest.mark.parametrize(
    "error",
    [FencedError("s:2", EPOCH, 9), StoreUnavailable("away"), StoreError("WRONGTYPE")],
    ids=["fenced", "away", "refused"],
)
async def test_an_error_costs_the_shard_a_round(world: World, error: Exception) -> None:
    await old_and_new(world, 3)

    async def fail(shard: int) -> None:
        if shard == 2:
            raise error

    world.on_step = fail
    assert await world.trimmer.round() == 9
    world.on_step = None
    assert await world.trimmer.round() == 9


async def test_a_shard_that_is_given_up_is_left_at_once(world: World) -> None:
    await old_and_new(world, MAILBOXES_MAX * 3)

    async def give_up(shard: int) -> None:
        world.served.pop(shard, None)

    world.on_step = give_up
    assert await world.trimmer.round() == 2 * 3 * MAILBOXES_MAX  # one step of each
    assert await world.trimmer.round() == 0


async def test_the_task_runs_rounds_until_it_is_closed(world: World) -> None:
    await old_and_new(world, 3)
    world.rests.clear()
    world.trimmer.start()
    await eventually(lambda: world.rests.count(10.0) >= 3, what="rounds, a note's time apart")
    await world.trimmer.close()
    await world.trimmer.close()
    assert [await world.held(shard, 3) for shard in (2, 5)] == [3, 3]
    assert min(10.0, ROUND_S_MAX) == 10.0


async def test_an_unforeseen_error_ends_the_worker(world: World) -> None:
    """Rather than a store that fills because a background task died unseen."""
    await old_and_new(world, 3)

    async def break_(_: int) -> None:
        raise InvariantViolation("cannot be")

    world.on_step = break_
    world.trimmer.start()
    task = world.trimmer._task
    assert task is not None
    with pytest.raises(Died, match="trimming failed: InvariantViolation"):
        await task


async def test_no_retention_no_task() -> None:
    store = MemoryMailboxStore()
    trimmer = MailboxTrimmer({}, store, retention_ms=0, now_ms=lambda: 0, die=die)
    trimmer.start()
    assert trimmer._task is None
    await trimmer.close()
