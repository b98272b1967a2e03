"""The HistoryArchiver role: from settings to a Faust worker that archives the Outbox.

With the RocksDB archive one process owns the directory and therefore every Outbox partition. A second
archiver waits for the directory before it joins the group (setting `archive_lock_wait_s`), so it never
takes partitions that it could not serve, and then ends with 1 and says which directory is in use. With the
Cassandra archive any number of archivers share the partitions.

An archive that is unavailable holds only this role: the batch is retried in place for as long as it takes,
unacknowledged, sends go on, and nothing is trimmed from the hot tier. Nor does a start wait in vain:
positions are asked for until the archive answers.

Behind the archiver the hot tier is trimmed of what is archived (`archive.trimmer`), and beside it what users
did with their conversations is carried into the archive (`sessions.keeping`).

Spec: §1 ARCHIVED, §3, §14.8.
"""

import asyncio
import math
from dataclasses import replace
from typing import NamedTuple

from qim_streams.archive.opening import open_archive
from qim_streams.archive.ports import Archive
from qim_streams.archive.redis_hot import RedisHotRecords
from qim_streams.archive.service import HistoryArchiver
from qim_streams.archive.trimmer import HotTierTrimmer, TrimPolicy
from qim_streams.errors import InvariantViolation, StoreError
from qim_streams.log_ports import LogBatch
from qim_streams.redis_tier import RedisClient, connect
from qim_streams.roles.health import watch_redis
from qim_streams.roles.poison import PoisonLetters
from qim_streams.roles.session_lists import compose_keeper
from qim_streams.roles.spans import compose_spans
from qim_streams.runtime import now_ms, settle_stage
from qim_streams.settings import Settings, load_settings
from qim_streams.streaming import topics
from qim_streams.streaming.app import StreamApp, build_app
from qim_streams.streaming.dead_letter import DEAD_LETTER_TOPIC, DeadLetterSink
from qim_streams.streaming.doubt import die
from qim_streams.streaming.lanes import PartitionLanes
from qim_streams.streaming.source import SourceRole, one_by_one
from qim_streams.streaming.spec import AppSpec
from qim_streams.streaming.web import Page, add_page, add_standard_pages

ROLE = "history-archiver"
OUTBOX_TOPIC = "qim.outbox.v1"
# Below what a fetch brings of one partition at most (1 MB): a backlog must never wait for more.
FETCH_BYTES, FETCH_WAIT_MS = 768 * 1024, 250


class ArchiverWorker(NamedTuple):
    """A worker ready to be run by Faust."""

    app: StreamApp
    lanes: PartitionLanes


class _ArchiverRole:
    """The service between the opening and the closing of its archive."""

    def __init__(self, settings: Settings, poison: PoisonLetters) -> None:
        self._settings, self._poison = settings, poison
        self._archive: Archive | None = None
        self._redis: RedisClient | None = None
        self._trimmer: HotTierTrimmer | None = None
        self._service: HistoryArchiver | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._spans = compose_spans(settings, "archiver")

    async def open(self) -> None:
        """Take the archive; ConfigError when it is in use or not available."""
        settle_stage(gives_way=True)  # nobody waits for ARCHIVED
        settings = self._settings
        if self._spans is not None:
            await self._spans.start()
        self._archive = await open_archive(settings)
        self._redis = connect(settings)
        self._trimmer = HotTierTrimmer(
            self._archive,
            RedisHotRecords(self._redis),
            TrimPolicy(settings.hot_tier_messages_kept, settings.hot_tier_kept_s * 1_000),
            now_ms=now_ms,
            die=die,
        )
        self._service = HistoryArchiver(
            OUTBOX_TOPIC,
            self._archive,
            self._poison,
            now_ms=now_ms,
            on_covered=self._trimmer.note,
            spans=self._spans,
        )
        self._trimmer.start()
        keeper = compose_keeper(self._redis, self._archive, settings.outbox_partitions)
        self._keeping = asyncio.create_task(keeper.run(), name="state-keeper")
        self._keeping.add_done_callback(_ended)

    async def close(self) -> None:
        """Stop trimming and give the archive up."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
        if self._trimmer is not None:
            await self._trimmer.close()
        if self._redis is not None:
            await self._redis.aclose()
        if self._archive is not None:
            await self._archive.close()
        if self._spans is not None:
            await self._spans.close()

    @property
    def service(self) -> HistoryArchiver:
        """The service; it exists before the worker joins its group."""
        if self._service is None:
            raise InvariantViolation("the archiver was asked for work before its archive was opened")
        return self._service

    @property
    def trimmer(self) -> HotTierTrimmer:
        """Who trims the hot tier behind the archiver."""
        if self._trimmer is None:
            raise InvariantViolation("the archiver was asked for work before its archive was opened")
        return self._trimmer

    async def start_position(self, partition: int) -> int:
        """Archive watermark + 1."""
        position = await self.service.start_position(partition)
        self.trimmer.adopt(partition)
        return position

    async def handle(self, batch: LogBatch) -> None:
        """Archive a batch."""
        await self.service.handle(batch)

    async def release(self, partitions: frozenset[int]) -> None:
        """Forget partitions."""
        await self.service.release(partitions)
        self.trimmer.release(partitions)

    async def watermarks(self, partitions: int) -> Page:
        """The archive watermark of every Outbox partition, for the web view."""
        if self._archive is None:
            return Page({"error": "the archive is not open yet"}, 503)
        try:
            found = [await self._archive.watermark(partition) for partition in range(partitions)]
        except StoreError as error:
            return Page({"error": str(error)}, 503)
        return Page({"archive": self._settings.archive, "watermarks": found})


def _ended(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        die("the keeper of states ended", task.exception())


def build_archiver(settings: Settings | None = None) -> ArchiverWorker:
    """The worker of these settings (default: the environment's). Opens nothing before it is started."""
    settings = settings or load_settings()
    declared = topics.load()
    spec = AppSpec.from_settings(settings, ROLE, [OUTBOX_TOPIC], declared)
    spec = replace(
        spec,
        # However long the archive is away: the batch waits, and so does a partition that has just come.
        retry_total_s=math.inf,
        start_timeout_s=math.inf,
        # Nobody waits for ARCHIVED: few large writes, each of them synced to disk, not many small ones.
        fetch_min_bytes=FETCH_BYTES,
        fetch_wait_ms=FETCH_WAIT_MS,
    )
    app = build_app(spec)
    letters = declared.resolve_for(settings)[DEAD_LETTER_TOPIC].partitions
    sink = DeadLetterSink(app.log_producer, ROLE, letters, now_ms)
    role = _ArchiverRole(settings, PoisonLetters(sink))
    app.add_resource(role.open, role.close)
    lanes = app.add_source(
        OUTBOX_TOPIC, SourceRole(role.start_position, one_by_one(role.handle), role.release)
    )
    add_standard_pages(app)
    add_page(app, "/archive", lambda request: role.watermarks(settings.outbox_partitions))
    watch_redis(app, settings)
    return ArchiverWorker(app, lanes)
