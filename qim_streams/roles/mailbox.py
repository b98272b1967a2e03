"""The MailboxNode role: from settings to a Faust worker that writes mailboxes, moves W and pushes.

Spec: §5, §6, §11.
"""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from faust.types import TP

from qim_streams.archive.opening import open_archive_reader
from qim_streams.archive.ports import ArchiveReader
from qim_streams.archive.tiers import HotThenArchive
from qim_streams.commit.calls import PartitionCalls
from qim_streams.commit.redis_store import RedisConversationStore
from qim_streams.mailbox import metrics
from qim_streams.mailbox.floors import WatermarkFloors
from qim_streams.mailbox.given_up import AVOID_TIMES, GivenUp, somebody_else, stay_away_s
from qim_streams.mailbox.members import MemberBitmaps
from qim_streams.mailbox.ports import MailboxStore
from qim_streams.mailbox.progress import DispatchProgress
from qim_streams.mailbox.redis_store import RedisMailboxStore
from qim_streams.mailbox.redis_trim import RedisAgedMailboxes
from qim_streams.mailbox.service import MailboxMaterialiser
from qim_streams.mailbox.shards import LeaseTerms, ShardLeases, resource
from qim_streams.mailbox.slices import SliceTerms
from qim_streams.mailbox.stall import LaneStall
from qim_streams.mailbox.trim_pass import MailboxTrimmer
from qim_streams.membership.redis_reader import RedisMembershipReader
from qim_streams.ownership.boot import Boot
from qim_streams.ownership.ports import LeaseStore
from qim_streams.ownership.redis_leases import RedisLeaseStore
from qim_streams.push.bodies import CommonBodies
from qim_streams.push.presence import OnlineDevices
from qim_streams.push.presence_follower import PresenceFollower
from qim_streams.push.service import PushStage
from qim_streams.redis_tier import RedisClient, connect
from qim_streams.roles.health import watch_redis
from qim_streams.roles.hot_tier import kept_intervals
from qim_streams.roles.log import StreamAppender
from qim_streams.roles.offline import compose_offline
from qim_streams.roles.poison import PoisonLetters
from qim_streams.roles.session_tail import compose_tail
from qim_streams.roles.spans import compose_spans
from qim_streams.roles.tracing import partition_of
from qim_streams.runtime import now_ms, settle_stage
from qim_streams.script_pipe import ScriptPipe
from qim_streams.sessions.tail_compactor import TailCompactor
from qim_streams.settings import Settings, load_settings
from qim_streams.sharding.follower import Mappings
from qim_streams.sharding.kafka_mapping import KafkaMappingLog
from qim_streams.sharding.stage import OriginalPoison, ShiftedStage, shifted_offset
from qim_streams.streaming import topics
from qim_streams.streaming.app import StreamApp, build_app
from qim_streams.streaming.dead_letter import DEAD_LETTER_TOPIC, DeadLetterSink
from qim_streams.streaming.doubt import die
from qim_streams.streaming.lanes import PartitionLanes
from qim_streams.streaming.source import served_by
from qim_streams.streaming.spec import AppSpec
from qim_streams.streaming.table import AckedTable
from qim_streams.streaming.web import add_standard_pages
from tables import dispatch_progress, lane_watermarks, presence
from tables.views import add_table_views

log = logging.getLogger(__name__)

ROLE = "mailbox-node"
DISPATCH_TOPIC, PRESENCE_TOPIC, PUSH_TOPIC = "qim.dispatch.v1", "qim.presence.v1", "qim.push.v1"


class MailboxWorker(NamedTuple):
    """A worker ready to be run by Faust."""

    app: StreamApp
    lanes: PartitionLanes
    progress: AckedTable
    watermarks: AckedTable


