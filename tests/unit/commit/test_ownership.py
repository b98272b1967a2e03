"""PartitionOwnership: fair shares between writers, drained before they are released, lost when fenced."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from qim_streams.commit import ownership as ownership_module
from qim_streams.commit.outcome import SendStatus
from qim_streams.commit.ownership import PartitionOwnership
from qim_streams.commit.ports import OutboxAppend
from qim_streams.errors import InvariantViolation
from qim_streams.ownership.keeper import Claimant
from qim_streams.placement import outbox_partition
from qim_streams.testing.memory_tier import MemoryHotTier, MemoryLeaseStore
from qim_streams.testing.memory_writer import WriterRig
from tests.support.waiting import eventually

PARTITIONS = 6


class World:
    """One server and one log for several writers."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.tier = MemoryHotTier(lambda t, c: outbox_partition(t, c, PARTITIONS), lambda: self.now_ms)
        self.log: list[OutboxAppend] = []

    @asynccontextmanager
    async def writer(
        self, name: str, boot: int = 1, prepare: Callable[[WriterRig], object] = lambda _: None
    ) -> AsyncIterator[tuple[WriterRig, PartitionOwnership]]:
        rig = WriterRig(self.tier, self.log, node=name, boot=boot)
        prepare(rig)
        ownership = PartitionOwnership(
            MemoryLeaseStore(self.tier),
            Claimant(name, boot, f"{name}:1"),
            PARTITIONS,
            ttl_ms=15_000,
            renew_ms=60,
            settle=rig.changes.settle_all,
            prove=rig.proof.prove,
        )
        rig.writer._on_fenced = ownership.fenced
        running = asyncio.create_task(ownership.run(rig.writer))
        try:
            yield rig, ownership
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await ownership.close(rig.writer, 1)


@pytest.fixture
def world() -> World:
    return World()


async def test_one_writer_serves_everything_and_a_second_gets_half(world: World) -> None:
    async with world.writer("a") as (one, _):
        await eventually(lambda: len(one.writer.ready) == PARTITIONS)
        async with world.writer("b") as (two, _):
            await eventually(lambda: len(one.writer.ready) == len(two.writer.ready) == 3)
            assert sorted(one.writer.ready + two.writer.ready) == list(range(PARTITIONS))
            request = await one.direct("ann", "bob", "m1")
            outcomes = [await rig.writer.send(request) for rig in (one, two)]
            assert sorted(outcome.status for outcome in outcomes) == [
                SendStatus.COMMITTED,
                SendStatus.NOT_OWNER,
            ]
        await eventually(lambda: len(one.writer.ready) == PARTITIONS, what="a clean stop frees at once")
    assert [holder for holder in await one.leases.holders([f"ob:{n}" for n in range(6)]) if holder] == []


async def test_a_writer_too_many_stands_by_and_is_next_in_line(world: World) -> None:
    """B7: seven for six partitions: one gets none and says so; who waits for its share does not."""
    async with AsyncExitStack() as all_of_them:
        writers = []
        for name in "abcdefg":
            leaving = await all_of_them.enter_async_context(AsyncExitStack())
            rig, own = await leaving.enter_async_context(world.writer(name))
            writers.append((rig.writer, own, leaving))
            if len(writers) <= PARTITIONS:
                await eventually(lambda: all(writer.ready for writer, _, _ in writers))
                assert not any(own.stands_by for _, own, _ in writers)
        await eventually(
            lambda: [own.stands_by for _, own, _ in writers] == [not w.ready for w, _, _ in writers]
        )
        [spare] = [writer for writer, own, _ in writers if own.stands_by]
        await next(leaving for writer, _, leaving in writers if writer is not spare).aclose()
        await eventually(lambda: spare.ready)
        assert not any(own.stands_by for writer, own, _ in writers if writer.ready)


