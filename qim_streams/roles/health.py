"""What roles ask their stores to know whether they are there.

Spec: §11.
"""

from collections.abc import Awaitable, Callable

from qim_streams.redis_tier import RedisClient, connect, translated
from qim_streams.settings import Settings
from qim_streams.streaming.app import StreamApp

REDIS = "redis"


def asks_redis(redis: RedisClient) -> Callable[[], Awaitable[object]]:
    """Asks the hot tier by a command that needs nothing of it."""

    async def ask() -> None:
        async with translated(REDIS):
            await redis.execute_command("PING")  # type: ignore[no-untyped-call]

    return ask


def watch_redis(app: StreamApp, settings: Settings) -> None:
    """Have a stream worker say when the hot tier does not answer; by a connection of its own."""
    redis = connect(settings)

    async def opened() -> None:
        """Nothing is sent before the first question."""

    app.add_resource(opened, redis.aclose)
    app.watch_store(REDIS, asks_redis(redis))
