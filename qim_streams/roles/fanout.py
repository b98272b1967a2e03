"""The FanoutCoordinator role: from settings to a Faust worker that turns Outbox records into dispatches.

Spec: §4.
"""

from functools import partial
from typing import NamedTuple

from qim_streams.fanout.progress import ConversationProgress
from qim_streams.fanout.service import FanoutCoordinator
from qim_streams.fanout.versions import MembershipVersions
from qim_streams.membership.redis_reader import RedisMembershipReader
from qim_streams.redis_tier import connect, translated
from qim_streams.roles.health import watch_redis
from qim_streams.roles.hot_tier import kept_intervals
from qim_streams.roles.log import StreamAppender
from qim_streams.roles.poison import PoisonLetters
from qim_streams.roles.spans import compose_spans
from qim_streams.roles.tracing import partition_of
from qim_streams.runtime import now_ms, settle_stage
from qim_streams.settings import Settings, load_settings
from qim_streams.sharding.follower import Mappings
from qim_streams.sharding.kafka_mapping import KafkaMappingLog
from qim_streams.streaming import topics
from qim_streams.streaming.app import StreamApp, build_app
from qim_streams.streaming.dead_letter import DEAD_LETTER_TOPIC, DeadLetterSink
from qim_streams.streaming.lanes import PartitionLanes
from qim_streams.streaming.source import SourceRole
from qim_streams.streaming.spec import AppSpec
from qim_streams.streaming.table import AckedTable
from qim_streams.streaming.web import add_standard_pages
from tables import conversation_progress
from tables.views import add_table_views

ROLE = "fanout-coordinator"
OUTBOX_TOPIC, DISPATCH_TOPIC = "qim.outbox.v1", "qim.dispatch.v1"


class FanoutWorker(NamedTuple):
    """A worker ready to be run by Faust."""

    app: StreamApp
    lanes: PartitionLanes
    progress: AckedTable


def build_fanout(settings: Settings | None = None) -> FanoutWorker:
    """The worker of these settings (default: the environment's). Opens nothing before it is started."""
    settings = settings or load_settings()
    declared = topics.load()
    resolved = declared.resolve_for(settings)
    app = build_app(AppSpec.from_settings(settings, ROLE, [OUTBOX_TOPIC], declared))
    table = conversation_progress.declare(app, settings.outbox_partitions)
    redis = connect(settings)
    place = partial(partition_of, settings.outbox_partitions)
    mapping_log = KafkaMappingLog(settings.kafka)
    spans = compose_spans(settings, "fanout")
    service = FanoutCoordinator(
        OUTBOX_TOPIC,
        DISPATCH_TOPIC,
        outbox_partitions=settings.outbox_partitions,
        mailbox_shards=settings.mailbox_shards,
        appender=StreamAppender(app.log_producer),
        versions=MembershipVersions(
            RedisMembershipReader(redis, place), settings.bitmap_cache_max, kept_intervals(settings, redis)
        ),
        progress=ConversationProgress(table),
        poison=PoisonLetters(
            DeadLetterSink(app.log_producer, ROLE, resolved[DEAD_LETTER_TOPIC].partitions, now_ms)
        ),
        now_ms=now_ms,
        mappings=Mappings(settings.mailbox_shards, mapping_log),
        spans=spans,
    )

    async def opened() -> None:
        settle_stage()
        if spans is not None:
            await spans.start()
        async with translated():
            await redis.ping()

    async def closed() -> None:
        await mapping_log.close()
        await redis.aclose()
        if spans is not None:
            await spans.close()

    app.add_resource(opened, closed)
    lanes = app.add_source(
        OUTBOX_TOPIC, SourceRole(service.start_position, service.handle, checkpoint=service.checkpoint)
    )
    add_standard_pages(app)
    add_table_views(app, [(conversation_progress.VIEW, table, settings.outbox_partitions)])
    watch_redis(app, settings)
    return FanoutWorker(app, lanes, table)
