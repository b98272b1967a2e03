"""The qsession role: from settings to a Faust worker that keeps the rows of session lists.

A consumer group of its own on the dispatch log, so nothing here can hold back fan-out, mailboxes or pushes:
it appends to no log, and where cores are short it comes after the stages that users wait for.

Spec: §9.
"""

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from faust.types import TP

from qim_streams.errors import ConfigError, InvariantViolation, StoreError, StoreUnavailable
from qim_streams.mailbox import watermark as rule
from qim_streams.mailbox.members import MemberBitmaps
from qim_streams.mailbox.redis_store import RedisMailboxStore
from qim_streams.membership.redis_reader import RedisMembershipReader
from qim_streams.redis_tier import RedisClient, connect, translated
from qim_streams.roles.health import watch_redis
from qim_streams.roles.hot_tier import kept_intervals
from qim_streams.roles.tracing import partition_of
from qim_streams.runtime import now_ms, settle_stage
from qim_streams.sessions.projection import SessionProjection
from qim_streams.sessions.redis_projection import RedisProjection
from qim_streams.settings import Settings, load_settings
from qim_streams.sharding.follower import Mappings
from qim_streams.sharding.kafka_mapping import KafkaMappingLog
from qim_streams.sharding.stage import ShiftedStage
from qim_streams.streaming import topics
from qim_streams.streaming.app import StreamApp, build_app
from qim_streams.streaming.doubt import die
from qim_streams.streaming.lanes import PartitionLanes
from qim_streams.streaming.source import served_by
from qim_streams.streaming.spec import AppSpec
from qim_streams.streaming.web import Page, add_page, add_standard_pages

log = logging.getLogger(__name__)

ROLE = "qsession"
DISPATCH_TOPIC = "qim.dispatch.v1"
# A list that is a tenth of a second behind is not seen by anybody; a fetch per message would cost a core.
# The bytes are below what a fetch brings of one partition at most (1 MB): a backlog must never wait for more.
FETCH_BYTES: Final = 768 * 1024
FETCH_WAIT_MS: Final = 100
BATCH_RECORDS_MAX: Final = 4_000
COMPARE_S: Final = 3.0


class QsessionWorker(NamedTuple):
    """A worker ready to be run by Faust."""

    app: StreamApp
    lanes: PartitionLanes


class _QsessionRole:
    """The projection between the opening and the closing of its store."""

    def __init__(self, settings: Settings, app: StreamApp) -> None:
        self._settings, self._app = settings, app
        self._redis: RedisClient | None = None
        self._store: RedisProjection | None = None
        self._service: SessionProjection | None = None
        self._mailboxes: RedisMailboxStore | None = None
        self._mapping_log = KafkaMappingLog(settings.kafka)
        self.mappings = Mappings(settings.mailbox_shards, self._mapping_log)
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect; StoreUnavailable when the hot tier does not answer."""
        if self._settings.session_projection != ROLE:
            raise ConfigError(
                "session_projection: the mailbox workers keep session lists; set "
                "QIM_SESSION_PROJECTION=qsession for all workers, or do not start this role"
            )
        settle_stage(gives_way=True)
        settings = self._settings
        self._redis = connect(settings)
        async with translated():
            await self._redis.ping()
        self._store = RedisProjection(self._redis)
        reader = RedisMembershipReader(self._redis, partial(partition_of, settings.outbox_partitions))
        self._mailboxes = RedisMailboxStore(self._redis)
        self._service = SessionProjection(
            store=self._store,
            reader=reader,
            members=MemberBitmaps(
                reader, settings.bitmap_cache_max, kept_intervals(settings, self._redis), self.mappings
            ),
            watermark=self._watermark,
            log_range=self._log_range,
            now_ms=now_ms,
            wide_above=settings.session_rows_per_dispatch_max,
            die=die,
        )
        self._watching = asyncio.create_task(self._watch(), name="projection-watch")

    async def close(self) -> None:
        """Stop the background work and disconnect."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        if self._service is not None:
            await self._service.close()
        await self._mapping_log.close()
        if self._redis is not None:
            await self._redis.aclose()

    @property
    def service(self) -> SessionProjection:
        """The service; it exists before the worker joins its group."""
        if self._service is None:
            raise InvariantViolation("qsession was asked for work before its store was opened")
        return self._service

    async def standing(self, shards: int) -> Page:
        """The checkpoint of every shard, for the web view."""
        if self._store is None:
            return Page({"error": "the projection is not open yet"}, 503)
        try:
            found = await self._store.checkpoints(range(shards))
        except StoreError as error:
            return Page({"error": str(error)}, 503)
        rows = [None if one is None else {**one._asdict(), "caught_up": one.caught_up} for one in found]
        return Page({"shards": rows})

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(COMPARE_S)
            try:
                await self.service.compare()
            except StoreUnavailable as error:
                log.warning("checkpoints cannot be compared: %s", error)
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody watches the store any more
                die("watching the projection failed", error)

    async def _watermark(self, shard: int) -> int:
        assert self._mailboxes is not None, "asked for work before it was opened"
        return rule.coverage((await self._mailboxes.watermark(shard)).lanes)

    async def _log_range(self, shard: int) -> tuple[int, int]:
        place = TP(DISPATCH_TOPIC, shard)
        held = (await self._app.consumer.log_ranges([place]))[place]
        first = self.mappings.current.first_of(shard)
        return held.begin and held.begin + first, held.end and held.end + first


def build_qsession(settings: Settings | None = None) -> QsessionWorker:
    """The worker of these settings (default: the environment's). Opens nothing before it is started."""
    settings = settings or load_settings()
    spec = AppSpec.from_settings(settings, ROLE, [DISPATCH_TOPIC], topics.load())
    app = build_app(
        replace(
            spec,
            fetch_min_bytes=FETCH_BYTES,
            fetch_wait_ms=FETCH_WAIT_MS,
            batch_records_max=max(BATCH_RECORDS_MAX, spec.batch_records_max),
        )
    )
    watch_redis(app, settings)
    role = _QsessionRole(settings, app)
    app.add_resource(role.open, role.close)
    stage = ShiftedStage(role.mappings, lambda: role.service)
    lanes = app.add_source(DISPATCH_TOPIC, served_by(lambda: stage))
    add_standard_pages(app)
    add_page(app, "/projection", lambda request: role.standing(settings.dispatch_partitions))
    return QsessionWorker(app, lanes)
