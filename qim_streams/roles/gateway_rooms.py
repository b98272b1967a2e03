"""The rooms of a gateway process: links to RoomWriters, the reader of the room log, the tick, member counts.

Spec: §10.
"""

import asyncio
import random
from typing import Final

from qim_streams.certificates import link_tls
from qim_streams.commit.rpc_client import WriterLinks
from qim_streams.gateway.kafka_rooms import RoomReader
from qim_streams.gateway.outbound import Outbound
from qim_streams.gateway.room_counts import CountExchange
from qim_streams.gateway.room_seat import RoomSeat
from qim_streams.gateway.rooms import RoomHall
from qim_streams.gateway.session_ports import RoomSession
from qim_streams.ownership.ports import LeaseStore
from qim_streams.redis_tier import RedisClient
from qim_streams.rooms.links import LEASES, RoomLinks
from qim_streams.rooms.redis_store import RedisRoomCounts
from qim_streams.runtime import now_ms
from qim_streams.settings import Settings
from qim_streams.wire.codec import Codec

ROOM_TOPIC: Final = "qim.room.v1"


class GatewayRooms:
    """`gateway.room_seat.Rooms` on the real log and stores. `start` first, `close` last."""

    def __init__(self, settings: Settings, redis: RedisClient, leases: LeaseStore, name: str) -> None:
        partitions = settings.room_partitions
        self._links = WriterLinks(
            leases,
            settings.secret("internal_secret"),
            name,
            partitions,
            resource=LEASES,
            tls=link_tls(settings),
        )
        self._reader = RoomReader(settings.kafka, f"{name}.rooms", partitions)
        self._hall = RoomHall(
            RoomLinks(self._links, partitions, settings.send_deadline_ms / 1_000),
            self._reader,
            partitions,
            frame_rate=settings.room_outbound_frame_rate,
            by_users=settings.rooms_by_users,
            retention_ms=settings.room_log_retention_minutes * 60_000,
            now_ms=now_ms,
        )
        self._counts = CountExchange(self._hall, RedisRoomCounts(redis), name, now_ms, random.random)

    async def start(self) -> None:
        """Begin to watch the deadlines of requests."""
        await self._links.start()

    def seat(self, session: RoomSession, codec: Codec, outbound: Outbound) -> RoomSeat:
        """See the port."""
        return self._hall.seat(session, codec, outbound)

    async def run(self) -> None:
        """See the port."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reader.run(self._hall.wants, self._hall.deliver))
            tasks.create_task(self._hall.run())
            tasks.create_task(self._counts.run())

    async def close(self) -> None:
        """End reader and links. `run` has ended."""
        await self._reader.stop()
        await self._links.close()
