"""The hot tier's client waits for a free connection: a burst of commands is a queue, not an error (I10)."""

import asyncio

from qim_streams.redis_tier import CONNECTIONS_MAX, RedisClient


async def test_more_commands_at_once_than_connections_all_succeed(hot_client: RedisClient) -> None:
    await hot_client.set("n", 1)
    answers = await asyncio.gather(*(hot_client.get("n") for _ in range(10 * CONNECTIONS_MAX)))
    assert answers == [b"1"] * (10 * CONNECTIONS_MAX)
