"""The ConnectionNode process: composition, start and stop.

Start: boot number (proof that no other process has this name) -> topics checked, stores, log producer
-> the server listens -> a ConnectionShard is leased, its push partition is read, sessions are announced.
Ready (``GET /readyz``) while a ConnectionShard is served and its push log answers; sessions go by W
otherwise. Clients may connect before that: they sync and send, pushes follow.

Stop: nobody is let in, clients get GOODBYE and the answers they are owed, sockets close, tombstones are
written, the lease is released. Bounded in time; whatever is left, the mailbox stage drops the sessions
when the lease ends.

Spec: §6, §7, §11.
"""

import asyncio
import contextlib
import logging
import os
import random
import secrets
import ssl
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

from prometheus_client import REGISTRY, CollectorRegistry

from qim_streams.archive.opening import open_archive_reader
from qim_streams.certificates import gateway_server, link_tls, watched
from qim_streams.commit.calls import PartitionCalls
from qim_streams.commit.redis_store import RedisConversationStore
from qim_streams.commit.rpc_client import WriterLinks
from qim_streams.errors import ConfigError, StoreError
from qim_streams.gateway.kafka_push import PushReader
from qim_streams.gateway.logins import Logins
from qim_streams.gateway.metrics import GatewayCounters
from qim_streams.gateway.movements import Movements
from qim_streams.gateway.presence import PresenceLog
from qim_streams.gateway.push import Deliveries
from qim_streams.gateway.push_devices import PushDeviceFrames
from qim_streams.gateway.redis_devices import RedisDeviceSessions, RedisShardEpochs
from qim_streams.gateway.redis_signals import RedisSignals
from qim_streams.gateway.registry import Registry
from qim_streams.gateway.server import PATH, GatewayServer, door_bounds
from qim_streams.gateway.services import PULLS_AT_ONCE_MAX, Services
from qim_streams.gateway.shard import ConnectionShard
from qim_streams.gateway.spans import Deliver, SpannedDeliveries, SpannedWriters
from qim_streams.gateway.sweeper import Sweeper
from qim_streams.gateway.tokens import TokenVerifier
from qim_streams.gateway.unpushed import Unpushed
from qim_streams.history.redis_history import RedisHistoryStore
from qim_streams.history.service import HistoryService
from qim_streams.ids import is_text_id
from qim_streams.mailbox.redis_store import RedisMailboxStore
from qim_streams.membership.redis_directory import RedisOrdinalDirectory
from qim_streams.ownership.boot import Boot
from qim_streams.ownership.keeper import Claimant, LeaseKeeper
from qim_streams.ownership.redis_leases import RedisLeaseStore
from qim_streams.ownership.redis_wholeness import RedisWholeness
from qim_streams.placement import outbox_partition
from qim_streams.quotas.redis_quotas import RedisTenantRules
from qim_streams.quotas.service import RulesCache
from qim_streams.readiness import StoreWatch
from qim_streams.redis_tier import RedisClient, connect
from qim_streams.roles.gateway_rooms import ROOM_TOPIC, GatewayRooms
from qim_streams.roles.health import REDIS, asks_redis
from qim_streams.roles.log import StreamAppender
from qim_streams.roles.moderation import asking_first
from qim_streams.roles.presence import compose_watches
from qim_streams.roles.published_keys import token_keys
from qim_streams.roles.push_admin import compose_push_devices
from qim_streams.roles.serving import check_topics_of
from qim_streams.roles.session_lists import compose_lists
from qim_streams.roles.spans import compose_spans
from qim_streams.runtime import now_ms
from qim_streams.script_pipe import ScriptPipe
from qim_streams.settings import Settings
from qim_streams.sharding.follower import Mappings
from qim_streams.sharding.kafka_mapping import KafkaMappingLog
from qim_streams.sharding.mailboxes import WholeMailboxes
from qim_streams.sharding.mapping_log import MAPPING_TOPIC
from qim_streams.sharding.ports import MailboxReader
from qim_streams.streaming.doubt import die
from qim_streams.streaming.producer import LogProducer, ProducerSpec
from qim_streams.sync.cursor import CursorSigner
from qim_streams.sync.pull import PullService
from qim_streams.sync.redis_boundaries import RedisEpochBoundaries
from qim_streams.sync.service import SyncService

log = logging.getLogger(__name__)

PRESENCE_TOPIC: Final = "qim.presence.v1"
PUSH_TOPIC: Final = "qim.push.v1"
TOMBSTONES_S: Final = 3.0
OTHERS_S: Final = 1.0


