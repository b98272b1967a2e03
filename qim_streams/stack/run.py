"""Runs a whole stack on one machine: embedded (or named) servers, topics, one process per role.

Order: servers, topics, writer, stream workers, gateway, API. The description of the running stack for
clients (`client.json`, mode 0600: it holds the secrets that mint tokens) exists while the stack runs.

`run_stack` is the body of ``qim up``; with `then` it also is the body of ``qim demo``: what `then`
returns becomes the exit code and ends the stack.
"""

import asyncio
import os
import secrets as random_secrets
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from qim_streams.archive.opening import cassandra_options
from qim_streams.embedded import files
from qim_streams.embedded.cassandra import EmbeddedCassandra
from qim_streams.embedded.ports import free_ports
from qim_streams.embedded.readiness import told_by_file, told_by_page
from qim_streams.embedded.redis_server import AppendFsync
from qim_streams.embedded.roles import Ready, RestartPolicy, RoleSpec
from qim_streams.embedded.stack import BrokerKind, EmbeddedStack
from qim_streams.embedded.supervisor import Supervisor
from qim_streams.errors import ConfigError, StoreUnavailable
from qim_streams.exposition import write_targets
from qim_streams.settings import Settings, load_settings
from qim_streams.stack import plan, secrets, sizes
from qim_streams.streaming import topics
from qim_streams.streaming.spec import HEALTH_FILE
from qim_streams.tls import loopback_context
from qim_streams.webhooks.endpoints import load_webhooks

CLIENT_FILE = "client.json"
DEMO_TENANT = "demo"
READY_DEADLINE_S = 90.0
PROBE_TIMEOUT_S = 2.0
ROLE_ORDER = 10  # all roles start together, after the servers: each waits for what it needs
BROKER_ROLES = frozenset({"kafka", "tansu"})


@dataclass(frozen=True, slots=True)
class Running:
    """What a running stack offers to code in the same process."""

    gateway_url: str
    api_url: str
    secrets: Mapping[str, str] = field(repr=False)
    settings: Settings
    state_dir: Path


