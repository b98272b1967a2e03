"""The bus between gateways on a real Redis: a channel per user, lost connections, bounds. Spec: §9."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from qim_streams.gateway.redis_signals import RedisSignals
from qim_streams.redis_tier import RedisClient
from qim_streams.sessions.ports import SessionUser
from tests.support.waiting import eventually

ANN, BEN = SessionUser("acme", "ann", 65), SessionUser("acme", "ben", 129)


class Ear:
    """A listener that keeps what it got."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, bytes]] = []

    def __call__(self, but_device: str, data: bytes) -> None:
        self.heard.append((but_device, data))


@pytest.fixture
async def buses(hot_client: RedisClient) -> AsyncIterator[list[RedisSignals]]:
    """Two gateways."""
    made = [RedisSignals(hot_client) for _ in range(2)]
    tasks = [asyncio.create_task(bus.run()) for bus in made]
    yield made
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def subscribed(client: RedisClient, user: SessionUser, gateways: int) -> None:
    """Wait until so many gateways listen to a user."""
    channel = f"{{q:acme:{user.ordinal & 63}}}:sig:{user.ordinal}"

    async def listening() -> bool:
        counts = dict(await client.pubsub_numsub(channel))
        return counts[channel.encode()] == gateways

    await eventually(listening, what=f"{gateways} gateways of {user.user_id}")


async def test_every_gateway_with_the_user_hears(hot_client: RedisClient, buses: list[RedisSignals]) -> None:
    """Each listener once, in order, with the device that is left out; nobody else's."""
    here, there, other = Ear(), Ear(), Ear()
    buses[0].listen(ANN, here)
    buses[1].listen(ANN, there)
    buses[1].listen(BEN, other)
    await subscribed(hot_client, ANN, 2)
    await subscribed(hot_client, BEN, 1)
    for number in range(600):
        buses[0].tell(ANN, "phone", b"%d\0x" % number)
    expected = [("phone", b"%d\0x" % number) for number in range(600)]
    await eventually(lambda: len(there.heard) == 600, what="all signals")
    await eventually(lambda: len(here.heard) == 600, what="all signals here")
    assert (here.heard, there.heard, other.heard) == (expected, expected, [])


async def test_the_last_listener_ends_the_subscription(
    hot_client: RedisClient, buses: list[RedisSignals]
) -> None:
    phone, tablet = Ear(), Ear()
    buses[0].listen(ANN, phone)
    buses[0].listen(ANN, tablet)
    await subscribed(hot_client, ANN, 1)
    buses[0].unlisten(ANN, phone)
    buses[0].unlisten(ANN, phone)
    buses[1].tell(ANN, "", b"still")
    await eventually(lambda: tablet.heard == [("", b"still")], what="the other device")
    buses[0].unlisten(ANN, tablet)
    await subscribed(hot_client, ANN, 0)
    assert phone.heard == []


async def test_a_lost_connection_is_made_again(hot_client: RedisClient, buses: list[RedisSignals]) -> None:
    """The server drops every subscriber: the channels are subscribed anew, by themselves."""
    ear = Ear()
    buses[0].listen(ANN, ear)
    await subscribed(hot_client, ANN, 1)
    await hot_client.client_kill_filter(_type="pubsub")
    await subscribed(hot_client, ANN, 1)

    async def told() -> bool:
        buses[1].tell(ANN, "", b"again")
        return bool(ear.heard)

    await eventually(told, what="a signal after the loss")
