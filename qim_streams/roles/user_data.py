"""A user's data, put together from settings: export and erasure.

Spec: §8, §9.
"""

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import NamedTuple

from qim_streams.admin.audit import Action, AuditBounds, AuditLog
from qim_streams.archive.opening import open_archive_reader
from qim_streams.certificates import link_tls
from qim_streams.commit.rpc_client import WriterLinks
from qim_streams.errors import ConfigError
from qim_streams.history.redis_history import RedisHistoryStore
from qim_streams.history.service import HistoryService
from qim_streams.membership.redis_directory import RedisOrdinalDirectory
from qim_streams.ownership.redis_leases import RedisLeaseStore
from qim_streams.ownership.redis_wholeness import RedisWholeness
from qim_streams.personal.collecting import Collector, Whose
from qim_streams.personal.erasing import Eraser
from qim_streams.personal.redis_devices import RedisUserDevices
from qim_streams.redis_tier import connect
from qim_streams.roles.log import StreamAppender
from qim_streams.roles.push_admin import compose_push_devices
from qim_streams.roles.session_lists import compose_list_reader
from qim_streams.roles.tracing import partition_of
from qim_streams.runtime import now_ms
from qim_streams.script_pipe import ScriptPipe
from qim_streams.sessions.ports import SessionUser
from qim_streams.settings import Settings
from qim_streams.sharding.follower import Mappings
from qim_streams.sharding.kafka_mapping import KafkaMappingLog
from qim_streams.streaming.doubt import die
from qim_streams.streaming.producer import LogProducer, ProducerSpec

CLIENT_ID = "qim-user-data"


class UserData(NamedTuple):
    """An opened system: whose data, and what can be done with them. `eraser` None: only reading."""

    whose: Whose
    collector: Collector
    eraser: Eraser | None


@contextlib.asynccontextmanager
async def user_data(
    settings: Settings, tenant_id: str, user_id: str, *, erasing: bool = False
) -> AsyncIterator[UserData]:
    """The data of a user. ConfigError when there is no such user."""
    async with contextlib.AsyncExitStack() as opened:
        redis = connect(settings)
        opened.push_async_callback(redis.aclose)
        archive = open_archive_reader(settings)
        opened.push_async_callback(archive.close)
        mapping_log = KafkaMappingLog(settings.kafka)
        opened.push_async_callback(mapping_log.close)
        mappings = Mappings(settings.mailbox_shards, mapping_log)
        await mappings.load_at_start()
        place = partial(partition_of, settings.outbox_partitions)
        wholeness = RedisWholeness(redis, settings.outbox_partitions)
        ordinals = RedisOrdinalDirectory(redis, ScriptPipe(redis), wholeness, cache_max=0)
        (ordinal,) = await ordinals.find(tenant_id, [user_id])
        if ordinal is None:
            raise ConfigError(f"user {user_id!r}: tenant {tenant_id!r} has never seen him")
        producer = LogProducer(
            ProducerSpec(settings.kafka, CLIENT_ID), on_fatal=lambda why: die(f"log producer: {why}")
        )
        await producer.start()
        opened.push_async_callback(producer.close)
        push = compose_push_devices(settings, redis, StreamAppender(producer))
        devices = RedisUserDevices(redis)
        lists = compose_list_reader(redis, archive, place, mappings)
        histories = HistoryService(RedisHistoryStore(redis, place, whole_only=True), archive)
        collector = Collector(lists, histories, devices, push)
        shard = mappings.current.home(tenant_id, user_id, ordinal)
        whose = Whose(SessionUser(tenant_id, user_id, ordinal), shard)
        eraser = None
        if erasing:
            secret = settings.secret("internal_secret")
            links = WriterLinks(
                RedisLeaseStore(redis), secret, CLIENT_ID, settings.outbox_partitions, tls=link_tls(settings)
            )
            await links.start()
            opened.push_async_callback(links.close)
            eraser = Eraser(collector, links, devices, push)
        yield UserData(whose, collector, eraser)


@contextlib.asynccontextmanager
async def noted(settings: Settings, who: str, what: str) -> AsyncIterator[None]:
    """Note an action of a command in the record of this machine."""
    path = settings.audit_file or settings.state_dir / "audit-commands.jsonl"
    audit = AuditLog(path, now_ms, AuditBounds(settings.audit_bytes_max, settings.audit_files_max))
    outcome = "failed"
    try:
        step = await audit.begin(Action(who, "shell", what, "terminal"))
        try:
            yield
            outcome = "done"
        finally:
            await audit.end(step, outcome)
    finally:
        audit.close()
