"""The notification role: from settings to a Faust worker that tells providers of messages.

A consumer group of its own on the task log, so nothing here can hold back mailboxes or pushes. It is the only
role that reads the providers' credentials. `QIM_NOTIFICATION_PROVIDERS` switches it on.

Spec: §6 (offline).
"""

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from qim_streams.archive.opening import open_archive_reader
from qim_streams.archive.tiers import HotThenArchive
from qim_streams.commit.calls import PartitionCalls
from qim_streams.commit.kafka_reader import KafkaLogReader
from qim_streams.commit.redis_store import RedisConversationStore
from qim_streams.errors import ConfigError, InvariantViolation
from qim_streams.notification.apns import Apns
from qim_streams.notification.credentials import ApnsTokens, read_file, service_account
from qim_streams.notification.fcm import Fcm
from qim_streams.notification.httpx_calls import HttpCalls
from qim_streams.notification.marks import WholeMarks
from qim_streams.notification.ports import Provider
from qim_streams.notification.preparing import Preparer, Style
from qim_streams.notification.redis_devices import RedisPushDevices
from qim_streams.notification.redis_queue import RedisTaskQueue
from qim_streams.notification.registry import DEVICE_TOPIC, PushDevices
from qim_streams.notification.restoring import WholeDevices
from qim_streams.notification.results import RESULT_TOPIC, ResultLog
from qim_streams.notification.sender import LaneBounds, ProviderLane
from qim_streams.notification.service import TASK_TOPIC, NotificationService, Terms
from qim_streams.notification.unserved import Unserved
from qim_streams.notification.webhook import Webhook
from qim_streams.redis_tier import RedisClient, connect, translated
from qim_streams.roles.log import StreamAppender
from qim_streams.roles.poison import PoisonLetters
from qim_streams.roles.session_lists import compose_badges
from qim_streams.roles.spans import compose_spans
from qim_streams.roles.tracing import partition_of
from qim_streams.runtime import now_ms, settle_stage
from qim_streams.script_pipe import ScriptPipe
from qim_streams.sessions.redis_user_state import RedisUserStates
from qim_streams.settings import Settings, load_settings
from qim_streams.settings_notification import PROVIDERS
from qim_streams.streaming import topics
from qim_streams.streaming.app import StreamApp, build_app
from qim_streams.streaming.dead_letter import DEAD_LETTER_TOPIC, DeadLetterSink
from qim_streams.streaming.doubt import die
from qim_streams.streaming.group_position import committed_position
from qim_streams.streaming.lanes import PartitionLanes
from qim_streams.streaming.source import SourceRole
from qim_streams.streaming.spec import AppSpec
from qim_streams.streaming.web import add_standard_pages

ROLE: Final = "notification"
CLAIM_MARGIN_S: Final = 5.0  # beyond a request's own time, from the claim to the note of its answer
PREPARING_S: Final = 10.0  # one that takes longer is left to its next claim
KEPT_BEYOND_AGE_S: Final = 600

__all__ = ["TASK_TOPIC", "NotificationWorker", "build_notification", "open_providers"]


class NotificationWorker(NamedTuple):
    """A worker ready to be run by Faust."""

    app: StreamApp
    lanes: PartitionLanes


class _NotificationRole:
    """The service between the opening and the closing of its stores."""

    def __init__(self, settings: Settings, app: StreamApp) -> None:
        self._settings, self._app = settings, app
        self._redis: RedisClient | None = None
        self._archive: Any = None
        self._log: KafkaLogReader | None = None
        self._providers: list[Provider] = []
        self._service: NotificationService | None = None
        self._spans = compose_spans(settings, "notification")

    async def open(self) -> None:
        """Read credentials and connect; ConfigError names what is missing, StoreUnavailable a store."""
        settings = self._settings
        if not settings.push_providers():
            raise ConfigError(
                "notification_providers: empty; set QIM_NOTIFICATION_PROVIDERS for all roles, or do not "
                "start this one"
            )
        settle_stage(gives_way=True)
        self._providers = open_providers(settings)
        if self._spans is not None:
            await self._spans.start()
        self._redis = connect(settings)
        async with translated():
            await self._redis.ping()
        self._archive = open_archive_reader(settings)
        self._log = KafkaLogReader(settings.kafka, DEVICE_TOPIC)
        self._service = self._compose(self._redis, self._log)
        await self._service.open()

    async def close(self) -> None:
        """End what is under way and disconnect."""
        if self._service is not None:
            await self._service.close()
        for provider in self._providers:
            await provider.close()
        if self._log is not None:
            await self._log.close()
        if self._archive is not None:
            await self._archive.close()
        if self._redis is not None:
            await self._redis.aclose()
        if self._spans is not None:
            await self._spans.close()

    @property
    def service(self) -> NotificationService:
        """The service; it exists before the worker joins its group."""
        if self._service is None:
            raise InvariantViolation("notification was asked for work before its stores were opened")
        return self._service

    def _compose(self, redis: RedisClient, device_log: KafkaLogReader) -> NotificationService:
        settings = self._settings
        store = RedisPushDevices(redis)
        whole = WholeDevices(store, device_log, settings.mailbox_shards)
        registry = PushDevices(
            store,
            StreamAppender(self._app.log_producer),
            providers=settings.push_providers(),
            mailbox_shards=settings.mailbox_shards,
            now_ms=now_ms,
        )
        place = partial(partition_of, settings.outbox_partitions)
        hot = RedisConversationStore(
            PartitionCalls(ScriptPipe(redis)), settings.client_dedup_retention_s, place
        )
        preparer = Preparer(
            whole,
            WholeMarks(RedisUserStates(redis, now_ms), self._archive),
            HotThenArchive(hot, self._archive),
            compose_badges(redis, self._archive, place, settings.mailbox_shards),
            style_of(settings),
            now_ms,
        )
        queue = compose_queue(settings, redis)
        slots: set[int] = set()
        resolved = topics.load().resolve_for(settings)
        told = ResultLog(StreamAppender(self._app.log_producer), resolved[RESULT_TOPIC].partitions)
        lanes = self._lanes(queue, preparer, registry, told, slots)
        letters = resolved[DEAD_LETTER_TOPIC].partitions
        return NotificationService(
            queue,
            whole,
            lanes,
            slots,
            PoisonLetters(DeadLetterSink(self._app.log_producer, ROLE, letters, now_ms)),
            Terms(settings.notification_grace_ms, settings.notification_age_max_s * 1_000),
            now_ms,
            die,
            committed=partial(committed_position, self._app, TASK_TOPIC),
        )

    def _lanes(
        self,
        queue: RedisTaskQueue,
        preparer: Preparer,
        registry: PushDevices,
        told: ResultLog,
        slots: set[int],
    ) -> list[ProviderLane]:
        settings = self._settings
        margin_s = 2 * settings.notification_timeout_s + CLAIM_MARGIN_S  # a request may be made twice
        bounds = LaneBounds(
            settings.notification_in_flight_max, int(margin_s * 1_000), settings.notification_repeat_unknown
        )
        served = {one.name for one in self._providers}
        every = list(self._providers)
        every += [Unserved(name) for name in PROVIDERS if name not in served]
        return [
            ProviderLane(
                one, queue, preparer, registry, told, slots, bounds, now_ms, random.random, self._spans
            )
            for one in every
        ]


