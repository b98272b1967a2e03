"""What the console shows, put together from settings: for the admin API.

Spec: §11, §13.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from qim_streams.archive.tiers import HotThenArchive
from qim_streams.certificates import link_tls
from qim_streams.commit.calls import PartitionCalls
from qim_streams.console.dead_letters import DeadLetters
from qim_streams.console.directory import Directory
from qim_streams.console.kafka_groups import KafkaStageLog
from qim_streams.console.kafka_letters import KafkaLetterLog
from qim_streams.console.redis_index import RedisConversationIndex, RedisUserIndex
from qim_streams.console.redis_letters import RedisLetterMarks
from qim_streams.console.services import ConsoleDeps
from qim_streams.console.shard_map import ShardMap
from qim_streams.console.topology import Stage, Topology
from qim_streams.console.worker_tables import WorkerTables
from qim_streams.console.worker_views import HttpPages, ask_workers, worker_urls
from qim_streams.mailbox.redis_store import RedisMailboxStore
from qim_streams.membership.redis_store import RedisMembershipStore
from qim_streams.ownership.redis_leases import RedisLeaseStore
from qim_streams.presence.redis_book import RedisPresenceBook
from qim_streams.redis_tier import RedisClient
from qim_streams.roles.session_lists import compose_list_reader
from qim_streams.roles.splitting import HotTier, PipelineLogs
from qim_streams.roles.tracing import partition_of
from qim_streams.roles.webhook import SOURCES
from qim_streams.runtime import now_ms
from qim_streams.script_pipe import ScriptPipe
from qim_streams.settings import Settings
from qim_streams.sharding.follower import Mappings
from qim_streams.sharding.kafka_mapping import KafkaMappingLog
from qim_streams.sharding.mailboxes import WholeMailboxes
from qim_streams.streaming.spec import GROUP_PREFIX
from qim_streams.sync.redis_boundaries import RedisEpochBoundaries
from qim_streams.trace.kafka_log import KafkaLogReader
from qim_streams.trace.service import TraceDeps
from qim_streams.webhooks.endpoints import load_webhooks

OUTBOX, DISPATCH, PUSH, TASKS, ROOMS = (
    "qim.outbox.v1", "qim.dispatch.v1", "qim.push.v1", "qim.push-task.v1", "qim.room.v1",
)  # fmt: skip


def stages_of(settings: Settings) -> list[Stage]:
    """The stages that this deployment has, in the order of a message's way."""
    stages = [
        Stage("gateway", "Gateway", "gateway", (PUSH,), lease="cs", idle_ok=True),
        Stage("writer", "Writer", "writer", (OUTBOX,), lease="ob"),
        _group_stage("fanout", "Fan-out", "fanout-coordinator", OUTBOX),
        _group_stage("mailbox", "Mailbox", "mailbox-node", DISPATCH, lease="s"),
        _group_stage("archiver", "Archiver", "history-archiver", OUTBOX),
    ]
    if settings.session_projection == "qsession":
        stages.append(_group_stage("qsession", "Session lists", "qsession", DISPATCH))
    if settings.push_providers():
        stages.append(_group_stage("notification", "Notification", "notification", TASKS))
    for endpoint in load_webhooks(settings.webhooks_file).endpoints:
        role = f"webhook-{endpoint.name}"
        topics = tuple(dict.fromkeys(SOURCES[name][0] for name in endpoint.events))
        stages.append(Stage(role, f"Webhook {endpoint.name}", role, topics, group=GROUP_PREFIX + role))
    stages.append(Stage("rooms", "Rooms", "rooms", (ROOMS,), lease="rm"))
    return stages


def _group_stage(name: str, title: str, role: str, topic: str, lease: str | None = None) -> Stage:
    return Stage(name, title, role, (topic,), group=GROUP_PREFIX + role, lease=lease)


@asynccontextmanager
async def console(
    settings: Settings, redis: RedisClient, trace: TraceDeps
) -> AsyncIterator[ConsoleDeps | None]:
    """What the console's routes need, opened; None where the console is switched off.

    The logs are read by a connection of its own: what an operator looks at waits for no trace.
    """
    if not settings.console_enabled:
        yield None
        return
    stage_log, reader = KafkaStageLog(settings.kafka), KafkaLogReader(settings.kafka)
    tls = link_tls(settings)
    mapping_log, pages = KafkaMappingLog(settings.kafka), HttpPages(None if tls is None else tls.context)
    mappings = Mappings(settings.mailbox_shards, mapping_log)
    urls = worker_urls(settings.console_workers)
    leases = RedisLeaseStore(redis)
    try:
        yield ConsoleDeps(
            topology=Topology(
                stages_of(settings),
                stage_log,
                leases.holders,
                pages,
                partial(ask_workers, pages, urls),
                behind_max_s=settings.ready_lag_s,
                secure=tls is not None,
                clock=time.monotonic,
                now_ms=now_ms,
            ),
            gateways=_gateways(leases, settings.connection_shards),
            tables=WorkerTables(pages, urls),
            shards=_shard_map(settings, redis, mappings, leases, reader),
            directory=_directory(settings, redis, mappings, trace),
            letters=DeadLetters(KafkaLetterLog(settings.kafka, reader), RedisLetterMarks(redis), now_ms),
        )
    finally:
        await stage_log.close()
        await reader.close()
        await mapping_log.close()
        await pages.close()


def _gateways(leases: RedisLeaseStore, shards: int) -> Callable[[], Awaitable[list[str]]]:
    async def urls() -> list[str]:
        holders = await leases.holders([f"cs:{shard}" for shard in range(shards)])
        return sorted({holder.address for holder in holders if holder is not None})

    return urls


def _shard_map(
    settings: Settings,
    redis: RedisClient,
    mappings: Mappings,
    leases: RedisLeaseStore,
    reader: KafkaLogReader,
) -> ShardMap:
    counts = {
        "ob": settings.outbox_partitions,
        "s": settings.dispatch_partitions,
        "cs": settings.connection_shards,
        "rm": settings.room_partitions,
    }
    return ShardMap(
        mappings.load,
        PipelineLogs(settings.kafka, reader),
        HotTier(redis),
        RedisMailboxStore(redis),
        leases.holders,
        RedisEpochBoundaries(redis),
        counts,
    )


def _directory(settings: Settings, redis: RedisClient, mappings: Mappings, trace: TraceDeps) -> Directory:
    place = partial(partition_of, settings.outbox_partitions)
    archive: Any = trace.archive  # what `open_archive_reader` gave: reads states as well
    store = RedisMembershipStore(redis, PartitionCalls(ScriptPipe(redis)), place)
    return Directory(
        RedisUserIndex(redis),
        RedisConversationIndex(redis, settings.outbox_partitions, lambda: store),
        HotThenArchive(trace.hot, trace.archive),
        RedisPresenceBook(redis),
        compose_list_reader(redis, archive, place, mappings),
        WholeMailboxes(RedisMailboxStore(redis), mappings),
        mappings.load,
        now_ms,
    )
