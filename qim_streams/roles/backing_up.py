"""Backup and restore, put together from settings.

Spec: §14.8.
"""

import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from qim_streams.archive.opening import open_archive_reader
from qim_streams.archive.ports import ArchiveReader
from qim_streams.archive.rocksdb_archive import RocksArchive
from qim_streams.archive.service import HistoryArchiver
from qim_streams.backup.kafka_rows import KafkaRows
from qim_streams.backup.redis_families import RedisFamilies
from qim_streams.backup.restoring import LEFT_OUT, Restoring
from qim_streams.backup.rocksdb_pairs import RocksPairs
from qim_streams.backup.taking import CHANGES, OUTBOX, Shape, Tell, take
from qim_streams.commit.kafka_reader import KafkaLogReader
from qim_streams.errors import ConfigError, RecordError
from qim_streams.membership.rows import decode_log_row
from qim_streams.ownership.ports import Grant
from qim_streams.ownership.redis_leases import RedisLeaseStore
from qim_streams.redis_tier import RedisClient, connect
from qim_streams.roles.recovery import Recovery
from qim_streams.roles.repairing import hot_stores
from qim_streams.roles.session_lists import compose_keeper
from qim_streams.runtime import now_ms
from qim_streams.settings import Settings
from qim_streams.streaming.doubt import die
from qim_streams.streaming.producer import LogProducer, ProducerSpec

LEASE_MS = 600_000
LEAVE_OUT_MAX = 200  # conversations in one call


def shape_of(settings: Settings) -> Shape:
    """ConfigError for an archive that has means of its own."""
    if settings.archive != "rocksdb":
        raise ConfigError(
            "QIM_ARCHIVE: cassandra: back its keyspace up with the cluster's own snapshots; `qim backup` "
            "copies the RocksDB archive only"
        )
    return Shape(
        settings.outbox_partitions,
        settings.mailbox_shards,
        settings.room_partitions,
        settings.dispatch_partitions,
    )


async def back_up(settings: Settings, directory: Path, tell: Tell) -> None:
    """Take a backup. `settings` lead to Redis with the operator's user."""
    shape = shape_of(settings)
    async with contextlib.AsyncExitStack() as opened:
        redis = connect(settings)
        opened.push_async_callback(redis.aclose)
        logs = KafkaRows(settings.kafka)
        opened.push_async_callback(logs.close)
        archive = await RocksPairs(settings.archive_dir()).open()
        opened.push_async_callback(archive.close)
        await take(directory, shape, logs, RedisFamilies(redis), archive, now_ms(), tell)


async def restore(settings: Settings, source: Path, tell: Tell, left_out: int = LEFT_OUT) -> None:
    """Restore a backup into the empty servers of `settings`; no role runs."""
    shape = shape_of(settings)
    async with contextlib.AsyncExitStack() as opened:
        redis = connect(settings)
        opened.push_async_callback(redis.aclose)
        producer = LogProducer(
            ProducerSpec(settings.kafka, "qim-restore"), on_fatal=lambda why: die(f"log producer: {why}")
        )
        await producer.start()
        opened.push_async_callback(producer.close)
        logs = KafkaRows(settings.kafka, producer)
        opened.push_async_callback(logs.close)
        recover, carry = partial(_recover, settings, redis), partial(_carry_states, settings, redis)
        await Restoring(
            source, shape, logs, RedisFamilies(redis), settings.archive_dir(), _archiver, recover, carry, tell
        ).run(left_out)


async def _archiver(directory: Path) -> tuple[HistoryArchiver, Callable[[], Awaitable[None]]]:
    archive = await RocksArchive.open(directory)
    return HistoryArchiver(OUTBOX, archive, _NoPoison(), now_ms=now_ms), archive.close


class _NoPoison:
    """What was set aside once is in the dead letters of then."""

    async def send(self, poison: object) -> None:
        """Leave it out again."""


async def _recover(settings: Settings, redis: RedisClient, partition: int, left_out: int) -> int:
    """What a writer does at a grant; then numbers are left out. How many conversations there are."""
    node, leases = f"restore.{socket.gethostname()}.{os.getpid()}", RedisLeaseStore(redis)
    grant = await leases.acquire(f"ob:{partition}", node, 1, "", LEASE_MS)
    if not isinstance(grant, Grant):
        raise ConfigError(f"ob:{partition}: {grant.node} owns it; stop every role before a restore")
    stores = hot_stores(settings, redis)
    archive = open_archive_reader(settings)
    recovery = Recovery(settings, redis, stores, archive)
    changes = KafkaLogReader(settings.kafka, CHANGES[0])
    try:
        await recovery.run(partition, grant.epoch)
        last = await _last_numbers(changes, archive, partition)
        for start in range(0, len(last), LEAVE_OUT_MAX):
            part = [(*key, seq + left_out) for key, seq in last[start : start + LEAVE_OUT_MAX]]
            await stores.conversations.leave_out(partition, grant.epoch, part)
        await recovery.proof.prove(partition, grant.epoch)
        return len(last)
    finally:
        await changes.close()
        await recovery.close()
        await archive.close()
        await leases.release([grant], node, 1)


async def _carry_states(settings: Settings, redis: RedisClient) -> int:
    """What an archiver does in the background, to the end. How many states and registrations there were."""
    archive = await RocksArchive.open(settings.archive_dir())
    try:
        keeper, count = compose_keeper(redis, archive, settings.outbox_partitions), 0
        while done := await keeper.work():
            count += done
        return count
    finally:
        await archive.close()


async def _last_numbers(
    changes: KafkaLogReader, archive: ArchiveReader, partition: int
) -> list[tuple[tuple[str, str], int]]:
    """The last archived number of every conversation that the change log names, 0 for none."""
    named: dict[tuple[str, str], None] = {}
    async for batch in changes.read(partition, 0):
        for _, key, value in batch:
            with contextlib.suppress(RecordError):  # reported by the recovery
                decode_log_row(key, value)
                tenant, chat, _ = key.decode().split("\0")
                named[tenant, chat] = None
    return [(key, await archive.latest(*key)) for key in named]
