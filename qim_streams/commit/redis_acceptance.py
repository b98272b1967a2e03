"""`Acceptance` on Redis: ``{ob:p}:accept``, what an operator accepted to lose: where the Outbox began then.

It is good for that begin and for nothing that retention takes later.

Spec: §14.4.
"""

from qim_streams.redis_tier import RedisClient, translated


class RedisAcceptance:
    """Written by the operator's command, read by the owner of the partition."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def accepted(self, partition: int) -> int:
        """See the port."""
        async with translated(f"ob:{partition}"):
            value = await self._client.get(f"{{ob:{partition}}}:accept")
        return -1 if value is None else int(value)

    async def accept(self, partition: int, begin: int) -> None:
        """Everything below offset `begin` may be lost."""
        async with translated(f"ob:{partition}"):
            await self._client.set(f"{{ob:{partition}}}:accept", begin)
