"""The connection to the Redis hot tier: one client per process, scripts by hash, errors as ours.

Invariants: every command has a timeout; a script is sent whole only when the server does not know its
hash; no driver error leaves this module's callers untranslated (`translate`). Scripts live beside the
stage that uses them, as ``.lua`` files.
"""

import asyncio
import hashlib
import math
import re
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any, cast

import hiredis
import redis.asyncio as redis_asyncio
from redis import exceptions as redis_errors
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from qim_streams.errors import FencedError, Outcome, StoreError, StoreUnavailable
from qim_streams.settings import Settings
from qim_streams.tls import client_context

type_args = str | bytes | int | float
COMMAND_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 3.0
CONNECTIONS_MAX = 16
FENCED = "FENCED"  # scripts answer redis.error_reply("FENCED <current epoch>")
_UNAVAILABLE = (
    "LOADING", "BUSY", "MASTERDOWN", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "OOM", "MISCONF", "NOREPLICAS"
)  # fmt: skip
_UNAVAILABLE_CLASSES = (
    redis_errors.ReadOnlyError,
    redis_errors.OutOfMemoryError,
    redis_errors.ClusterDownError,
    redis_errors.TryAgainError,
)
_REFUSED_IN_SCRIPT = re.compile(r"\b(OOM|READONLY|MISCONF|NOREPLICAS)\b")
_CONNECTING = " connecting to "
# Its stub speaks of one argument.
_pack = cast(Callable[[tuple[type_args, ...]], bytes], hiredis.pack_command)

RedisClient = redis_asyncio.Redis


def connect(settings: Settings) -> RedisClient:
    """A client of the hot tier. Nothing is sent before the first command. Close it with `aclose()`.

    No silent retries: a command is repeated only by the stage that knows whether this is safe.
    """
    url = settings.redis_url.get_secret_value()
    pool = redis_asyncio.BlockingConnectionPool.from_url(
        url,
        **tls_options(settings, url),
        decode_responses=False,
        protocol=3,
        socket_timeout=COMMAND_TIMEOUT_S,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        max_connections=CONNECTIONS_MAX,
        timeout=COMMAND_TIMEOUT_S,  # wait for a free connection: a burst is a queue, not an error
        retry=Retry(NoBackoff(), 0),
        health_check_interval=30,
        # Neither who we are is told nor what a cluster of a vendor does is asked: commands fewer to allow.
        driver_info=None,
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
    )
    return redis_asyncio.Redis.from_pool(pool)


def tls_options(settings: Settings, url: str) -> dict[str, Any]:
    """Of a connection to a ``rediss://`` address: the server is always checked, by its name, too."""
    if not url.startswith("rediss://"):
        return {}
    files = (settings.redis_tls_ca_file, settings.redis_tls_cert_file, settings.redis_tls_key_file)
    client_context("redis_tls_ca_file", *files)  # of no use: said now, and by name
    ca, cert, key = (None if path is None else str(path) for path in files)
    return {
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
        "ssl_min_version": ssl.TLSVersion.TLSv1_2,
        "ssl_ca_certs": ca,
        "ssl_certfile": cert,
        "ssl_keyfile": key,
    }


@asynccontextmanager
async def translated(resource: str = "redis", epoch: int = 0) -> AsyncIterator[None]:
    """Turn driver errors of the block into StoreUnavailable, StoreError or FencedError."""
    try:
        yield
    except (redis_errors.RedisError, OSError, TimeoutError) as error:
        raise translate(error, resource, epoch) from error


def translate(error: BaseException, resource: str = "redis", epoch: int = 0) -> Exception:
    """Our error for a driver's: fenced, unavailable (nothing applied) or unknown outcome."""
    text = str(error)
    if isinstance(error, redis_errors.ResponseError):
        if FENCED in text:
            current = text.rsplit(" ", 1)[-1]
            return FencedError(resource, epoch, int(current) if current.isdigit() else None)
        return _translate_refusal(error, text, resource)
    what = f"{resource}: {type(error).__name__}: {text}"
    if isinstance(error, redis_errors.BusyLoadingError):
        return StoreUnavailable(what, Outcome.NOT_APPLIED)
    if isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError | OSError | TimeoutError):
        # A connection that was never made carried nothing.
        never_sent = _CONNECTING in text or isinstance(error, redis_errors.MaxConnectionsError)
        return StoreUnavailable(what, Outcome.NOT_APPLIED if never_sent else Outcome.UNKNOWN)
    return StoreError(what, Outcome.UNKNOWN)


def _translate_refusal(error: redis_errors.ResponseError, text: str, resource: str) -> StoreError:
    what = f"{resource}: {type(error).__name__}: {text}"
    # The driver cuts the code off where it has a class for it. Inside a script the server reports these
    # at the script's first write, so nothing was applied; the code then stands within the text.
    if isinstance(error, _UNAVAILABLE_CLASSES):
        return StoreUnavailable(what, Outcome.NOT_APPLIED)
    if text.startswith(_UNAVAILABLE) or _REFUSED_IN_SCRIPT.search(text):
        return StoreUnavailable(what, Outcome.NOT_APPLIED)
    # A script that failed in its middle has applied what stood before.
    return StoreError(what, Outcome.UNKNOWN if "script" in text else Outcome.NOT_APPLIED)


async def exchange(client: RedisClient, commands: Sequence[Sequence[type_args]]) -> list[Any]:
    """The answers of `commands`, which leave in one write; an error of the server stands in its place.

    What the driver's pipeline does, without its timers, task and measurements per command: half of its CPU.
    Driver errors pass through; then nothing is known of any command.
    """
    pool: Any = client.connection_pool
    connection = await pool.get_connection()
    patience_s = connection.socket_timeout
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            connection.socket_timeout = None  # one timer for all of it
            # The driver's own packing, in Python, takes three to six times as long.
            await connection.send_packed_command([b"".join(map(_pack, map(tuple, commands)))])
            return [await _answer(connection) for _ in commands]
    except BaseException:
        await connection.disconnect(nowait=True)  # nobody else may read answers that still come
        raise
    finally:
        connection.socket_timeout = patience_s
        await pool.release(connection)


async def _answer(connection: Any) -> Any:
    try:
        return await connection.read_response(timeout=math.inf)
    except redis_errors.ResponseError as error:
        return error


class Script:
    """A Lua script that is called by hash. Load one per process with `Script.load`."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    @classmethod
    def load(cls, package: str, name: str) -> "Script":
        """The script file `name` beside the modules of `package`."""
        return cls(resources.files(package).joinpath(name).read_text())

    async def call(self, client: RedisClient, keys: Sequence[str | bytes], args: Sequence[type_args]) -> Any:
        """The script's answer. Driver errors pass through: wrap the call in `translated`."""
        try:
            return await client.evalsha(self.sha, len(keys), *keys, *args)
        except redis_errors.NoScriptError:
            return await client.eval(self.source, len(keys), *keys, *args)

    async def call_many(
        self, client: RedisClient, calls: Sequence[tuple[Sequence[str | bytes], Sequence[type_args]]]
    ) -> list[Any]:
        """Answers of several calls sent in one pipeline (not a transaction), errors as values."""
        await self.ensure(client)
        pipe = client.pipeline(transaction=False)
        for keys, args in calls:
            pipe.evalsha(self.sha, len(keys), *keys, *args)
        answers: list[Any] = await pipe.execute(raise_on_error=False)
        return answers

    async def ensure(self, client: RedisClient) -> None:
        """Make the server know the script (it forgets all of them at a restart)."""
        if not (await client.script_exists(self.sha))[0]:
            await client.script_load(self.source)
