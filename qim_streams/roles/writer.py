"""The ConversationWriter process: composition, start and stop.

Start: boot number (proof that no other process has this name) -> stores, log producer, topics checked ->
RPC listens -> leases are taken, each partition is relayed and then served. Ready (``GET /readyz`` on the
RPC port) when a partition is served; the log names the address and each partition.

Stop: partitions are drained (no new sends, those taken are answered and confirmed), leases are released,
answers go out, the producer is flushed. Bounded in time; what is left is repaired at the next boot.

Spec: §3, §11.
"""

import asyncio
import logging
import os
import secrets
from functools import partial
from pathlib import Path

from qim_streams.archive.opening import open_archive_reader
from qim_streams.certificates import internal_server
from qim_streams.codec import RECORD_BYTES_MAX
from qim_streams.commit.admission import Admission, AdmissionLimits
from qim_streams.commit.archived_targets import ArchivedTargets
from qim_streams.commit.calls import PartitionCalls
from qim_streams.commit.clock_bound import FileClockBound, ReservedClock
from qim_streams.commit.kafka_outbox import MEMBERSHIP_TOPIC, OUTBOX_TOPIC, KafkaMembershipLog, KafkaOutbox
from qim_streams.commit.kafka_reader import KafkaLogReader
from qim_streams.commit.lane_services import LaneLimits, LaneServices
from qim_streams.commit.owned_outbox import OwnedOutbox
from qim_streams.commit.ownership import PartitionOwnership
from qim_streams.commit.redis_store import RedisConversationStore
from qim_streams.commit.relay import OutboxRelay
from qim_streams.commit.requests import Windows
from qim_streams.commit.rpc_server import RpcServer
from qim_streams.commit.snapshots import MemberSnapshots
from qim_streams.commit.writer import ConversationWriter, WriterLimits, resource_of
from qim_streams.errors import ConfigError
from qim_streams.limits import MEMBERSHIP_VERSION_RETENTION_MS
from qim_streams.membership.changes import ChangeWriter, GroupLimits, Surroundings
from qim_streams.membership.direct import DirectChatMaker
from qim_streams.membership.redis_directory import RedisOrdinalDirectory
from qim_streams.membership.redis_reader import RedisMembershipReader
from qim_streams.membership.redis_store import RedisMembershipStore
from qim_streams.membership.service import GroupService
from qim_streams.ownership.boot import Boot
from qim_streams.ownership.keeper import Claimant
from qim_streams.ownership.ports import Grant
from qim_streams.ownership.redis_leases import RedisLeaseStore
from qim_streams.ownership.redis_wholeness import RedisWholeness
from qim_streams.placement import outbox_partition
from qim_streams.quotas.buckets import TenantQuotas
from qim_streams.quotas.redis_quotas import RedisQuotas
from qim_streams.quotas.service import QuotaKeeper
from qim_streams.readiness import StoreWatch
from qim_streams.redis_tier import RedisClient, connect
from qim_streams.roles.health import REDIS, asks_redis
from qim_streams.roles.recovery import HotStores, Recovery
from qim_streams.roles.serving import check_node, check_topics_of, listen, own_until
from qim_streams.roles.spans import compose_spans
from qim_streams.runtime import now_ms
from qim_streams.script_pipe import ScriptPipe
from qim_streams.settings import Settings
from qim_streams.streaming.doubt import die
from qim_streams.streaming.producer import LogProducer, ProducerSpec
from qim_streams.tls import CertificateWatch

log = logging.getLogger(__name__)

# Together below the supervisor's grace of 15 s: what is left undone is repaired at the next boot.
DRAIN_TIMEOUT_S, FLUSH_TIMEOUT_S = 5.0, 3.0
RECORD_OVERHEAD_BYTES = 32 * 1024  # of an Outbox record beside the body: ids, names, members
TOKEN_BYTES = 16


