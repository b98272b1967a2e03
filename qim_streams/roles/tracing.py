"""What a message trace reads, put together from settings: for ``qim trace``, the admin API and the demo.

Spec: §1.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from qim_streams.archive.opening import open_archive_reader
from qim_streams.commit.calls import PartitionCalls
from qim_streams.commit.redis_store import RedisConversationStore
from qim_streams.mailbox.redis_store import RedisMailboxStore
from qim_streams.membership.redis_reader import RedisMembershipReader
from qim_streams.notification.redis_queue import RedisSentTasks
from qim_streams.placement import outbox_partition
from qim_streams.redis_tier import RedisClient, connect
from qim_streams.script_pipe import ScriptPipe
from qim_streams.settings import Settings
from qim_streams.trace.kafka_log import KafkaLogReader
from qim_streams.trace.service import TraceDeps


def partition_of(partitions: int, tenant_id: str, conversation_id: str) -> int:
    """The Outbox partition of a conversation (`placement.outbox_partition` with its count first)."""
    return outbox_partition(tenant_id, conversation_id, partitions)


@asynccontextmanager
async def tracing(settings: Settings, redis: RedisClient | None = None) -> AsyncIterator[TraceDeps]:
    """The logs and stores of these settings, opened for reading. A `redis` that is given stays open."""
    client = redis or connect(settings)
    place = partial(partition_of, settings.outbox_partitions)
    log = KafkaLogReader(settings.kafka)
    archive = open_archive_reader(settings)
    try:
        yield TraceDeps(
            log=log,
            hot=RedisConversationStore(
                PartitionCalls(ScriptPipe(client)), settings.client_dedup_retention_s, place
            ),
            membership=RedisMembershipReader(client, place),
            mailboxes=RedisMailboxStore(client),
            archive=archive,
            outbox_partitions=settings.outbox_partitions,
            notified=RedisSentTasks(client) if settings.push_providers() else None,
        )
    finally:
        await log.close()
        await archive.close()
        if redis is None:
            await client.aclose()