async def run_gateway(settings: Settings, stop: asyncio.Event, metrics: CollectorRegistry = REGISTRY) -> None:
    """Run one gateway until `stop` is set. ConfigError when it cannot start."""
    check_settings(settings)
    name = f"gateway.{settings.node_id}.{settings.worker_slot}"
    boot = Boot.take(settings.state_dir, name)
    log.info("%s boot %d, pid %d", name, boot.number, os.getpid())
    async with contextlib.AsyncExitStack() as opened:
        opened.callback(boot.release)
        await asyncio.to_thread(check_topics, settings)
        redis = connect(settings)
        opened.push_async_callback(redis.aclose)
        hot_tier = StoreWatch(REDIS, asks_redis(redis))
        watching = asyncio.create_task(hot_tier.run(), name="store-watch")
        opened.callback(watching.cancel)
        archive = open_archive_reader(settings)
        opened.push_async_callback(archive.close)
        producer = LogProducer(
            ProducerSpec(settings.kafka, name), on_fatal=lambda why: die(f"log producer: {why}")
        )
        await producer.start()
        opened.push_async_callback(producer.close)
        leases = RedisLeaseStore(redis)
        secret = settings.secret("internal_secret")
        writers = WriterLinks(leases, secret, name, settings.outbox_partitions, tls=link_tls(settings))
        await writers.start()
        opened.push_async_callback(writers.close)
        mapping_log = KafkaMappingLog(settings.kafka)
        opened.push_async_callback(mapping_log.close)
        mappings = Mappings(settings.mailbox_shards, mapping_log)
        await mappings.load_at_start()
        mailboxes = WholeMailboxes(RedisMailboxStore(redis), mappings)
        services, signals = compose(settings, redis, mailboxes, archive, producer, writers, mappings)
        opened.push_async_callback(services.sessions.close)
        services.writers = asking_first(settings, writers, opened)
        services.rooms = rooms = GatewayRooms(settings, redis, leases, name)
        await rooms.start()
        opened.push_async_callback(rooms.close)
        services.readiness.add(hot_tier.reasons)
        services.spans = spans = compose_spans(settings, "gateway")
        if spans is not None:
            await spans.start()
            opened.push_async_callback(spans.close)
            services.writers = SpannedWriters(services.writers, spans)
        _follow_issuer(services, opened)
        metrics.register(services.counters)
        opened.callback(metrics.unregister, services.counters)
        movements = Movements(services, mappings, RedisShardEpochs(redis))
        keeping = LeaseKeeperSpec(leases, name, boot.number)
        watch = await opened.enter_async_context(watched(settings))
        tls = gateway_server(settings, watch)
        await serve(services, signals, mailboxes, keeping, stop, movements, tls)
    log.info("%s stopped", name)


def _follow_issuer(services: Services, opened: contextlib.AsyncExitStack) -> None:
    """Take the keys of access tokens from where the settings say, as long as the gateway runs."""
    services.tokens, book, keeper = token_keys(services.settings)
    if book is not None and keeper is not None:
        services.readiness.add(book.reasons)
        following = asyncio.create_task(keeper.run(), name="jwks")
        opened.callback(following.cancel)


class LeaseKeeperSpec:
    """Who asks for ConnectionShards, and where."""

    def __init__(self, store: RedisLeaseStore, name: str, boot: int) -> None:
        self.store, self.name, self.boot = store, name, boot

    def keeper(self, settings: Settings, shard: ConnectionShard, address: str) -> LeaseKeeper:
        """A keeper that takes one ConnectionShard, whichever is free."""
        keeper = LeaseKeeper(
            self.store,
            Claimant(self.name, self.boot, address),
            ttl_ms=settings.lease_ttl_ms,
            renew_ms=settings.lease_renew_ms,
            on_granted=shard.granted,
            on_lost=shard.lost,
        )
        keeper.hold_max = 1
        keeper.want(_resources(settings))
        return keeper

    async def others(self, settings: Settings) -> list[str]:
        """Where the other gateways are; empty when there are none, or when nobody knows in a second."""
        try:
            async with asyncio.timeout(OTHERS_S):
                holders = await self.store.holders(_resources(settings))
        except (StoreError, TimeoutError) as error:
            log.warning("clients are not told where other gateways are: %s", error)
            return []
        return sorted({one.address for one in holders if one is not None and one.node != self.name})


def _resources(settings: Settings) -> list[str]:
    return [f"cs:{number}" for number in range(settings.connection_shards)]