async def run_writer(settings: Settings, stop: asyncio.Event) -> None:
    """Run one writer until `stop` is set. ConfigError when it cannot start."""
    check_settings(settings)
    name = f"writer.{settings.node_id}.{settings.worker_slot}"
    boot = Boot.take(settings.state_dir, name)
    log.info("%s boot %d, pid %d", name, boot.number, os.getpid())
    await asyncio.to_thread(check_topics, settings)
    redis = connect(settings)
    producer = LogProducer(
        ProducerSpec(settings.kafka, name, message_timeout_ms=settings.produce_timeout_ms),
        on_fatal=lambda why: die(f"log producer: {why}"),
    )
    await producer.start()
    claims = Claims(name, boot.number)
    parts = _Parts(settings, redis, producer, claims)
    try:
        if parts.spans is not None:
            await parts.spans.start()
        await _serve(settings, parts, claims, stop)
    finally:
        await parts.recovery.close()
        await parts.log_reader.close()
        await parts.archive.close()
        await producer.close(FLUSH_TIMEOUT_S)
        await redis.aclose()
        if parts.spans is not None:
            await parts.spans.close()
    await parts.clock.close()
    boot.release()
    log.info("%s stopped", name)


class Claims:
    """Name and boot number, to which an address is added once it is known."""

    def __init__(self, name: str, boot: int) -> None:
        self.name, self.boot = name, boot

    def at(self, address: str) -> Claimant:
        """The claimant of leases."""
        return Claimant(self.name, self.boot, address)


class _Parts:
    """Everything of one writer process, put together."""

    def __init__(
        self, settings: Settings, redis: RedisClient, producer: LogProducer, claims: "Claims"
    ) -> None:
        self._claims = claims
        self.spans = compose_spans(settings, "writer")
        partition_of = partial(_partition, settings.outbox_partitions)
        pipe = ScriptPipe(redis)
        calls = PartitionCalls(pipe)
        store = RedisConversationStore(calls, settings.client_dedup_retention_s, partition_of)
        reader = RedisMembershipReader(redis, partition_of)
        wholeness = RedisWholeness(redis, settings.outbox_partitions)
        directory = RedisOrdinalDirectory(redis, pipe, wholeness)
        membership = RedisMembershipStore(redis, calls, partition_of)
        change_log = KafkaMembershipLog(producer, partition_of)
        self.partition_of = partition_of
        self.log_reader = KafkaLogReader(settings.kafka, OUTBOX_TOPIC)
        outbox = OwnedOutbox(KafkaOutbox(producer), self.log_reader, die)
        self.archive = open_archive_reader(settings)
        self.recovery = Recovery(
            settings, redis, HotStores(calls, store, membership, reader, directory), self.archive
        )
        self.leases = RedisLeaseStore(redis)
        self.snapshots = MemberSnapshots(reader)
        self.clock = ReservedClock(
            FileClockBound(_clock_file(settings)), int.from_bytes(secrets.token_bytes(8), "big"), now_ms
        )
        limits = GroupLimits(
            settings.mailbox_shards, settings.group_members_max, MEMBERSHIP_VERSION_RETENTION_MS
        )
        around = Surroundings(now_ms, partial(secrets.token_bytes, TOKEN_BYTES), die)
        self.changes = ChangeWriter(membership, reader, change_log, limits, around)
        self.groups = GroupService(membership, directory, self.changes)
        self.hot_tier = StoreWatch(REDIS, asks_redis(redis))
        self.quotas = TenantQuotas(settings.tenant_fanout_quota, settings.tenant_fanout_burst_s)
        self.quota_keeper = QuotaKeeper(self.quotas, RedisQuotas(redis), now_ms)
        self.services = LaneServices(
            store=store,
            outbox=outbox,
            repair=self.recovery.repair,
            replay=self.recovery.replay,
            seats=self.recovery.seats,
            proof=self.recovery.proof,
            relay=OutboxRelay(store, outbox, die),
            clock=self.clock,
            direct=DirectChatMaker(self.changes, directory, self.snapshots.put),
            snapshots=self.snapshots,
            admission=Admission(admission_limits(settings), self.quotas),
            now_ms=now_ms,
            on_doubt=die,
            targets=ArchivedTargets(self.archive),
            windows=windows_of(settings),
            raise_epoch=self._raise_epoch,
            spans=self.spans,
        )

    async def _raise_epoch(self, partition: int, epoch: int, above: int) -> None:
        """The store gives out an epoch that the Outbox has seen: it came back from an old copy."""
        log.error(
            "P1 ob:%d: epoch %d was given, and the Outbox knows %d: going above", partition, epoch, above
        )
        grant = Grant(resource_of(partition), epoch)
        await self.leases.raise_epoch(grant, self._claims.name, self._claims.boot, above)


