"""The RoomWriter process: composition, start and stop.

Start: boot number -> topic checked, store, log producer -> RPC listens -> leases are taken, each partition is
taken over and then served. Ready (``GET /readyz`` on the RPC port) when a partition is served.

Stop: partitions note how far they have come, leases are released, answers go out. A process that is killed
leaves at most a second to read again.

Spec: §10, §11.
"""

import asyncio
import logging
import os
import secrets
import time
from functools import partial

from qim_streams.certificates import internal_server
from qim_streams.commit.clock_bound import FileClockBound, ReservedClock
from qim_streams.ownership.boot import Boot
from qim_streams.ownership.keeper import Claimant
from qim_streams.ownership.redis_leases import RedisLeaseStore
from qim_streams.placement import room_partition
from qim_streams.redis_tier import RedisClient, connect
from qim_streams.roles.serving import check_node, check_topics_of, listen, own_until
from qim_streams.rooms.appends import TOPIC, TurnAppends
from qim_streams.rooms.kafka_log import KafkaRoomReader
from qim_streams.rooms.ownership import RoomOwnership
from qim_streams.rooms.partition import PartitionServices
from qim_streams.rooms.redis_store import RedisRoomStore
from qim_streams.rooms.rpc_server import RoomRpcServer
from qim_streams.rooms.writer import RoomWriter
from qim_streams.runtime import now_ms
from qim_streams.settings import Settings
from qim_streams.streaming.doubt import die
from qim_streams.streaming.producer import LogProducer, ProducerSpec
from qim_streams.tls import CertificateWatch

log = logging.getLogger(__name__)

STOP_TIMEOUT_S, FLUSH_TIMEOUT_S = 5.0, 3.0
PRODUCE_TIMEOUT_MS = 10_000  # a room has no use for what is later than that


async def run_rooms(settings: Settings, stop: asyncio.Event) -> None:
    """Run one RoomWriter until `stop` is set. ConfigError when it cannot start."""
    check_settings(settings)
    name = f"rooms.{settings.node_id}.{settings.worker_slot}"
    boot = Boot.take(settings.state_dir, name)
    log.info("%s boot %d, pid %d", name, boot.number, os.getpid())
    await asyncio.to_thread(check_topics, settings)
    redis = connect(settings)
    producer = LogProducer(
        ProducerSpec(settings.kafka, name, message_timeout_ms=PRODUCE_TIMEOUT_MS),
        on_fatal=lambda why: die(f"log producer: {why}"),
    )
    await producer.start()
    reader = KafkaRoomReader(settings.kafka)
    clock = ReservedClock(
        FileClockBound(settings.state_dir / "clock" / f"{name}.bound"),
        int.from_bytes(secrets.token_bytes(8), "big"),
        now_ms,
    )
    try:
        services = _services(settings, redis, producer, reader, clock)
        await _serve(settings, services, redis, (name, boot.number), stop)
    finally:
        await producer.close(FLUSH_TIMEOUT_S)
        await reader.close()
        await redis.aclose()
    await clock.close()
    boot.release()
    log.info("%s stopped", name)


def _services(
    settings: Settings,
    redis: RedisClient,
    producer: LogProducer,
    reader: KafkaRoomReader,
    clock: ReservedClock,
) -> PartitionServices:
    async def new_id() -> bytes:
        return (await clock.ids(1))[0]

    return PartitionServices(
        store=RedisRoomStore(redis),
        log=TurnAppends(producer.append_nowait),
        reader=reader,
        new_id=new_id,
        now_ms=now_ms,
        monotonic=time.monotonic,
        msg_per_s=settings.room_msg_rate,
        retention_ms=settings.room_log_retention_minutes * 60_000,
    )


async def _serve(
    settings: Settings,
    services: PartitionServices,
    redis: RedisClient,
    claim: tuple[str, int],
    stop: asyncio.Event,
) -> None:
    owner: list[RoomOwnership] = []  # known only once the port is
    writer = RoomWriter(
        services,
        partial(_partition, settings.room_partitions),
        settings.room_body_bytes_max,
        lambda number, epoch: owner[0].fenced(number, epoch),
    )
    server = RoomRpcServer(writer, settings.secret("internal_secret"), die)
    watch = CertificateWatch(settings.tls_reload_s)
    server.tls = internal_server(settings, watch)
    port = await listen(server.start, "rooms", settings.rooms_host, settings.rooms_port)
    address = f"{settings.rooms_advertised_host or settings.rooms_host}:{port}"
    ownership = RoomOwnership(
        RedisLeaseStore(redis),
        Claimant(*claim, address),
        settings.room_partitions,
        writer,
        ttl_ms=settings.lease_ttl_ms,
        renew_ms=settings.lease_renew_ms,
    )
    owner.append(ownership)
    server.stands_by = lambda: ownership.stands_by
    log.info("listening on %s", address)
    owning = asyncio.create_task(ownership.run(), name="room-ownership")
    watching = asyncio.create_task(watch.run(), name="certificates")
    await own_until(stop, owning, "room partitions")
    watching.cancel()
    await ownership.close(STOP_TIMEOUT_S)
    await server.close()


def _partition(partitions: int, tenant_id: str, room_id: str) -> int:
    return room_partition(tenant_id, room_id, partitions)


def check_settings(settings: Settings) -> None:
    """ConfigError for what only a RoomWriter minds."""
    check_node(settings, "rooms", settings.rooms_host, settings.rooms_advertised_host, "process")


def check_topics(settings: Settings) -> None:
    """ConfigError when the room log is not as declared. Blocking."""
    check_topics_of(settings, (TOPIC,))
