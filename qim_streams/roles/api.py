"""The admin API role: from settings to a server on a socket.

It owns nothing and holds no lease: any number of them may run. Commands reach the writers as those of
gateways do; reads go to the hot tier, the logs and the archive.

Spec: §1, §4.
"""

import asyncio
import time
import uuid
from dataclasses import replace
from functools import partial

from qim_streams.admin.audit import AuditBounds, AuditLog
from qim_streams.admin.keys import AdminKeys
from qim_streams.api.app import build_api
from qim_streams.api.ports import ApiDeps, TokenMint
from qim_streams.api.server import listen, serve
from qim_streams.certificates import api_server, link_tls, watched
from qim_streams.commit.calls import PartitionCalls
from qim_streams.commit.rpc_client import WriterLinks
from qim_streams.errors import StoreUnavailable
from qim_streams.gateway.tokens import mint_token
from qim_streams.membership.commands import GroupCommand, GroupState
from qim_streams.membership.redis_store import RedisMembershipStore
from qim_streams.ownership.redis_leases import RedisLeaseStore
from qim_streams.quotas.redis_quotas import RedisTenantRules
from qim_streams.redis_tier import RedisClient, connect, translated
from qim_streams.roles.console import console
from qim_streams.roles.presence import OperatorsPresence
from qim_streams.roles.push_admin import operators_push
from qim_streams.roles.room_admin import LinkedRooms
from qim_streams.roles.session_lists import compose_entering
from qim_streams.roles.tracing import partition_of, tracing
from qim_streams.runtime import now_ms
from qim_streams.script_pipe import ScriptPipe
from qim_streams.sessions.entering import Entering
from qim_streams.settings import Settings
from qim_streams.trace.model import MessageTrace
from qim_streams.trace.service import OUTBOX, TraceDeps, TraceHint, trace_message

NODE_PREFIX = "api."


async def run_api(settings: Settings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set. ConfigError when a secret is missing or the port is taken."""
    key = settings.secret("admin_api_key")
    admins = AdminKeys(key, settings.admin_keys_file)
    bounds = AuditBounds(settings.audit_bytes_max, settings.audit_files_max)
    audit = AuditLog(settings.audit_path, now_ms, bounds)
    redis = connect(settings)
    links = WriterLinks(
        RedisLeaseStore(redis),
        settings.secret("internal_secret"),
        NODE_PREFIX + settings.node_id,
        settings.outbox_partitions,
        tls=link_tls(settings),
    )
    rooms = LinkedRooms(settings, redis, NODE_PREFIX + settings.node_id)
    listener = listen(settings.api_host, settings.api_port)
    try:
        await links.start()
        await rooms.start()
        async with (
            watched(settings) as watch,
            tracing(settings, redis) as trace,
            operators_push(settings, redis, NODE_PREFIX + settings.node_id) as push,
            console(settings, redis, trace) as shown,
        ):
            deps = replace(_deps(settings, key, redis, links, rooms, trace), push=push, console=shown)
            deps = replace(deps, admins=admins, audit=audit)
            await serve(build_api(deps), listener, stop, api_server(settings, watch))
    finally:
        listener.close()
        audit.close()
        await rooms.close()
        await links.close()
        await redis.aclose()


class WriterCommands:
    """The API's commands on the links to the writers; who enters a group has it in his list at once."""

    def __init__(self, links: WriterLinks, timeout_s: float, entering: Entering) -> None:
        self._links, self._timeout_s, self._entering = links, timeout_s, entering

    async def group(self, command: GroupCommand) -> GroupState:
        """See `api.ports.Commands`."""
        state = await self._links.group(command, self._timeout_s)
        await self._entering.changed(command, state)
        return state


def _deps(
    settings: Settings,
    key: bytes,
    redis: RedisClient,
    links: WriterLinks,
    rooms: LinkedRooms,
    trace: TraceDeps,
) -> ApiDeps:
    place = partial(partition_of, settings.outbox_partitions)
    return ApiDeps(
        api_key=key,
        commands=WriterCommands(
            links, settings.send_deadline_ms / 1000, compose_entering(redis, settings.outbox_partitions)
        ),
        new_group_id=lambda: f"g-{uuid.uuid4().hex}",
        conversations=RedisMembershipStore(redis, PartitionCalls(ScriptPipe(redis)), place),
        trace=partial(_trace, trace),
        mint=_mint(settings),
        rules=RedisTenantRules(redis),
        presence=OperatorsPresence(redis),
        rooms=rooms,
        probes={"redis": partial(_ask_redis, redis), "log": partial(_ask_log, trace)},
    )


async def _trace(
    deps: TraceDeps, tenant_id: str, message_id: bytes, conversation_id: str | None
) -> MessageTrace:
    return await trace_message(deps, tenant_id, message_id, TraceHint(conversation_id))


def _mint(settings: Settings) -> TokenMint | None:
    secret = settings.jwt_secret.get_secret_value().encode()
    if not secret:
        return None

    def mint(tenant_id: str, user_id: str, ttl_s: int) -> tuple[str, int]:
        return mint_token(secret, settings.jwt_audience, tenant_id, user_id, ttl_s, int(time.time()))

    return mint


async def _ask_redis(redis: RedisClient) -> None:
    async with translated("redis"):
        await redis.execute_command("PING")  # type: ignore[no-untyped-call]


async def _ask_log(trace: TraceDeps) -> None:
    if not await trace.log.partitions(OUTBOX):
        raise StoreUnavailable(f"{OUTBOX} does not exist yet")