async def _serve(settings: Settings, parts: _Parts, claims: Claims, stop: asyncio.Event) -> None:
    owner: list[PartitionOwnership] = []  # known only once the port is
    writer = ConversationWriter(
        parts.services,
        WriterLimits(settings.writer_queue_max, lane=LaneLimits(group_max=settings.commit_group_max)),
        parts.partition_of,
        on_fenced=lambda partition, epoch: owner[0].fenced(partition, epoch),
    )
    server = RpcServer(writer, parts.groups, settings.secret("internal_secret"), die)
    watch = CertificateWatch(settings.tls_reload_s)
    server.tls = internal_server(settings, watch)
    port = await listen(server.start, "writer", settings.writer_host, settings.writer_port)
    address = f"{settings.writer_advertised_host or settings.writer_host}:{port}"
    ownership = PartitionOwnership(
        parts.leases,
        claims.at(address),
        settings.outbox_partitions,
        ttl_ms=settings.lease_ttl_ms,
        renew_ms=settings.lease_renew_ms,
        settle=parts.changes.settle_all,
        prove=parts.recovery.proof.prove,
    )
    owner.append(ownership)
    server.stands_by = lambda: ownership.stands_by
    log.info("listening on %s", address)
    owning = asyncio.create_task(ownership.run(writer), name="ownership")
    server.more_reasons = parts.hot_tier.reasons
    keeping = [
        asyncio.create_task(parts.quota_keeper.run(), name="quota-keeper"),
        asyncio.create_task(parts.hot_tier.run(), name="store-watch"),
        asyncio.create_task(watch.run(), name="certificates"),
    ]
    for task in keeping:
        task.add_done_callback(_ended)
    await own_until(stop, owning, "partitions")
    await ownership.close(writer, DRAIN_TIMEOUT_S)
    for task in keeping:
        task.cancel()
    await asyncio.wait(keeping)
    await server.close()


def _ended(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        die(f"{task.get_name()} ended", task.exception())


def _partition(partitions: int, tenant_id: str, conversation_id: str) -> int:
    return outbox_partition(tenant_id, conversation_id, partitions)


def _clock_file(settings: Settings) -> Path:
    return settings.state_dir / "clock" / f"writer.{settings.node_id}.{settings.worker_slot}.bound"


def admission_limits(settings: Settings) -> AdmissionLimits:
    """The bounds of single messages, senders and conversations."""
    return AdmissionLimits(
        settings.message_body_bytes_max,
        settings.large_group_members,
        settings.per_sender_in_conversation_interval_ms,
        settings.conversation_rate_per_s,
        settings.conversation_burst_ms,
    )


def windows_of(settings: Settings) -> Windows:
    """How long messages may be changed; the settings are in seconds, -1 for ever."""
    seconds = settings.edit_window_s, settings.recall_window_s, settings.recall_window_admin_s
    return Windows(*(one if one < 0 else one * 1_000 for one in seconds))


def check_settings(settings: Settings) -> None:
    """ConfigError for what only a writer minds."""
    check_node(settings, "writer", settings.writer_host, settings.writer_advertised_host, "writer")
    if settings.message_body_bytes_max + RECORD_OVERHEAD_BYTES > RECORD_BYTES_MAX:
        raise ConfigError(
            f"message_body_bytes_max: a log record of {RECORD_BYTES_MAX} bytes holds a body of at most "
            f"{RECORD_BYTES_MAX - RECORD_OVERHEAD_BYTES}; lower it"
        )


def check_topics(settings: Settings) -> None:
    """ConfigError when a topic that a writer appends to is not as declared. Blocking."""
    check_topics_of(settings, (OUTBOX_TOPIC, MEMBERSHIP_TOPIC))
