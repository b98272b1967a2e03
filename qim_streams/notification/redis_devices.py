"""Registered devices in Redis: ``{u:<tenant>:<user>}:push``, a hash device -> "<version> <PushDevice>".

The field ``.`` holds the user's PushSettings. Beside it lies ``{u:<tenant>:<user>}:dev`` of the gateways,
read here for when a device's session began. ``{pd}:whole`` names the run of the server into which everything
of the device log was put. ``{pk:<digest>}:owner``, of a token, names the device that a token belongs to.

Spec: §6, §14.8.
"""

from collections.abc import Sequence
from typing import Any

from blake3 import blake3

from qim_streams import limits
from qim_streams.errors import RecordError, StoreUnavailable
from qim_streams.gateway.redis_devices import devices_key
from qim_streams.notification.ports import DeviceRow
from qim_streams.notification.records import (
    SETTINGS_NAME,
    PushDevice,
    PushSettings,
    decode_device,
    decode_settings,
)
from qim_streams.redis_tier import RedisClient, Script, exchange, translate, translated

WHOLE_KEY = "{pd}:whole"
_TOKEN_DOMAIN = b"qim.push-token\0"


class RedisPushDevices:
    """`DeviceStore` on Redis."""

    def __init__(self, client: RedisClient, devices_max: int = limits.DEVICES_MAX) -> None:
        self._client, self._max = client, devices_max
        self._script = Script.load("qim_streams.notification", "device_put.lua")

    async def load(self, wanted: Sequence[tuple[str, str, str]]) -> list[DeviceRow]:
        """See `DeviceStore.load`."""
        if not wanted:
            return []
        commands: list[tuple[str, ...]] = []
        for tenant, user, device in wanted:
            commands.append(("HMGET", _key(tenant, user), device, SETTINGS_NAME))
            commands.append(("HGET", devices_key(tenant, user), device))
        async with translated("push devices"):
            answers = await exchange(self._client, commands)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise translate(answer, "push devices") from answer
        return [_row(answers[at], answers[at + 1]) for at in range(0, len(answers), 2)]

    async def devices(self, tenant_id: str, user_id: str) -> list[PushDevice]:
        """See `DeviceStore.devices`."""
        async with translated("push devices"):
            rows: Any = await self._client.hgetall(_key(tenant_id, user_id))
        found = [_device(row) for name, row in sorted(rows.items()) if name.decode() != SETTINGS_NAME]
        return [one for one in found if one is not None]

    async def put(self, device: PushDevice) -> str | None:
        """See `DeviceStore.put`."""
        args = ("put", device.device_id, device.version, device.encode(), self._max)
        gone = await self._call(device.tenant_id, device.user_id, args)
        return gone.decode() or None

    async def settings(self, tenant_id: str, user_id: str) -> PushSettings | None:
        """See `DeviceStore.settings`."""
        async with translated("push settings"):
            row: Any = await self._client.hget(_key(tenant_id, user_id), SETTINGS_NAME)
        return _settings(row)

    async def put_settings(self, settings: PushSettings) -> None:
        """See `DeviceStore.put_settings`."""
        args = ("put", SETTINGS_NAME, settings.version, settings.encode(), self._max)
        await self._call(settings.tenant_id, settings.user_id, args)

    async def remove(self, tenant_id: str, user_id: str, device_id: str) -> None:
        """See `DeviceStore.remove`."""
        async with translated("push devices"):
            await self._client.hdel(_key(tenant_id, user_id), device_id)

    async def bury(self, device: PushDevice, reason: str) -> bool:
        """See `DeviceStore.bury`."""
        dead = device._replace(token="", dead=reason)
        args = ("bury", device.device_id, device.version, dead.encode())
        return bool(await self._call(device.tenant_id, device.user_id, args))

    async def claim_token(self, device: PushDevice) -> tuple[str, str, str] | None:
        """See `DeviceStore.claim_token`."""
        owner = (device.tenant_id, device.user_id, device.device_id)
        async with translated("push tokens"):
            before: Any = await self._client.set(_token_key(device), "\0".join(owner), get=True)
        if before is None:
            return None
        tenant, user, name = before.decode().split("\0")
        return None if (tenant, user, name) == owner else (tenant, user, name)

    async def is_whole(self) -> bool:
        """See `DeviceStore.is_whole`."""
        async with translated("push devices"):
            pipe = self._client.pipeline(transaction=False)
            pipe.get(WHOLE_KEY)
            pipe.info("server")
            mark, server = await pipe.execute()
        return mark is not None and mark.decode() == str(server["run_id"])

    async def mark_whole(self) -> None:
        """See `DeviceStore.mark_whole`."""
        async with translated("push devices"):
            server = await self._client.info("server")
            await self._client.set(WHOLE_KEY, str(server["run_id"]))

    async def _call(self, tenant_id: str, user_id: str, args: Sequence[str | bytes | int]) -> Any:
        async with translated("push devices"):
            return await self._script.call(self._client, [_key(tenant_id, user_id)], args)


def _key(tenant_id: str, user_id: str) -> str:
    return f"{{u:{tenant_id}:{user_id}}}:push"


def _token_key(device: PushDevice) -> str:
    """Of whoever has a token: without the token itself."""
    names = "\0".join((device.provider, device.app, device.token))
    return f"{{pk:{blake3(_TOKEN_DOMAIN + names.encode()).hexdigest(16)}}}:owner"


def _row(stored: list[bytes | None], session: bytes | None) -> DeviceRow:
    device, settings = stored
    words = session.split(b" ") if session is not None else [b"0"]
    ended = len(words) > 3 and words[3] != b"-"  # the rows are those of the gateways' device_session.lua
    return DeviceRow(_device(device), _settings(settings), int(words[0]), ended)


def _device(row: bytes | None) -> PushDevice | None:
    if row is None:
        return None
    try:
        return decode_device(row.split(b" ", 1)[-1])
    except RecordError as error:
        raise StoreUnavailable(f"push devices: {error}") from error


def _settings(row: bytes | None) -> PushSettings | None:
    if row is None:
        return None
    try:
        return decode_settings(row.split(b" ", 1)[-1])
    except RecordError as error:
        raise StoreUnavailable(f"push settings: {error}") from error