def style_of(settings: Settings) -> Style:
    """What notifications look like by these settings."""
    return Style(
        settings.notification_title,
        settings.notification_text,
        settings.notification_preview_chars,
        settings.notification_collapse == "conversation",
        settings.notification_age_max_s * 1_000,
        settings.notification_ttl_s,
    )


def compose_queue(settings: Settings, redis: RedisClient) -> RedisTaskQueue:
    """The queue of these settings. A claim outlives a request that is made twice, and its preparation."""
    claim_s = 2 * settings.notification_timeout_s + CLAIM_MARGIN_S + PREPARING_S
    return RedisTaskQueue(
        redis,
        PROVIDERS,
        waiting_max=settings.notification_waiting_max,
        claim_ms=int(claim_s * 1_000),
        kept_ms=(settings.notification_age_max_s + KEPT_BEYOND_AGE_S) * 1_000,
    )


def open_providers(settings: Settings) -> list[Provider]:
    """The providers that are switched on; ConfigError names the setting that is missing or wrong."""
    makers: dict[str, Callable[[Settings], Provider]] = {"apns": _apns, "fcm": _fcm, "webhook": _webhook}
    return [makers[name](settings) for name in settings.push_providers()]


def _calls(settings: Settings) -> HttpCalls:
    return HttpCalls(timeout_s=settings.notification_timeout_s, ca_file=settings.notification_tls_ca_file)


def _apns(settings: Settings) -> Apns:
    for name in ("apns_topic", "apns_key_id", "apns_team_id"):
        if not getattr(settings, name):
            raise ConfigError(f"{name} is not set: export QIM_{name.upper()}")
    key = read_file("apns_key_file", settings.apns_key_file)
    tokens = ApnsTokens(key, settings.apns_key_id, settings.apns_team_id, time.time)
    return Apns(_https("apns_url", settings.apns_url), settings.apns_topic, tokens, _calls(settings))


def _fcm(settings: Settings) -> Fcm:
    account = service_account(read_file("fcm_credentials_file", settings.fcm_credentials_file))
    url = _https("fcm_url", settings.fcm_url)
    collapse = settings.notification_collapse == "conversation"
    return Fcm(url, account, _calls(settings), time.time, collapse=collapse)


def _webhook(settings: Settings) -> Webhook:
    secret = read_file("push_webhook_secret_file", settings.push_webhook_secret_file).strip().encode()
    return Webhook(_https("push_webhook_url", settings.push_webhook_url), secret, _calls(settings), time.time)


def _https(name: str, url: str) -> str:
    """An address that tokens may be sent to: https, or this very machine."""
    if url.startswith(("https://", "http://127.0.0.1:", "http://localhost:")):
        return url
    raise ConfigError(f"{name}: must begin with https://")


def build_notification(settings: Settings | None = None) -> NotificationWorker:
    """The worker of these settings (default: the environment's). Opens nothing before it is started."""
    settings = settings or load_settings()
    # A task that the log has dropped is older than anybody wants to hear of.
    spec = AppSpec.from_settings(settings, ROLE, [TASK_TOPIC], topics.load(), lossy_sources=[TASK_TOPIC])
    app = build_app(spec)
    role = _NotificationRole(settings, app)
    app.add_resource(role.open, role.close)
    lanes = app.add_source(
        TASK_TOPIC,
        SourceRole(
            lambda partition: role.service.start_position(partition),
            lambda batches: role.service.handle(batches),
            lambda partitions: role.service.release(partitions),
        ),
    )
    add_standard_pages(app)
    return NotificationWorker(app, lanes)
