"""Rules of logins at a gateway over stores in memory, with clients of the SDK. T-C7; I13."""

import asyncio

import pytest

from qim_streams.client import ClientOptions, QimClient
from qim_streams.errors import ClientStopped
from qim_streams.quotas.rules import TenantRules
from qim_streams.wire import JSON
from qim_streams.wire.frames import Auth, Error, Ping, Pong
from tests.support.gateway_world import TENANT, GatewayWorld, WireClient, token
from tests.support.waiting import eventually

QUICK = ClientOptions(backoff_base_ms=10, backoff_cap_ms=50, follow_endpoint=False, platform="ios")


async def test_a_client_that_was_sent_away_stops_and_says_why() -> None:
    """It does not connect again; the newer one does, whenever its connection breaks, and stays."""
    async with GatewayWorld().running() as world:
        world.rules.kept[TENANT] = TenantRules(multi_login="platform")
        phone, pad = (QimClient(world.url, token("ann"), name, options=QUICK) for name in ("phone", "pad"))
        try:
            await phone.connect(20)
            await pad.connect(20)
            with pytest.raises(ClientStopped, match="LOGGED_IN_ELSEWHERE"):
                await asyncio.wait_for(phone.send("hi", conversation_id="c1"), 20)
            for _ in range(3):
                seen = pad.connections
                for socket in list(world.server.sockets):
                    socket.abort()
                await eventually(lambda seen=seen: pad.connections > seen and pad.is_online, 20)
            assert world.counters.sessions_ended == 1
            assert phone.connections == 1
        finally:
            await phone.close()
            await pad.close()


async def test_a_client_that_was_away_meanwhile_does_not_take_over() -> None:
    """Sent away while it was not connected: it learns so when it comes back, and the newer one stays."""
    async with GatewayWorld(multi_login="newest").running() as world:
        phone, pad = (QimClient(world.url, token("ann"), name, options=QUICK) for name in ("phone", "pad"))
        try:
            await phone.connect(20)
            async with phone_is_away(world):
                await pad.connect(20)
            with pytest.raises(ClientStopped, match="LOGGED_IN_ELSEWHERE"):
                await asyncio.wait_for(phone.send("hi", conversation_id="c1"), 20)
            assert pad.is_online
        finally:
            await phone.close()
            await pad.close()


class phone_is_away:  # noqa: N801 - reads as what it does
    """Connections of the phone are refused."""

    def __init__(self, world: GatewayWorld) -> None:
        self._world, self._open = world, world.services.logins.open

    async def __aenter__(self) -> None:
        async def refuse(user: object, device_id: str, *rest: object) -> object:
            if device_id == "phone":
                raise TimeoutError
            return await self._open(user, device_id, *rest)  # type: ignore[arg-type]

        self._world.services.logins.open = refuse  # type: ignore[method-assign, assignment]
        (phone,) = self._world.server.sockets
        phone.abort()
        await eventually(lambda: not self._world.registry.sessions(), 20)

    async def __aexit__(self, *_: object) -> None:
        self._world.services.logins.open = self._open  # type: ignore[method-assign]


async def test_by_default_all_devices_stay() -> None:
    """And in JSON, too, a device may say what it is."""
    async with (
        GatewayWorld().running() as world,
        await WireClient.connect(world.url) as phone,
        await WireClient.connect(world.url, JSON) as pad,
    ):
        await phone.sign_on("ann", platform="ios")
        auth = await pad.sign_on("ann", device="pad", platform="ios", resumes=7)
        assert type(await phone.call(Ping(1))) is Pong
        assert type(await pad.call(Ping(2))) is Pong
        assert world.devices.platforms[world.registry.sessions()[1].device] == "ios"
        assert auth.session_epoch > 7


async def test_a_platform_is_a_name() -> None:
    async with GatewayWorld().running() as world, await WireClient.connect(world.url) as phone:
        answer = await phone.call(Auth(1, token("ann"), "phone", platform="i os"))
        assert type(answer) is Error
        assert (answer.name, answer.field) == ("FIELD_INVALID", "platform")
