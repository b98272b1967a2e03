"""A split, put together from settings: the logs and the hot tier as `sharding.operation` needs them.

Spec: §11.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from qim_streams.kafka_access import Brokers
from qim_streams.mailbox import watermark as rule
from qim_streams.mailbox.redis_store import RedisMailboxStore
from qim_streams.ownership.redis_leases import RedisLeaseStore
from qim_streams.redis_tier import RedisClient, connect, translated
from qim_streams.settings import Settings
from qim_streams.sharding.follower import Mappings
from qim_streams.sharding.kafka_mapping import CLIENT_ID, KafkaMappingLog
from qim_streams.sharding.marker import MARKER_KEY, encode_marker, marked_version
from qim_streams.sharding.operation import SplitOperation
from qim_streams.streaming.appender import Appender
from qim_streams.trace.kafka_log import KafkaLogReader
from qim_streams.trace.ports import LogEntry, LogReader
from qim_streams.trace.progress import FAR_FUTURE_MS, NOTHING, fanout_pages
from qim_streams.trace.service import DISPATCH, OUTBOX

ENTRIES_MAX = 10_000_000  # of the Outbox behind a split's beginning; a run that died is gone on with soon


class PipelineLogs:
    """`SplitLogs` on Kafka."""

    def __init__(self, brokers: Brokers, log: LogReader, appender: Appender | None = None) -> None:
        self._log = log
        self._appender = appender if appender is not None else Appender(brokers, CLIENT_ID)

    async def outbox_ends(self) -> list[int]:
        """See the port."""
        return await self._ends(OUTBOX)

    async def dispatch_ends(self) -> list[int]:
        """See the port."""
        return await self._ends(DISPATCH)

    async def dispatched(self) -> list[int]:
        """See the port."""
        partitions = list(range(await self._log.partitions(OUTBOX)))
        pages = await fanout_pages(self._log, partitions)
        return [pages[one].dispatched_through if one in pages else NOTHING for one in partitions]

    async def find_markers(self, starts: Sequence[int], version: int) -> list[int | None]:
        """See the port."""
        found: dict[int, int] = {}

        def visit(entry: LogEntry) -> bool:
            if marked_version(entry.key, entry.value) == version:
                found.setdefault(entry.partition, entry.offset)
            return entry.partition in found

        await self._log.scan(OUTBOX, dict(enumerate(starts)), visit, ENTRIES_MAX)
        return [found.get(one) for one in range(len(starts))]

    async def append_marker(self, partition: int, version: int) -> int:
        """See the port."""
        value = encode_marker(version)
        return await asyncio.to_thread(self._appender.append, OUTBOX, partition, MARKER_KEY, value)

    async def _ends(self, topic: str) -> list[int]:
        partitions = list(range(await self._log.partitions(topic)))
        ends = await self._log.offsets_at(topic, partitions, FAR_FUTURE_MS)
        return [ends[one] for one in partitions]


class HotTier:
    """`SplitStores` on Redis."""

    def __init__(self, redis: RedisClient) -> None:
        self._redis = redis
        self._mailboxes, self._leases = RedisMailboxStore(redis), RedisLeaseStore(redis)

    async def coverage(self, shards: Sequence[int]) -> list[int]:
        """See the port."""
        return [rule.coverage(state.lanes) for state in await self._mailboxes.watermarks(shards)]

    async def unserved(self, shards: Sequence[int]) -> list[int]:
        """See the port."""
        holders = await self._leases.holders([f"s:{shard}" for shard in shards])
        return [shard for shard, holder in zip(shards, holders, strict=True) if holder is None]

    async def sizes(self, shards: Sequence[int]) -> list[int]:
        """See the port."""
        async with translated("mailboxes"):
            pipe = self._redis.pipeline(transaction=False)
            for shard in shards:
                pipe.zcard(f"{{s:{shard}}}:oldest")
            return [int(count) for count in await pipe.execute()]


class Splitting(NamedTuple):
    """An opened operation, and what it works with."""

    operation: SplitOperation
    mappings: Mappings
    logs: PipelineLogs
    stores: HotTier


@asynccontextmanager
async def splitting(settings: Settings, log: KafkaLogReader) -> AsyncIterator[Splitting]:
    """The operation on the logs and stores of these settings. `log` stays the caller's."""
    redis = connect(settings)
    appender = Appender(settings.kafka, CLIENT_ID)
    mapping_log = KafkaMappingLog(settings.kafka, appender)
    mappings = Mappings(settings.mailbox_shards, mapping_log)
    logs, stores = PipelineLogs(settings.kafka, log, appender), HotTier(redis)
    try:
        yield Splitting(SplitOperation(mappings, mapping_log, logs, stores), mappings, logs, stores)
    finally:
        await mapping_log.close()
        await redis.aclose()
