"""Registration of devices put together on the real stores: for gateways, and for the admin API.

Spec: §6 (offline).
"""

import contextlib
from collections.abc import AsyncIterator

from qim_streams.log_ports import LogAppender
from qim_streams.membership.ports import OrdinalDirectory
from qim_streams.membership.redis_directory import RedisOrdinalDirectory
from qim_streams.notification.records import PushDevice, PushSettings
from qim_streams.notification.redis_devices import RedisPushDevices
from qim_streams.notification.registry import PushDevices
from qim_streams.ownership.redis_wholeness import RedisWholeness
from qim_streams.redis_tier import RedisClient
from qim_streams.roles.log import StreamAppender
from qim_streams.runtime import now_ms
from qim_streams.script_pipe import ScriptPipe
from qim_streams.settings import Settings
from qim_streams.streaming.doubt import die
from qim_streams.streaming.producer import LogProducer, ProducerSpec


def compose_push_devices(settings: Settings, redis: RedisClient, log_appender: LogAppender) -> PushDevices:
    """Registration by these settings; without a provider every registration is refused."""
    return PushDevices(
        RedisPushDevices(redis),
        log_appender,
        providers=settings.push_providers(),
        mailbox_shards=settings.mailbox_shards,
        now_ms=now_ms,
    )


class OperatorsPush:
    """`api.ports.PushAdmin`: registrations by name, the user's ordinal is found or made."""

    def __init__(self, devices: PushDevices, ordinals: OrdinalDirectory) -> None:
        self._devices, self._ordinals = devices, ordinals

    async def register(self, device: PushDevice) -> PushDevice:
        """See `PushAdmin.register`."""
        (ordinal,) = await self._ordinals.assign(device.tenant_id, [device.user_id])
        return await self._devices.register(device._replace(ordinal=ordinal))

    async def unregister(self, tenant_id: str, user_id: str, device_id: str) -> None:
        """See `PushAdmin.unregister`."""
        await self._devices.unregister(tenant_id, user_id, device_id)

    async def devices(self, tenant_id: str, user_id: str) -> list[PushDevice]:
        """See `PushAdmin.devices`."""
        return await self._devices.devices(tenant_id, user_id)

    async def settings(self, tenant_id: str, user_id: str) -> PushSettings:
        """See `PushAdmin.settings`."""
        return await self._devices.settings(tenant_id, user_id)

    async def change_settings(self, settings: PushSettings) -> PushSettings:
        """See `PushAdmin.change_settings`."""
        return await self._devices.change_settings(settings)


@contextlib.asynccontextmanager
async def operators_push(
    settings: Settings, redis: RedisClient, client_id: str
) -> AsyncIterator[OperatorsPush | None]:
    """Registration for the admin API, with a log producer of its own; None where push is switched off."""
    if not settings.push_providers():
        yield None
        return
    producer = LogProducer(
        ProducerSpec(settings.kafka, client_id), on_fatal=lambda why: die(f"log producer: {why}")
    )
    await producer.start()
    try:
        ordinals = RedisOrdinalDirectory(
            redis, ScriptPipe(redis), RedisWholeness(redis, settings.outbox_partitions), cache_max=0
        )
        yield OperatorsPush(compose_push_devices(settings, redis, StreamAppender(producer)), ordinals)
    finally:
        await producer.close()
