"""E4: where the push log does not tell, sessions go by W: nothing is missed, nothing comes twice."""

import asyncio
from collections.abc import Sequence

from qim_streams.errors import StoreUnavailable
from qim_streams.gateway.shard import SILENCE_S
from qim_streams.gateway.unpushed import UNPROMISED_S
from qim_streams.mailbox.ports import Stretch
from qim_streams.ownership.ports import Grant
from qim_streams.wire.frames import Ping, Pong
from tests.support.gateway_world import GatewayWorld, WireClient
from tests.support.waiting import eventually


async def nothing_comes(client: WireClient) -> bool:
    """Whether the next frame is the answer to a PING: what was pushed before it would come first."""
    return type(await client.call(Ping(client.next_rid()))) is Pong


async def test_a_frozen_push_log_is_gone_around() -> None:
    """What is committed meanwhile comes from the mailbox; what the log brings of it later is dropped."""
    async with GatewayWorld().running() as world, await WireClient.connect(world.url) as ben:
        await ben.sign_on("ben")
        await ben.go_online()
        await world.ready("ben")
        early = await world.deliver("ben")
        assert [one.mailbox_seq for one in await ben.pushed(1)] == [early]
        first, second = await world.commit("ben"), await world.commit("ben")
        await world.unpushed.look()
        assert await nothing_comes(ben), "while the log answers, pushes are waited for"
        assert world.counters.ready == 1
        world.reader.silent_s = SILENCE_S + 1
        await world.unpushed.look()
        assert [one.mailbox_seq for one in await ben.pushed(2)] == [first, second]
        assert (world.counters.ready, world.counters.watermark_fills) == (0, 1)
        for _ in range(3):
            await world.unpushed.look()
        assert (await nothing_comes(ben), world.counters.watermark_fills) == (True, 1)
        world.reader.silent_s = 0.0
        last = await world.commit("ben")
        await world.push("ben", first, second, last)
        assert [one.mailbox_seq for one in await ben.pushed(1)] == [last]
        assert await nothing_comes(ben)


async def test_a_w_that_moved_for_others_is_looked_at_once() -> None:
    """An empty stretch moves the position: it is not read again and again."""
    async with GatewayWorld().running() as world, await WireClient.connect(world.url) as ben:
        await ben.sign_on("ben")
        await ben.go_online()
        await world.ready("ben")
        stream = world.registry.sessions()[0].feed.stream  # type: ignore[union-attr]
        await world.store.write_and_advance(world.address("ben").shard, 1, [], -1, 70)
        world.reader.silent_s = SILENCE_S + 1
        await world.unpushed.look()
        assert (stream.position, world.counters.fills) == (70, 0)
        assert await nothing_comes(ben)


async def test_a_presence_that_nobody_answers() -> None:
    """The broker takes no presence, or the mailbox stage is away: after a while the session goes by W."""
    async with GatewayWorld().running() as world, await WireClient.connect(world.url) as ben:
        await ben.sign_on("ben")
        await ben.go_online()
        seq = await world.commit("ben")
        await world.unpushed.look()
        world.clock_s += UNPROMISED_S - 1
        await world.unpushed.look()
        assert await nothing_comes(ben)
        world.clock_s += 1
        await world.unpushed.look()
        assert [one.mailbox_seq for one in await ben.pushed(1)] == [seq]
        assert world.counters.unpushed_sessions == 1
        await world.ready("ben")
        later = await world.deliver("ben")
        assert [one.mailbox_seq for one in await ben.pushed(1)] == [later]
        await world.unpushed.look()
        assert world.counters.unpushed_sessions == 0


async def test_a_gateway_without_a_lease_and_devices_before_online() -> None:
    """No ConnectionShard: online devices go by W, one that still syncs is not pushed to."""
    async with (
        GatewayWorld().running(shard=None) as world,
        await WireClient.connect(world.url) as ben,
        await WireClient.connect(world.url) as ann,
    ):
        await ben.sign_on("ben")
        await ben.go_online()
        await ann.sign_on("ann")
        ours, hers = await world.commit("ben"), await world.commit("ann")
        await world.unpushed.look()
        assert [one.mailbox_seq for one in await ben.pushed(1)] == [ours]
        assert await nothing_comes(ann)
        await ann.go_online()
        await world.unpushed.look()
        assert [one.mailbox_seq for one in await ann.pushed(1)] == [hers]
        world.shard.granted(Grant("cs:1", 9))
        await eventually(lambda: world.shard.is_serving)


async def test_a_store_that_is_away_changes_nothing() -> None:
    """The task goes on, and the next look has what was missed."""
    async with GatewayWorld().running() as world, await WireClient.connect(world.url) as ben:
        await ben.sign_on("ben")
        await ben.go_online()
        seq = await world.commit("ben")
        world.reader.silent_s = SILENCE_S + 1
        answers = world.store.anything
        failures = 0

        async def away(_: object) -> list[bool]:
            nonlocal failures
            failures += 1
            raise StoreUnavailable("away")

        world.store.anything = away  # type: ignore[method-assign]
        task = asyncio.create_task(world.unpushed.run())
        await eventually(lambda: failures > 0)
        world.store.anything = answers  # type: ignore[method-assign]
        assert [one.mailbox_seq for one in await ben.pushed(1)] == [seq]
        task.cancel()


async def test_a_store_that_was_emptied_is_no_proof_of_emptiness() -> None:
    """P7: W was read, then everything was lost: the position stays where it was."""
    async with GatewayWorld().running() as world, await WireClient.connect(world.url) as ben:
        await ben.sign_on("ben")
        await ben.go_online()
        await world.commit("ben")
        world.reader.silent_s = SILENCE_S + 1
        stream = world.registry.sessions()[0].feed.stream  # type: ignore[union-attr]
        before, anything = stream.position, world.store.anything

        async def emptied(stretches: Sequence[Stretch]) -> list[bool]:
            world.store.restore({})
            return await anything(stretches)

        world.store.anything = emptied  # type: ignore[method-assign]
        await world.unpushed.look()
        assert stream.position == before