Then = Callable[[Running], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """`brokers` and `redis_url` name external servers (None = embedded ones start).

    `cassandra`: start one for the archive. `quick`: the embedded broker starts with half the CPU and stays
    slower: for demos and tests.
    """

    brokers: str | None = None
    redis_url: str | None = field(default=None, repr=False)
    broker: BrokerKind = "auto"
    appendfsync: AppendFsync = "everysec"
    quick: bool = False
    cassandra: bool = False


@dataclass(frozen=True, slots=True)
class RunOptions:
    """`plan` says which roles, `servers` which servers, `policy` how often a role may die."""

    plan: plan.StackOptions
    servers: ServerOptions = field(default_factory=ServerOptions)
    policy: RestartPolicy = field(default_factory=RestartPolicy)


def run_stack(options: RunOptions, then: Then | None = None, *, stay: bool = False) -> int:
    """Run until a signal, a role's final failure, or (unless `stay`) the end of `then`; the exit code."""
    state_dir = options.plan.state_dir.resolve()
    options = replace(options, plan=replace(_without_unwanted(options.plan), state_dir=state_dir))
    servers = options.servers
    if servers.brokers is None:
        options = replace(options, plan=_sized(options.plan))
    stack = EmbeddedStack(
        state_dir,
        brokers=servers.brokers,
        redis_url=servers.redis_url,
        broker=servers.broker,
        appendfsync=servers.appendfsync,
        quick=servers.quick,
        cassandra=servers.cassandra,
    )
    stack.prepare()
    if options.plan.sizes:
        sizes.remember_sizes(state_dir, options.plan.sizes)
    try:
        return asyncio.run(_run(stack, options, then, stay))
    finally:
        (state_dir / CLIENT_FILE).unlink(missing_ok=True)
        stack.close()


def _without_unwanted(options: plan.StackOptions) -> plan.StackOptions:
    """The plan as settings say: without roles that would find nothing to do, with a process per webhook."""
    settings, unwanted = load_settings(), set[str]()
    if settings.session_projection != "qsession":
        unwanted.add("qsession")
    if not settings.push_providers():
        unwanted.add("notification")
    workers = {role: count for role, count in options.workers.items() if role not in unwanted}
    endpoints = load_webhooks(settings.webhooks_file).endpoints
    return replace(
        options,
        workers=workers,
        without=options.without | unwanted,
        webhooks=tuple(endpoint.name for endpoint in endpoints),
    )


def _sized(options: plan.StackOptions) -> plan.StackOptions:
    """The plan with partition counts: what settings say, what the log was made with, what fits the cores."""
    settings = load_settings()
    fresh = sizes.fresh_sizes(os.cpu_count() or 1, options.workers)
    given = {name: int(getattr(settings, name)) for name in fresh if name in settings.model_fields_set}
    return replace(options, sizes=sizes.sizes_to_use(options.state_dir, fresh, given))


async def _run(stack: EmbeddedStack, options: RunOptions, then: Then | None, stay: bool) -> int:
    state_dir = options.plan.state_dir
    drawn = secrets.load_or_make(state_dir, lambda: random_secrets.token_urlsafe(48), os.environ)
    cassandra_port = stack.cassandra.port if stack.cassandra is not None else 0
    addresses = plan.Addresses(stack.brokers, stack.roles_redis_url, cassandra_port)
    names = [name for name, _, _ in plan.role_names(options.plan)]
    ports, metrics = _choose_ports(names, options.plan.metrics)
    roles = plan.plan_roles(options.plan, addresses, drawn, ports, os.environ, metrics)
    write_targets(state_dir, metrics)
    settings = _stack_settings(addresses, drawn, options.plan)
    running = Running(
        gateway_url=f"ws{_s(settings, 'gateway')}://127.0.0.1:{ports['gateway']}/ws",
        api_url=f"http{_s(settings, 'api')}://127.0.0.1:{ports['api']}",
        secrets=drawn,
        settings=settings,
        state_dir=state_dir,
    )
    servers = [_with_archive(_with_topics(spec, settings), settings) for spec in stack.server_roles()]
    if not any(spec.name in BROKER_ROLES for spec in servers):
        await asyncio.to_thread(_apply_topics, settings)
    specs = servers + [_role_spec(role, settings) for role in roles]
    supervisor = Supervisor(specs, state_dir, policy=options.policy)
    _describe(running, drawn, stack.redis_url)
    if then is None:
        return await supervisor.run()
    return await _run_then(supervisor, running, then, stay)


async def _run_then(supervisor: Supervisor, running: Running, then: Then, stay: bool) -> int:
    """Run `then` once every role is ready, and stop the stack whatever comes of it."""
    stack = asyncio.create_task(supervisor.run())
    try:
        if not await supervisor.wait_running():
            return max(1, await stack)
        work = asyncio.ensure_future(then(running))
        await asyncio.wait({work, stack}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result() or (await stack if stay else 0)
        work.cancel()
        return max(1, await stack)
    finally:
        if not stack.done():
            supervisor.request_stop()
            await stack


def _with_topics(spec: RoleSpec, settings: Settings) -> RoleSpec:
    """A broker is ready when its topics exist: nothing else starts before, and a fallback broker that
    forgot everything at a restart gets them again."""
    if spec.name not in BROKER_ROLES:
        return spec
    inner = spec.ready

    def ready() -> bool:
        if callable(inner) and not inner():
            return False
        try:
            _apply_topics(settings)
        except ConfigError as error:
            if error.__cause__ is None:
                raise
            # It answered and then did not (killed again, frozen): not ready yet, no reason to give up.
            raise StoreUnavailable(str(error)) from error
        return True

    return replace(spec, ready=ready)


def _with_archive(spec: RoleSpec, settings: Settings) -> RoleSpec:
    """A Cassandra that was started for the archive is ready when the archive's tables exist."""
    if spec.name != EmbeddedCassandra.name:
        return spec
    from qim_streams.archive.cassandra_admin import create_archive
    from qim_streams.archive.cassandra_schema import BUCKET_SEQS_DEFAULT, replication

    inner, where = spec.ready, cassandra_options(settings)

    def ready() -> bool:
        if callable(inner) and not inner():
            return False
        asyncio.run(create_archive(where, replication({}, 1), BUCKET_SEQS_DEFAULT))
        return True

    return replace(spec, ready=ready)


def _apply_topics(settings: Settings) -> None:
    """Create missing topics. ConfigError names the broker; it has a cause when the broker is to blame."""
    try:
        topics.apply(topics.admin_client(settings.kafka), topics.load().resolve_for(settings))
    except ConfigError as error:
        raise ConfigError(f"broker {settings.brokers}: {error}") from error.__cause__


def _choose_ports(names: list[str], metrics: bool) -> tuple[dict[str, int], dict[str, int]]:
    """A port per process: what ``QIM_<ROLE>_PORT`` sets, else a free one; another for metrics if wanted."""
    free = free_ports(len(names) * (2 if metrics else 1))
    ports = dict(zip(names, free[: len(names)], strict=True))
    for role in plan.SERVER_ROLES:
        asked = os.environ.get(f"QIM_{role.upper()}_PORT", "0")
        if asked.isdigit() and int(asked):
            ports[role] = int(asked)
    return ports, dict(zip(names, free[len(names) :], strict=False))


def _stack_settings(
    addresses: plan.Addresses, drawn: Mapping[str, str], options: plan.StackOptions
) -> Settings:
    # Read already: `drawn` and `addresses` have what is in them.
    given: dict[str, object] = {f"{name}_file": None for name in (*drawn, "redis_url")}
    given |= drawn
    given |= options.sizes
    if options.archive:
        given["archive"] = options.archive
    if addresses.cassandra_port:
        given |= {"cassandra_hosts": "127.0.0.1", "cassandra_port": addresses.cassandra_port}
    return load_settings(
        brokers=addresses.brokers, redis_url=addresses.redis_url, state_dir=options.state_dir, **given
    )


def _s(settings: Settings, role: str) -> str:
    """What the scheme of a role's port ends with: s under TLS."""
    link = role if role in ("gateway", "api") else "internal"
    return "" if getattr(settings, f"{link}_tls_cert_file") is None else "s"


def _role_spec(role: plan.RolePlan, settings: Settings) -> RoleSpec:
    page = f"http{_s(settings, role.role)}://127.0.0.1:{role.port}/readyz"
    ready: Ready = _ready_file(role.state_dir / plan.READY_FILE)
    ports = {"web": role.port} if role.port else {}
    if role.role in plan.SERVER_ROLES:
        ports = {"port": role.port}
        ready = role.port if role.role in ("writer", "rooms") else _answers(page)
    if role.metrics_port:
        ports = ports | {"metrics": role.metrics_port}
    health = told_by_file(role.state_dir / HEALTH_FILE)
    if role.role in plan.SERVER_ROLES:
        health = told_by_page(page)
    (role.state_dir / plan.READY_FILE).unlink(missing_ok=True)
    return RoleSpec(
        name=role.name,
        argv=role.argv,
        env=role.env,
        ports=ports,
        ready=ready,
        order=ROLE_ORDER,
        ready_deadline_s=READY_DEADLINE_S,
        health=health,
    )


def _answers(url: str) -> Callable[[], bool]:
    tls = loopback_context() if url.startswith("https:") else None

    def ready() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=PROBE_TIMEOUT_S, context=tls) as answer:  # noqa: S310 - our own URL
                return bool(answer.status < 300)
        except OSError:
            return False

    return ready


def _ready_file(path: Path) -> Callable[[], bool]:
    """A stream worker writes its pid into the file once it has its partitions, if any, and was caught up."""

    def ready() -> bool:
        try:
            return Path(f"/proc/{path.read_text().strip()}").exists()
        except OSError:
            return False

    return ready


def _describe(running: Running, drawn: Mapping[str, str], redis_admin_url: str) -> None:
    document = {
        "gateway_url": running.gateway_url,
        "tenant": DEMO_TENANT,
        "jwt_secret": drawn["jwt_secret"],
        "admin_url": running.api_url,
        "admin_api_key": drawn["admin_api_key"],
        "brokers": running.settings.brokers,
        "redis_url": running.settings.redis_url.get_secret_value(),
        "redis_admin_url": redis_admin_url,
        "archive": running.settings.archive,
        "cassandra_hosts": running.settings.cassandra_hosts,
        "cassandra_port": running.settings.cassandra_port,
        "outbox_partitions": running.settings.outbox_partitions,
        "mailbox_shards": running.settings.mailbox_shards,
        "mailbox_shards_max": running.settings.mailbox_shards_max,
    }
    files.write_private_json(running.state_dir / CLIENT_FILE, document)
