"""What roles with an internal RPC and leases have in common: where they listen, how they end, their topics.

Spec: §11.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from qim_streams.errors import ConfigError
from qim_streams.ids import is_text_id
from qim_streams.settings import Settings
from qim_streams.streaming import topics
from qim_streams.streaming.doubt import die

WILDCARDS = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, not bound to
CANCEL_STEP_S = 1.0


def check_node(settings: Settings, role: str, host: str, advertised_host: str, whom: str) -> None:
    """ConfigError for a node without a name, and for an address under which gateways cannot find it."""
    settings.secret("internal_secret")
    if not is_text_id(settings.node_id):
        raise ConfigError("node_id: letters, digits and ._@~- only, at most 128; set QIM_NODE_ID")
    if host in WILDCARDS and not advertised_host:
        raise ConfigError(
            f"{role}_advertised_host: needed when {role}_host is a wildcard, for gateways to find this {whom}"
        )


async def listen(start: Callable[[str, int], Awaitable[int]], role: str, host: str, port: int) -> int:
    """The port that `start(host, port)` listens on; ConfigError when it cannot."""
    try:
        return await start(host, port)
    except OSError as error:
        raise ConfigError(
            f"{role}_port: cannot listen on {host}:{port} ({error.strerror}); "
            f"set QIM_{role.upper()}_PORT to a free port or 0"
        ) from error


async def own_until(stop: asyncio.Event, owning: "asyncio.Task[None]", what: str) -> None:
    """Until `stop`; then the task of ownership is ended. That it broke before ends the process."""
    stopped = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait([stopped, owning], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if owning.done() and not owning.cancelled() and (error := owning.exception()) is not None:
        die(f"ownership of {what} broke", error)
    while not owning.done():  # one cancellation may meet a time-out that swallows it
        owning.cancel()
        await asyncio.wait([owning], timeout=CANCEL_STEP_S)


def check_topics_of(settings: Settings, names: Iterable[str]) -> None:
    """ConfigError when a topic of `names` is not as declared. Blocking."""
    declared = topics.load().resolve_for(settings)
    problems = topics.check(topics.admin_client(settings.kafka), {name: declared[name] for name in names})
    if problems:
        raise ConfigError("topics differ from topics.yaml: " + "; ".join(problems))
