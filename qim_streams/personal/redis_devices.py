"""What the hot tier keeps of a user's devices: ``{u:<tenant>:<user>}:dev``.

Spec: §6.
"""

from typing import Any

from qim_streams.gateway.redis_devices import devices_key
from qim_streams.redis_tier import RedisClient, translated


class RedisUserDevices:
    """`Devices` in Redis."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def of_user(self, tenant_id: str, user_id: str) -> dict[str, str]:
        """See the port."""
        async with translated("devices"):
            rows: dict[Any, Any] = await self._client.hgetall(devices_key(tenant_id, user_id))
        return {bytes(name).decode(): bytes(value).decode("utf-8", "replace") for name, value in rows.items()}

    async def forget(self, tenant_id: str, user_id: str) -> int:
        """See the port."""
        count = len(await self.of_user(tenant_id, user_id))
        async with translated("devices"):
            await self._client.delete(devices_key(tenant_id, user_id))
        return count