def compose(
    settings: Settings,
    redis: RedisClient,
    mailboxes: MailboxReader,
    archive: Any,
    producer: LogProducer,
    writers: WriterLinks,
    mappings: Mappings | None = None,
) -> tuple[Services, RedisSignals]:
    """Everything that sessions share, on the real stores, and the bus between the gateways."""
    pipe = ScriptPipe(redis)
    partition_of = partial(_partition, settings.outbox_partitions)
    hot = RedisConversationStore(PartitionCalls(pipe), settings.client_dedup_retention_s, partition_of)
    devices = RedisDeviceSessions(redis)
    previous = settings.cursor_secret_previous.get_secret_value().encode()
    counters = GatewayCounters()
    # Without a memory: what it said before the hot tier was lost may be somebody else's now.
    ordinals = RedisOrdinalDirectory(
        redis, pipe, RedisWholeness(redis, settings.outbox_partitions), cache_max=0
    )
    lists = compose_lists(redis, archive, ordinals, partition_of, settings.mailbox_shards, mappings)
    watches = compose_watches(settings, redis, lists.signals, lists.members)
    services = Services(
        settings=settings,
        tokens=TokenVerifier.from_settings(settings),
        ordinals=ordinals,
        sync=SyncService(
            mailboxes,
            RedisShardEpochs(redis),
            RedisEpochBoundaries(redis),
            CursorSigner(settings.secret("cursor_secret"), previous or None),
            mappings,
        ),
        pulls=PullService(mailboxes, hot, archive),
        histories=HistoryService(
            RedisHistoryStore(redis, partition_of, whole_only=True), archive, lists.deletions
        ),
        sessions=lists.frames,
        devices=devices,
        logins=Logins(
            devices, RulesCache(RedisTenantRules(redis), now_ms), settings.multi_login, lists.signals, now_ms
        ),
        writers=writers,
        presence=PresenceLog(
            StreamAppender(producer),
            devices,
            topic=PRESENCE_TOPIC,
            mailbox_shards=settings.mailbox_shards,
            now_ms=now_ms,
            counters=counters,
        ),
        push=PushDeviceFrames(compose_push_devices(settings, redis, StreamAppender(producer))),
        watches=watches,
        registry=Registry(),
        counters=counters,
        pull_slots=asyncio.Semaphore(PULLS_AT_ONCE_MAX),
        now_ms=now_ms,
        random=random.random,
        new_group_id=lambda: f"g.{secrets.token_hex(12)}",
        mappings=mappings,
    )
    services.presence.heard = watches.heard
    return services, lists.signals


async def serve(
    services: Services,
    signals: RedisSignals,
    mailboxes: MailboxReader,
    leases: LeaseKeeperSpec,
    stop: asyncio.Event,
    movements: Movements | None = None,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Listen, serve and drain. Returns once everything was said that had to be."""
    settings = services.settings
    reader = PushReader(
        settings.kafka,
        PUSH_TOPIC,
        leases.name,
        deliver=_deliver(services, leases.name),
        on_gap=lambda: shard.repair(),
        counters=services.counters,
    )
    shard = ConnectionShard(services.registry, reader)
    server = GatewayServer(services, shard.reasons, tls)
    unpushed = Unpushed(services, mailboxes, shard, time.monotonic)
    try:
        await server.start()
    except OSError as error:
        raise ConfigError(
            f"gateway_port: cannot listen on {settings.gateway_host}:{settings.gateway_port} "
            f"({error.strerror}); set QIM_GATEWAY_PORT, or 0 for any free one"
        ) from error
    log.info("gateway listening on %s:%d", settings.gateway_host, server.port)
    scheme = "ws" if tls is None else "wss"
    address = settings.gateway_public_url or f"{scheme}://{settings.gateway_host}:{server.port}{PATH}"
    keeper = leases.keeper(settings, shard, address)
    sweeper = Sweeper(services, server)
    signals.on_again = sweeper.look_again
    tasks: list[Any] = [services.presence, shard, keeper, signals, sweeper, unpushed, services.rooms]
    tasks += [services.watches]
    tasks += [] if movements is None else [movements]
    async with running(*(one.run() for one in tasks)) as failed:
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({stopping, failed}, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            die("a task of the gateway ended", failed.exception() if failed.done() else None)
        log.info("draining %d connections", len(server.sockets))
        server.refuse_new()
        await server.drain(await leases.others(settings))
        if not await services.presence.flushed(TOMBSTONES_S):
            log.warning("not all tombstones were written; the end of the lease says the same")
        await reader.stop()
    await keeper.close()
    await server.close()


def _deliver(services: Services, gateway: str) -> Deliver:
    deliver = Deliveries(services).deliver
    return deliver if services.spans is None else SpannedDeliveries(deliver, services.spans, gateway)


@contextlib.asynccontextmanager
async def running(*work: Any) -> AsyncIterator["asyncio.Future[Any]"]:
    """Run coroutines that never end; gives a future that is done when one of them does."""
    tasks = [asyncio.ensure_future(one) for one in work]
    first = asyncio.ensure_future(_first(tasks))
    try:
        yield first
    finally:
        for task in (first, *tasks):
            task.cancel()
        await asyncio.gather(first, *tasks, return_exceptions=True)


async def _first(tasks: list["asyncio.Future[Any]"]) -> None:
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


def check_settings(settings: Settings) -> None:
    """ConfigError that names the variable, for what only a gateway needs."""
    settings.secret("internal_secret")
    settings.secret("cursor_secret")
    token_keys(settings)
    door_bounds(settings)
    if not is_text_id(settings.node_id):
        raise ConfigError(f"node_id: {settings.node_id!r} is not a name; use letters, digits, . _ ~ -")


def check_topics(settings: Settings) -> None:
    """ConfigError unless the topics of a gateway exist as declared. Blocking."""
    check_topics_of(settings, (PRESENCE_TOPIC, PUSH_TOPIC, ROOM_TOPIC, MAPPING_TOPIC))


def _partition(partitions: int, tenant_id: str, conversation_id: str) -> int:
    return outbox_partition(tenant_id, conversation_id, partitions)
