"""The repair of an operator, put together from settings.

Spec: §14.4.
"""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

from qim_streams.archive.opening import open_archive_reader
from qim_streams.commit.calls import PartitionCalls
from qim_streams.commit.redis_store import RedisConversationStore
from qim_streams.mailbox.redis_store import RedisMailboxStore
from qim_streams.membership.redis_directory import RedisOrdinalDirectory
from qim_streams.membership.redis_reader import RedisMembershipReader
from qim_streams.membership.redis_store import RedisMembershipStore
from qim_streams.ownership.redis_leases import RedisLeaseStore
from qim_streams.ownership.redis_wholeness import RedisWholeness
from qim_streams.redis_tier import RedisClient, connect
from qim_streams.repair.redis_marks import RedisMarks
from qim_streams.repair.run import RepairRun, RepairTerms, Tell
from qim_streams.repair.status import RepairSources, read_status
from qim_streams.roles.recovery import HotStores, Recovery
from qim_streams.roles.tracing import partition_of
from qim_streams.script_pipe import ScriptPipe
from qim_streams.settings import Settings
from qim_streams.trace.kafka_log import KafkaLogReader


class Repairing(NamedTuple):
    """An opened repair."""

    sources: RepairSources
    recovery: Recovery
    settings: Settings

    def run(self, wait_s: float, tell: Tell) -> RepairRun:
        """A run that waits at most `wait_s` for what others do."""
        node = f"repair.{socket.gethostname()}.{os.getpid()}"
        terms = RepairTerms(node, self.settings.lease_ttl_ms, wait_s)
        return RepairRun(
            partial(read_status, self.sources), self.sources.leases, self.recovery.run, terms, tell
        )


@asynccontextmanager
async def repairing(settings: Settings) -> AsyncIterator[Repairing]:
    """The logs and stores of these settings; the partition counts must be those of the log."""
    redis = connect(settings)
    archive = open_archive_reader(settings)
    log = KafkaLogReader(settings.kafka)
    sources = RepairSources(log, RedisMarks(redis), RedisMailboxStore(redis), archive, RedisLeaseStore(redis))
    recovery = Recovery(settings, redis, hot_stores(settings, redis), archive)
    try:
        yield Repairing(sources, recovery, settings)
    finally:
        await recovery.close()
        await log.close()
        await archive.close()
        await redis.aclose()


def hot_stores(settings: Settings, redis: RedisClient) -> HotStores:
    """The stores that a recovery writes to."""
    place = partial(partition_of, settings.outbox_partitions)
    pipe = ScriptPipe(redis)
    calls = PartitionCalls(pipe)
    return HotStores(
        calls,
        RedisConversationStore(calls, settings.client_dedup_retention_s, place),
        RedisMembershipStore(redis, calls, place),
        RedisMembershipReader(redis, place),
        RedisOrdinalDirectory(redis, pipe, RedisWholeness(redis, settings.outbox_partitions)),
    )
