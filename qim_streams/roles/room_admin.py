"""What the admin API needs of rooms, on the real stores and RoomWriters.

Spec: §10.
"""

from qim_streams.certificates import link_tls
from qim_streams.commit.rpc_client import WriterLinks
from qim_streams.ownership.redis_leases import RedisLeaseStore
from qim_streams.redis_tier import RedisClient
from qim_streams.rooms.commands import RoomAct, RoomCreate, RoomJoin, RoomView
from qim_streams.rooms.links import LEASES, RoomLinks
from qim_streams.rooms.redis_store import RedisRoomCounts, RedisRoomListing
from qim_streams.runtime import now_ms
from qim_streams.settings import Settings


class LinkedRooms:
    """`api.ports.RoomAdmin`. `start` first, `close` last."""

    def __init__(self, settings: Settings, redis: RedisClient, name: str) -> None:
        partitions = settings.room_partitions
        self._links = WriterLinks(
            RedisLeaseStore(redis),
            settings.secret("internal_secret"),
            name,
            partitions,
            resource=LEASES,
            tls=link_tls(settings),
        )
        self._rooms = RoomLinks(self._links, partitions, settings.send_deadline_ms / 1_000)
        self._listing, self._counts = RedisRoomListing(redis, partitions), RedisRoomCounts(redis)

    async def start(self) -> None:
        """Begin to watch the deadlines of requests."""
        await self._links.start()

    async def close(self) -> None:
        """End the links."""
        await self._links.close()

    async def create(self, request: RoomCreate) -> RoomView:
        """See the port."""
        return await self._rooms.create(request)

    async def look(self, request: RoomJoin) -> RoomView:
        """See the port."""
        return await self._rooms.join(request)

    async def act(self, request: RoomAct) -> RoomView:
        """See the port."""
        return await self._rooms.act(request)

    async def list(self, tenant_id: str, after_room_id: str, limit: int) -> list[str]:
        """See the port."""
        return await self._listing.rooms(tenant_id, after_room_id, limit)

    async def count(self, tenant_id: str, room_id: str) -> int:
        """See the port."""
        return (await self._counts.totals([(tenant_id, room_id)], now_ms()))[0]
