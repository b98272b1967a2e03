"""Offline push over real sockets, both encodings, and over the admin API: register, log out, quiet hours."""

from collections.abc import AsyncIterator

import httpx
import pytest

from qim_streams.notification.records import PushDevice
from qim_streams.roles.push_admin import OperatorsPush
from qim_streams.wire import CODECS, Codec
from qim_streams.wire.frames import Error
from qim_streams.wire.frames_push import (
    GetPush,
    PushRegistration,
    PushState,
    RegisterPush,
    SetPushSettings,
    UnregisterPush,
)
from tests.support.doc_code import as_function, python_blocks
from tests.support.gateway_world import GatewayWorld, WireClient, token
from tests.unit.api.fakes import BASE, FakeWriter, client, deps

BOTH = pytest.mark.parametrize("codec", CODECS.values(), ids=lambda c: c.subprotocol)


@pytest.fixture
async def world() -> AsyncIterator[GatewayWorld]:
    async with GatewayWorld().running() as running:
        yield running


@BOTH
async def test_a_device_registers_and_another_one_logs_it_out(world: GatewayWorld, codec: Codec) -> None:
    """H5: whose device it is comes from the session; any device of the user may log another one out."""
    async with (
        await WireClient.connect(world.url, codec) as phone,
        await WireClient.connect(world.url, codec) as laptop,
        await WireClient.connect(world.url, codec) as ann,
    ):
        assert (await phone.sign_on("ben")).push_token_dead is None
        await laptop.sign_on("ben", device="laptop")
        await ann.sign_on("ann")
        row = PushRegistration("phone", "apns", "com.example.chat")
        assert await phone.call(RegisterPush(3, "apns", "tok", "com.example.chat")) == PushState(3, [row])
        (stored,) = await world.push_store.devices("acme", "ben")
        assert (stored.token, stored.ordinal) == ("tok", world.address("ben").ordinal)
        assert await ann.call(UnregisterPush(3, "phone")) == PushState(3, [])  # that is ann's own phone
        assert await laptop.call(GetPush(4)) == PushState(4, [row])
        assert await laptop.call(UnregisterPush(5, "phone")) == PushState(5, [])
        assert world.push_log.records[-1].value is None


async def test_the_example_of_the_page(world: GatewayWorld) -> None:
    """docs/notifications.md: what an application does at each start."""
    asked: list[bool] = []

    async def token_of_the_platform(another: bool) -> str:
        asked.append(another)
        return "tok"

    (code,) = python_blocks("docs/notifications.md")
    example = as_function(code, "url", "access_token", "token_of_the_platform")
    await example(world.url, token("ben"), token_of_the_platform)
    (stored,) = await world.push_store.devices("acme", "ben")
    assert (stored.device_id, stored.provider, stored.token) == ("phone-1", "apns", "tok")
    assert asked == [False]


@BOTH
async def test_quiet_hours_and_refusals(world: GatewayWorld, codec: Codec) -> None:
    async with await WireClient.connect(world.url, codec) as phone:
        await phone.sign_on("ben")
        answer = await phone.call(SetPushSettings(3, 1_320, 420, "Europe/Berlin", True))
        assert answer == PushState(3, [], 1_320, 420, "Europe/Berlin", True)
        assert await phone.call(SetPushSettings(4)) == PushState(4, [])
        for frame, field in (
            (SetPushSettings(5, 0, 60, "No/Where"), "time_zone"),
            (RegisterPush(6, "fcm", "tok"), "provider"),
        ):
            refused = await phone.call(frame)
            assert isinstance(refused, Error)
            assert (refused.rid, refused.name) == (frame.rid, "FIELD_INVALID")
            assert field in refused.detail


@BOTH
async def test_a_dead_token_is_told_at_the_next_sign_on(world: GatewayWorld, codec: Codec) -> None:
    device = await world.push_devices.register(
        PushDevice("acme", "ben", world.address("ben").ordinal, "phone", "apns", "", "tok", 0)
    )
    await world.push_devices.bury(device, "Unregistered")
    async with await WireClient.connect(world.url, codec) as phone:
        assert (await phone.sign_on("ben")).push_token_dead == "Unregistered"
        await phone.call(RegisterPush(3, "apns", "another"))
    async with await WireClient.connect(world.url, codec) as phone:
        assert (await phone.sign_on("ben")).push_token_dead is None


@BOTH
async def test_a_providers_word_never_keeps_a_device_out(world: GatewayWorld, codec: Codec) -> None:
    """T-X2: it is told at each sign-on, so it must fit the frame, whatever it was."""
    device = await world.push_devices.register(
        PushDevice("acme", "ben", world.address("ben").ordinal, "phone", "apns", "", "tok", 0)
    )
    await world.push_devices.bury(device, "gone\0\x7f\n" + "x" * 500)
    async with await WireClient.connect(world.url, codec) as phone:
        assert (await phone.sign_on("ben")).push_token_dead == "gone???" + "x" * 57


async def test_the_operator_registers_and_removes(world: GatewayWorld) -> None:
    push = OperatorsPush(world.push_devices, world.ordinals)
    async with client(deps(FakeWriter(), push=push)) as api:
        where = f"{BASE}/users/ben/push"
        answer = await api.put(f"{where}/devices/phone", json={"provider": "apns", "token": "tok"})
        assert answer.status_code == 200, answer.text
        assert "tok" not in {str(value) for value in answer.json().values()}
        listed: httpx.Response = await api.get(f"{where}/devices")
        assert [one["device_id"] for one in listed.json()["devices"]] == ["phone"]
        hours = {"quiet_from_min": 60, "quiet_to_min": 120, "time_zone": "Asia/Tokyo"}
        assert (await api.put(f"{where}/settings", json=hours)).status_code == 200
        assert (await api.get(f"{where}/settings")).json()["time_zone"] == "Asia/Tokyo"
        half = await api.put(f"{where}/settings", json={"quiet_from_min": 60})
        assert half.status_code == 422
        long = await api.put(f"{where}/devices/d", json={"provider": "apns", "token": "x" * 5_000})
        assert long.status_code == 422
        assert (await api.delete(f"{where}/devices/phone")).status_code == 204
        assert await world.push_store.devices("acme", "ben") == []
    async with client(deps(FakeWriter())) as api:
        assert (await api.get(f"{BASE}/users/ben/push/devices")).status_code == 404, "push is switched off"
