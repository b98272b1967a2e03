"""The webhook role: one endpoint of an application, told by a Faust worker in a consumer group of its own.

A process per endpoint: one that is slow or away holds up nobody else, and its position is its own.

Spec: §11.
"""

import time
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from qim_streams.errors import ConfigError, InvariantViolation
from qim_streams.notification.results import RESULT_TOPIC
from qim_streams.roles.poison import PoisonLetters
from qim_streams.runtime import now_ms, settle_stage
from qim_streams.settings import Settings, load_settings
from qim_streams.streaming import topics
from qim_streams.streaming.app import StreamApp, build_app
from qim_streams.streaming.dead_letter import DEAD_LETTER_TOPIC, DeadLetterSink
from qim_streams.streaming.group_position import group_position
from qim_streams.streaming.lanes import PartitionLanes
from qim_streams.streaming.source import SourceBatch, SourceRole, one_by_one
from qim_streams.streaming.spec import AppSpec
from qim_streams.streaming.web import add_standard_pages
from qim_streams.webhooks.delivery import Reader, WebhookDelivery
from qim_streams.webhooks.endpoints import Endpoint, load_webhooks
from qim_streams.webhooks.events import membership_event, message_event, presence_event, push_result_event
from qim_streams.webhooks.http_poster import HttpPoster
from qim_streams.webhooks.ports import Poster

SOURCES: dict[str, tuple[str, Reader]] = {
    "message.committed": ("qim.outbox.v1", message_event),
    "membership.changed": ("qim.membership.v1", membership_event),
    "presence.changed": ("qim.presence.v1", presence_event),
    "push.result": (RESULT_TOPIC, push_result_event),
}
RETRY_DELAY_MAX_S = 15.0


class WebhookWorker(NamedTuple):
    """A worker ready to be run by Faust: lanes by topic."""

    app: StreamApp
    lanes: dict[str, PartitionLanes]


class _WebhookRole:
    """The deliveries of one endpoint between the opening and the closing of their connections."""

    def __init__(self, app: StreamApp, endpoint: Endpoint, letters: PoisonLetters) -> None:
        self._app, self._endpoint, self._letters = app, endpoint, letters
        self._poster: Poster | None = None
        self._deliveries: dict[str, WebhookDelivery] = {}

    async def open(self) -> None:
        """Nothing is sent before the first event."""
        settle_stage(gives_way=True)
        poster = self._poster = HttpPoster()
        for name in self._endpoint.events:
            topic, read = SOURCES[name]
            self._deliveries[topic] = WebhookDelivery(
                topic,
                self._endpoint,
                read,
                poster=poster,
                poison=self._letters,
                now_ms=now_ms,
                monotonic=time.monotonic,
            )

    async def close(self) -> None:
        """Give connections up."""
        if self._poster is not None:
            await self._poster.close()

    def source(self, topic: str) -> SourceRole:
        """What to do with a topic."""
        return SourceRole(
            partial(group_position, self._app, topic),
            one_by_one(partial(self._handle, topic)),
            partial(self._release, topic),
        )

    def _delivery(self, topic: str) -> WebhookDelivery:
        if topic not in self._deliveries:
            raise InvariantViolation("a webhook was asked for work before it was opened")
        return self._deliveries[topic]

    async def _handle(self, topic: str, batch: SourceBatch) -> None:
        await self._delivery(topic).handle(batch)

    async def _release(self, topic: str, partitions: frozenset[int]) -> None:
        self._delivery(topic).release(partitions)


def build_webhook(settings: Settings | None = None) -> WebhookWorker:
    """The worker of the endpoint that settings name. Opens nothing before it is started."""
    settings = settings or load_settings()
    if not settings.webhook:
        raise ConfigError("webhook: set QIM_WEBHOOK to the name of an endpoint in QIM_WEBHOOKS_FILE")
    endpoint = load_webhooks(settings.webhooks_file).endpoint(settings.webhook)
    declared, role = topics.load(), f"webhook-{endpoint.name}"
    sources = [SOURCES[name][0] for name in endpoint.events]
    spec = AppSpec.from_settings(settings, role, sources, declared, lossy_sources=sources)
    app = build_app(
        replace(
            spec,
            # However long the endpoint is away, the batch waits: `retry_for_s` of the endpoint is the bound.
            retry_total_s=float("inf"),
            start_timeout_s=float("inf"),
            retry_delay_max_s=RETRY_DELAY_MAX_S,
        )
    )
    letters = declared.resolve_for(settings)[DEAD_LETTER_TOPIC].partitions
    made = _WebhookRole(app, endpoint, PoisonLetters(DeadLetterSink(app.log_producer, role, letters, now_ms)))
    app.add_resource(made.open, made.close)
    lanes = {topic: app.add_source(topic, made.source(topic)) for topic in sources}
    add_standard_pages(app)
    return WebhookWorker(app, lanes)