async def test_a_fenced_partition_is_dropped_and_taken_again_when_free(world: World) -> None:
    async with world.writer("a") as (rig, ownership):
        await eventually(lambda: len(rig.writer.ready) == PARTITIONS)
        world.tier.epochs["ob:0"] += 1
        del world.tier.leases["ob:0"]
        chat = next(f"c{n}" for n in range(99) if world.tier.partition_of("t", f"c{n}") == 0)
        refused = await rig.writer.send(await rig.request(chat, "ann", "m1"))
        assert refused.status is SendStatus.NOT_OWNER
        await eventually(lambda: len(rig.writer.ready) == PARTITIONS, what="granted anew")
        grant = ownership.keeper.grant_of("ob:0")
        assert grant is not None
        assert grant.epoch == 3


async def test_a_restart_takes_its_partitions_back_at_once(world: World) -> None:
    """P15: no waiting for a ttl."""
    async with world.writer("a") as (one, _):
        await eventually(lambda: len(one.writer.ready) == PARTITIONS)
        one.kill()
        async with world.writer("a", boot=2) as (two, _):
            await eventually(lambda: len(two.writer.ready) == PARTITIONS)
            request = await two.direct("ann", "bob", "m1")
            assert (await two.writer.send(request)).status is SendStatus.COMMITTED


@pytest.mark.parametrize("step", ["repair.run", "replay.run", "relay.drain"])
async def test_nothing_touches_members_before_a_partition_has_recovered(world: World, step: str) -> None:
    """T-R2: a change on top of what the store forgot would take the version of one that the log has, and
    rows written from it would hide the newer ones from the replay. Whichever step recovery hangs in."""
    recovering, reached, settled = asyncio.Event(), set[int](), list[int]()

    def hold_back(rig: WriterRig) -> None:
        name, method = step.split(".")
        service = getattr(rig.writer._services, name)
        recover = getattr(service, method)

        async def held(partition: int, *more: Any) -> object:
            reached.add(partition)
            await recovering.wait()
            return await recover(partition, *more)

        async def settle(partition: int, _: int) -> int:
            settled.append(partition)
            return 0

        setattr(service, method, held)
        rig.changes.settle_all = settle  # type: ignore[method-assign]

    chats = [f"c{number}" for number in range(50)]
    async with world.writer("a", prepare=hold_back) as (rig, ownership):
        await eventually(lambda: len(ownership.keeper.held) == len(reached) == PARTITIONS)
        for _ in range(100):
            await asyncio.sleep(0)  # every task that wants to has its turn
        assert settled == []
        assert [rig.writer.epoch_of("t", chat) for chat in chats] == [None] * len(chats)
        recovering.set()
        await eventually(lambda: sorted(settled) == list(range(PARTITIONS)))
        assert None not in [rig.writer.epoch_of("t", chat) for chat in chats]


async def test_the_grant_before_does_not_count_as_recovered(world: World) -> None:
    """T-R2: a lane that served under an older epoch says nothing about the store as it is now."""
    async with world.writer("a") as (rig, ownership):
        await eventually(lambda: len(rig.writer.ready) == PARTITIONS)
        grant = ownership.keeper.grant_of("ob:3")
        assert grant is not None
        assert rig.writer.serves(3, grant.epoch)
        assert not rig.writer.serves(3, grant.epoch + 1)


async def test_a_store_that_fell_back_is_noticed_while_nobody_sends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T-R2, D4: proofs are numbered calls, and the store has lost one that it acknowledged."""
    monkeypatch.setattr(ownership_module, "PROVE_EVERY_S", 0.01)
    rig = WriterRig(world.tier, world.log, node="a")
    ownership = PartitionOwnership(
        MemoryLeaseStore(world.tier),
        Claimant("a", 1, "a:1"),
        PARTITIONS,
        ttl_ms=15_000,
        renew_ms=60,
        settle=rig.changes.settle_all,
        prove=rig.proof.prove,
    )
    running = asyncio.create_task(ownership.run(rig.writer))
    await eventually(lambda: len(rig.writer.ready) == PARTITIONS, 10)
    remembered = world.tier.remember()
    numbers = world.tier.partition(0).call
    await eventually(lambda: world.tier.partition(0).call != numbers, 10, "a proof")
    world.tier.roll_back(remembered)
    with pytest.raises(InvariantViolation):
        await asyncio.wait_for(running, 10)
    rig.kill()
