"""The keys of the hot tier that no log and no archive has, dumped and put back by the server itself.

It needs a user that may SCAN, DUMP and RESTORE: the operator's, not the roles'.

Spec: §14.8.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from redis import exceptions as redis_errors

from qim_streams.backup.ports import KeyRow
from qim_streams.errors import ConfigError
from qim_streams.redis_tier import RedisClient, translated

FAMILIES: Final = (
    "{t:*}:rules",  # what the admin API set for tenants
    "{rm:*}:r:*", "{rm:*}:list:*",  # rooms, their owners and mutes
    # Conversations that are new in a list and not durable there yet. Before the marks: what is settled
    # meanwhile is among those.
    "{qt:all}:tenants", "{q:*}:reg",
    "{q:*}:uc:*", "{q:*}:pin:*", "{q:*}:last:*", "{q:*}:dirty", "{q}:lanes",  # marks not archived yet
    "{o:*}:ids", "{o:*}:names", "{o:*}:next",  # ordinals, also of users in no conversation
    "{u:*}:dev",  # devices: last seen, session epochs, who is shown to nobody
)  # fmt: skip
BATCH: Final = 200
_SCAN_COUNT: Final = 1_000


class RedisFamilies:
    """`HotFamilies` on one server."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def dumps(self) -> AsyncIterator[Sequence[KeyRow]]:
        """See the port."""
        for pattern in FAMILIES:
            cursor: Any = 0
            while True:
                async with translated("redis"):
                    cursor, found = await self._client.scan(cursor, match=pattern, count=_SCAN_COUNT)
                keys = [key for key in found if isinstance(key, bytes)]
                for start in range(0, len(keys), BATCH):
                    yield await self._dump(keys[start : start + BATCH])
                if not cursor:
                    break

    async def _dump(self, keys: Sequence[bytes]) -> list[KeyRow]:
        async with translated("redis"):
            pipe = self._client.pipeline(transaction=False)
            for key in keys:
                pipe.pttl(key)
                pipe.dump(key)
            found = await pipe.execute()
        rows = zip(keys, found[::2], found[1::2], strict=True)
        return [
            (key, max(0, ttl), dump) for key, ttl, dump in rows if dump is not None
        ]  # else gone meanwhile

    async def put(self, rows: Sequence[KeyRow]) -> None:
        """See the port. A key that SCAN gave twice is the same one."""
        async with translated("redis"):
            pipe = self._client.pipeline(transaction=False)
            for key, ttl, dump in rows:
                pipe.restore(key, ttl, dump)
            answers = await pipe.execute(raise_on_error=False)
        for (key, _, _), answer in zip(rows, answers, strict=True):
            if isinstance(answer, redis_errors.ResponseError) and "BUSYKEY" not in str(answer):
                raise ConfigError(
                    f"redis refuses {key!r}: {answer}; restore into the same version or a newer"
                )

    async def is_empty(self) -> bool:
        """See the port."""
        async with translated("redis"):
            return int(await self._client.dbsize()) == 0