class _MailboxRole:
    """The service between taking the worker's name and giving everything up."""

    def __init__(
        self, settings: Settings, app: StreamApp, progress: AckedTable, watermarks: AckedTable
    ) -> None:
        self._settings, self._app = settings, app
        self._progress, self._watermarks = progress, watermarks
        self._name = f"mailbox.{settings.node_id}.{settings.worker_slot}"
        self._boot: Boot | None = None
        self._redis: RedisClient | None = None
        self._archive: ArchiveReader | None = None
        self._pusher: PushStage | None = None
        self._trimmer: MailboxTrimmer | None = None
        self._stall: LaneStall | None = None
        self._service: MailboxMaterialiser | None = None
        self._mapping_log = KafkaMappingLog(settings.kafka)
        self.mappings = Mappings(settings.mailbox_shards, self._mapping_log)
        self._tail: TailCompactor | None = None
        self._spans = compose_spans(settings, "mailbox")

    async def open(self) -> None:
        """Take the boot number and connect; ConfigError when the name is in use."""
        settings = self._settings
        settle_stage()
        if self._spans is not None:
            await self._spans.start()
        self._boot = Boot.take(settings.state_dir, self._name)
        self._redis = connect(settings)
        self._archive = open_archive_reader(settings)
        place = partial(partition_of, settings.outbox_partitions)
        leases = RedisLeaseStore(self._redis)
        store = RedisMailboxStore(self._redis, mailbox_entries_max=settings.mailbox_entries_max)
        terms = LeaseTerms(
            self._name, self._boot.number, self._name, settings.lease_ttl_ms, settings.lease_renew_ms
        )
        messages = RedisConversationStore(
            PartitionCalls(ScriptPipe(self._redis)), settings.client_dedup_retention_s, place
        )
        floors = WatermarkFloors(self._watermarks)
        shards = ShardLeases(leases, store, terms, die, floors.epoch)
        self._trimmer = MailboxTrimmer(
            shards.served,
            RedisAgedMailboxes(self._redis),
            retention_ms=settings.mailbox_retention_s * 1000,
            now_ms=now_ms,
            die=die,
        )
        self._pusher = PushStage(
            PUSH_TOPIC,
            connection_shards=settings.connection_shards,
            log_appender=StreamAppender(self._app.log_producer),
            bodies=CommonBodies(HotThenArchive(messages, self._archive), settings.body_cache_max),
            leases=leases,
            follower=PresenceFollower(settings.kafka, PRESENCE_TOPIC, f"{self._name}-presence"),
            die=die,
            offline=compose_offline(settings, self._app.log_producer, self._name, self.mappings),
            spans=self._spans,
        )
        members = MemberBitmaps(
            RedisMembershipReader(self._redis, place),
            settings.bitmap_cache_max,
            kept_intervals(settings, self._redis),
            self.mappings,
        )
        if settings.session_projection == "mailbox":
            self._tail = compose_tail(settings, self._redis, members)
        letters = topics.load().resolve_for(settings)[DEAD_LETTER_TOPIC].partitions
        self._service = MailboxMaterialiser(
            DISPATCH_TOPIC,
            store=store,
            leases=shards,
            progress=DispatchProgress(self._progress, settings.dispatch_progress_retention_s * 1000),
            floors=floors,
            members=members,
            poison=OriginalPoison(
                PoisonLetters(DeadLetterSink(self._app.log_producer, ROLE, letters, now_ms))
            ),
            pusher=self._pusher,
            log_end=shifted_offset(self.mappings, self._log_end),
            log_begin=shifted_offset(self.mappings, self._log_begin),
            now_ms=now_ms,
            entries_max=settings.mailbox_writebatch_max_entries,
            slicing=slice_terms(settings),
            tail=self._tail,
            spans=self._spans,
        )
        await self._watch_lanes(leases, shards, store)
        self._trimmer.start()

    async def _watch_lanes(self, leases: LeaseStore, shards: ShardLeases, store: MailboxStore) -> None:
        """Look after lanes that stand still, once what the last life gave up has gone to others."""
        failover_s = self._settings.lane_stall_failover_s
        given_up = GivenUp(self._settings.state_dir, AVOID_TIMES * failover_s, now_ms)
        await self._stay_away(given_up, leases)
        self._stall = LaneStall(shards, store, failover_s, given_up)
        self._stall.start()

    async def _stay_away(self, given_up: GivenUp, leases: LeaseStore) -> None:
        """Let others have what this worker's last life gave up, if there are others.

        The group keeps a static member's partitions for it until its session is over, so it has to be.
        """
        settings, notes = self._settings, await asyncio.to_thread(given_up.read)
        if not notes:
            return
        everything = [resource(shard) for shard in range(settings.dispatch_partitions)]
        if not somebody_else(await leases.holders(everything), self._name):
            metrics.ALARMS.labels("lane_stall_nobody_else").inc()
            log.error(
                "P1 lane stall: shards %s come back to the worker that gave them up, nobody else serves any: "
                "start another mailbox worker, or mend what holds the lane",
                sorted(notes),
            )
            return
        self._app.avoided = {shard: note.until_ms // 1000 for shard, note in notes.items()}
        wait_s = stay_away_s(notes.values(), now_ms(), settings.stream_session_timeout_ms / 1000)
        log.warning("shards %s were given up: joining in %.1f s, without them", sorted(notes), wait_s)
        await asyncio.sleep(wait_s)

    async def close(self) -> None:
        """Give leases, connections and the name up."""
        for watch in (self._stall, self._trimmer):
            if watch is not None:
                await watch.close()
        if self._service is not None:
            await self._service.close()
        if self._tail is not None:
            await self._tail.close()
        if self._pusher is not None:
            await self._pusher.close()
        if self._archive is not None:
            await self._archive.close()
        await self._mapping_log.close()
        if self._redis is not None:
            await self._redis.aclose()
        if self._spans is not None:
            await self._spans.close()
        if self._boot is not None:
            self._boot.release()

    def online(self) -> Mapping[int, OnlineDevices]:
        """The devices of each shard that is served here; none before it was opened."""
        return {} if self._pusher is None else self._pusher.online()

    @property
    def service(self) -> MailboxMaterialiser:
        """The service; it exists before the worker joins its group."""
        assert self._service is not None, "asked for work before it was opened"
        return self._service

    async def _log_begin(self, shard: int) -> int:
        place = TP(DISPATCH_TOPIC, shard)
        return int((await self._app.consumer.log_ranges([place]))[place].begin)

    async def _log_end(self, shard: int) -> int:
        place = TP(DISPATCH_TOPIC, shard)
        ends = await self._app.consumer.highwaters(place)
        return int(ends[place])


def slice_terms(settings: Settings) -> SliceTerms:
    """What is written in slices, by these settings."""
    wait_s = settings.mailbox_slice_wait_ms / 1000
    return SliceTerms(settings.mailbox_large_record_entries, settings.mailbox_slice_entries, wait_s)


def build_mailbox(settings: Settings | None = None) -> MailboxWorker:
    """The worker of these settings (default: the environment's). Opens nothing before it is started."""
    settings = settings or load_settings()
    app = build_app(AppSpec.from_settings(settings, ROLE, [DISPATCH_TOPIC], topics.load()))
    shards = settings.dispatch_partitions
    progress, watermarks = dispatch_progress.declare(app, shards), lane_watermarks.declare(app, shards)
    role = _MailboxRole(settings, app, progress, watermarks)
    app.add_resource(role.open, role.close)

    stage = ShiftedStage(role.mappings, lambda: role.service)
    lanes = app.add_source(DISPATCH_TOPIC, served_by(lambda: stage))
    add_standard_pages(app)
    add_table_views(
        app, [(dispatch_progress.VIEW, progress, shards), (lane_watermarks.VIEW, watermarks, shards)]
    )
    presence.add_presence_view(app, role)
    watch_redis(app, settings)
    return MailboxWorker(app, lanes, progress, watermarks)
