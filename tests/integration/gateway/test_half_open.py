"""Clients whose link goes dark without a reset: what they hold is freed, what came for them waits.

T-N3, G8.
"""

import asyncio

from qim_streams.wire.frames import OnlineReady
from tests.support.frame_proxy import FrameProxy
from tests.support.gateway_world import GatewayWorld, WireClient
from tests.support.waiting import eventually

DARK = 30
IDLE_MS = 1_500


async def test_a_link_without_an_end_is_ended_by_the_gateway() -> None:
    """T-N3: nothing comes and nothing is refused: after idle_timeout_ms the slot is free, presence is gone;
    the next connection pulls what came meanwhile."""
    world = GatewayWorld(idle_timeout_ms=IDLE_MS, ping_interval_ms=200)
    async with world.running(), FrameProxy(world.url) as proxy:
        cursor = world.signer.issue(world.address("ben"), 1, -1)
        async with await WireClient.connect(proxy.url) as phone:
            await phone.sign_on("ben", cursor)
            await phone.go_online()
            await world.ready("ben")
            assert len(world.registry) == 1
            proxy.blackhole(True)
            seq = await world.deliver("ben")
            await eventually(lambda: not world.server.sockets, 30, "the gateway to give the socket up")
            assert len(world.registry) == 0
            assert world.counters.sockets == 0
            await eventually(lambda: world.announced()[-1] == ("ben", None), 30, "the presence to go")
            proxy.blackhole(False)
        async with await WireClient.connect(world.url) as phone:
            auth = await phone.sign_on("ben", cursor)
            batch = await phone.pull(-1, auth.sync_to_seq)
            assert [event.mailbox_seq for event in batch.entries] == [seq]
            assert type(await phone.go_online()) is OnlineReady


async def test_many_who_never_answer_hold_nobody_up() -> None:
    """G8: pushes wait for no acknowledgement: beside thirty dark clients another gets all of his, and what
    the dark ones are owed is bounded by their queues."""
    world = GatewayWorld()
    async with world.running(), FrameProxy(world.url) as proxy:
        names = [f"dark{number}" for number in range(DARK)]
        dark = await asyncio.gather(*(WireClient.connect(proxy.url) for _ in names))
        for client, name in zip(dark, names, strict=True):
            await client.sign_on(name)
            await client.go_online()
            await world.ready(name)
        async with await WireClient.connect(world.url) as ben:
            await ben.sign_on("ben")
            await ben.go_online()
            await world.ready("ben")
            proxy.blackhole(True)
            seqs = []
            for _ in range(20):
                for name in names:
                    await world.deliver(name, b"x" * 2_000)
                seqs.append(await world.deliver("ben"))
            assert [event.mailbox_seq for event in await ben.pushed(20)] == seqs
            bound = world.settings.outbound_queue_bytes_max
            assert all(one.outbound.size <= bound for one in world.registry.sessions())
        proxy.blackhole(False)
        await asyncio.gather(*(client.close() for client in dark))
