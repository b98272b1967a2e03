"""User ordinals on Redis.

Keys: ``{o:<tenant>:<lane>}:ids`` (hash user -> count) and ``:names`` (hash count -> user), for ever.
ordinal = count << 6 | lane.

Invariants: a count is given once, so an ordinal is never reused; what is known is cached without a time
limit, because it never changes. A user without an ordinal is not cached.

Spec: §2, §14.5.
"""

import asyncio
from collections.abc import Sequence

from redis import exceptions as redis_errors

from qim_streams import limits
from qim_streams.errors import StoreError
from qim_streams.lru import LruMap
from qim_streams.placement import LANE_BITS, lane, lane_of_ordinal, ordinal_of
from qim_streams.redis_tier import RedisClient, Script, translate, translated
from qim_streams.script_pipe import ScriptPipe

CACHE_MAX = 200_000


class RedisOrdinalDirectory:
    """`OrdinalDirectory` on Redis."""

    def __init__(self, client: RedisClient, pipe: ScriptPipe, cache_max: int = CACHE_MAX) -> None:
        self._client, self._pipe = client, pipe
        self._script = Script.load("qim_streams.membership", "ordinals.lua")
        self._known: LruMap[tuple[str, str], int] = LruMap(cache_max, cache_max)

    async def assign(self, tenant_id: str, user_ids: Sequence[str]) -> list[int]:
        """See the port. Atomic per lane, not as a whole: a repeat gives the same numbers."""
        known = {user: self._known.get((tenant_id, user)) for user in user_ids}
        by_lane = _by_lane(tenant_id, [user for user, ordinal in known.items() if ordinal is None])
        calls = [
            self._assign_in_lane(tenant_id, number, users[start : start + limits.LUA_ARGUMENTS_MAX])
            for number, users in by_lane.items()
            for start in range(0, len(users), limits.LUA_ARGUMENTS_MAX)
        ]
        for found in await asyncio.gather(*calls):
            known.update(found)
        return [self._remember(tenant_id, user, known[user]) for user in user_ids]

    async def find(self, tenant_id: str, user_ids: Sequence[str]) -> list[int | None]:
        """See the port."""
        found: list[int | None] = [self._known.get((tenant_id, user)) for user in user_ids]
        missing = [index for index, ordinal in enumerate(found) if ordinal is None]
        if not missing:
            return found
        async with translated("ordinals"):
            pipe = self._client.pipeline(transaction=False)
            for index in missing:
                pipe.hget(_key(tenant_id, lane(tenant_id, user_ids[index]), "ids"), user_ids[index])
            counts = await pipe.execute()
        for index, count in zip(missing, counts, strict=True):
            if count is not None:
                ordinal = ordinal_of(int(count), lane(tenant_id, user_ids[index]))
                found[index] = self._remember(tenant_id, user_ids[index], ordinal)
        return found

    async def names(self, tenant_id: str, ordinals: Sequence[int]) -> list[str | None]:
        """See the port."""
        if not ordinals:
            return []
        async with translated("ordinals"):
            pipe = self._client.pipeline(transaction=False)
            for ordinal in ordinals:
                pipe.hget(_key(tenant_id, lane_of_ordinal(ordinal), "names"), str(ordinal >> LANE_BITS))
            users = await pipe.execute()
        return [None if user is None else user.decode() for user in users]

    async def _assign_in_lane(self, tenant_id: str, number: int, users: list[str]) -> dict[str, int]:
        names = (_key(tenant_id, number, "ids"), _key(tenant_id, number, "names"))
        try:
            counts = await self._pipe.call(self._script, names, users)
        except (redis_errors.RedisError, OSError, TimeoutError) as error:
            raise translate(error, "ordinals") from error
        try:
            return {user: ordinal_of(count, number) for user, count in zip(users, counts, strict=True)}
        except OverflowError as error:
            raise StoreError(f"ordinals: {error}") from error

    def _remember(self, tenant_id: str, user: str, ordinal: int | None) -> int:
        assert ordinal is not None, "every user was assigned above"
        self._known.put((tenant_id, user), ordinal)
        return ordinal


def _by_lane(tenant_id: str, users: Sequence[str]) -> dict[int, list[str]]:
    grouped: dict[int, list[str]] = {}
    for user in users:
        grouped.setdefault(lane(tenant_id, user), []).append(user)
    return grouped


def _key(tenant_id: str, lane_id: int, what: str) -> str:
    return f"{{o:{tenant_id}:{lane_id}}}:{what}"
