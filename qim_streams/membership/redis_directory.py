"""User ordinals on Redis.

Keys: ``{o:<tenant>:<lane>}:ids`` (hash user -> count), ``:names`` (hash count -> user), ``:next`` (the next
count) and ``:run``, for ever. ordinal = count << 6 | lane.

A server that lost writes may have lost users. So after every start of the server a lane gives out new numbers
only once all Outbox partitions are proved whole (`ownership.wholeness`): by then every user whom a log names
is back. Users who are in no log may have had numbers, too; `COUNTS_LEFT_OUT` are left out for them.

Invariants: a count is given once, so an ordinal is never reused; what is known is cached without a time
limit, until `forget`. A user without an ordinal is not cached.

Spec: §2, §14.4, §14.5.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from redis import exceptions as redis_errors

from qim_streams import limits
from qim_streams.errors import Outcome, StoreError, StoreUnavailable
from qim_streams.lru import LruMap
from qim_streams.ownership.redis_wholeness import RedisWholeness
from qim_streams.placement import LANE_BITS, lane, lane_of_ordinal, ordinal_of
from qim_streams.redis_tier import RedisClient, Script, translate, translated, type_args
from qim_streams.script_pipe import ScriptPipe

log = logging.getLogger(__name__)

CACHE_MAX = 200_000
COUNTS_LEFT_OUT = 4_096  # of 2^26 in a lane: 64 lanes of them are 262,144 users of a tenant
_UNPROVED = "UNPROVED"
_NO_PROOF, _ASK = "", "?"


class _Unproved(Exception):
    """Somebody is new, and the lane may have lost users."""


class RedisOrdinalDirectory:
    """`OrdinalDirectory` on Redis. Without `proofs` a lane is taken for what it is (tests, measurements)."""

    def __init__(
        self,
        client: RedisClient,
        pipe: ScriptPipe,
        proofs: RedisWholeness | None = None,
        cache_max: int = CACHE_MAX,
    ) -> None:
        self._client, self._pipe, self._proofs = client, pipe, proofs
        self._script = Script.load("qim_streams.membership", "ordinals.lua")
        self._restore = Script.load("qim_streams.membership", "ordinals_restore.lua")
        self._known: LruMap[tuple[str, str], int] | None = LruMap(cache_max, cache_max) if cache_max else None

    async def assign(self, tenant_id: str, user_ids: Sequence[str]) -> list[int]:
        """See the port. Atomic per lane, not as a whole: a repeat gives the same numbers."""
        known = {user: self._remembered(tenant_id, user) for user in user_ids}
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
        found: list[int | None] = [self._remembered(tenant_id, user) for user in user_ids]
        missing = [index for index, ordinal in enumerate(found) if ordinal is None]
        if not missing:
            return found
        async with translated("ordinals"):
            pipe = self._client.pipeline(transaction=False)
            for index in missing:
                pipe.hget(ids_key(tenant_id, lane(tenant_id, user_ids[index])), user_ids[index])
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

    async def restore(self, tenant_id: str, seats: Sequence[tuple[str, int]]) -> int:
        """See the port. Safe to repeat."""
        by_lane: dict[int, list[str | int]] = {}
        for user, ordinal in seats:
            by_lane.setdefault(lane_of_ordinal(ordinal), []).extend((user, ordinal >> LANE_BITS))
        missing = 0
        for number, args in by_lane.items():
            for start in range(0, len(args), limits.LUA_ARGUMENTS_MAX):
                part = args[start : start + limits.LUA_ARGUMENTS_MAX]
                missing += int(await self._call(self._restore, _keys(tenant_id, number)[:3], part))
        return missing

    async def reassert(self) -> None:
        """Write what this process remembers back where it is missing: it was given out, and may be in use."""
        by_tenant: dict[str, list[tuple[str, int]]] = {}
        for (tenant, user), ordinal in self._known.items() if self._known is not None else ():
            by_tenant.setdefault(tenant, []).append((user, ordinal))
        for tenant, seats in by_tenant.items():
            missing = await self.restore(tenant, seats)
            if missing:
                log.error("the hot tier had lost %d ordinals of %s; restored from memory", missing, tenant)

    def forget(self) -> None:
        """See the port."""
        if self._known is not None:
            self._known.clear()

    async def _assign_in_lane(self, tenant_id: str, number: int, users: list[str]) -> dict[str, int]:
        names = _keys(tenant_id, number)
        proof = _NO_PROOF if self._proofs is None else _ASK
        try:
            counts = await self._call(self._script, names, (proof, COUNTS_LEFT_OUT, *users))
        except _Unproved:
            counts = await self._open_lane(names, users)
        try:
            return {user: ordinal_of(count, number) for user, count in zip(users, counts, strict=True)}
        except OverflowError as error:
            raise StoreError(f"ordinals: {error}") from error

    async def _open_lane(self, names: Sequence[str], users: list[str]) -> list[int]:
        """The first new user of a lane since the server was started."""
        assert self._proofs is not None, "it asked for a proof"
        run = await self._proofs.require_whole()
        try:
            counts: list[int] = await self._call(self._script, names, (run, COUNTS_LEFT_OUT, *users))
        except _Unproved as error:
            raise StoreUnavailable("ordinals: the server was started anew", Outcome.NOT_APPLIED) from error
        await self._proofs.require_whole()  # emptied in between: then these numbers are nobody's
        return counts

    async def _call(self, script: Script, names: Sequence[str], args: Sequence[type_args]) -> Any:
        try:
            return await self._pipe.call(script, names, args)
        except (redis_errors.RedisError, OSError, TimeoutError) as error:
            if _UNPROVED in str(error):
                raise _Unproved from error
            raise translate(error, "ordinals") from error

    def _remembered(self, tenant_id: str, user: str) -> int | None:
        return None if self._known is None else self._known.get((tenant_id, user))

    def _remember(self, tenant_id: str, user: str, ordinal: int | None) -> int:
        assert ordinal is not None, "every user was assigned above"
        if self._known is not None:
            self._known.put((tenant_id, user), ordinal)
        return ordinal


def _by_lane(tenant_id: str, users: Sequence[str]) -> dict[int, list[str]]:
    grouped: dict[int, list[str]] = {}
    for user in users:
        grouped.setdefault(lane(tenant_id, user), []).append(user)
    return grouped


def _keys(tenant_id: str, lane_id: int) -> tuple[str, ...]:
    return tuple(_key(tenant_id, lane_id, what) for what in ("ids", "names", "next", "run"))


def ids_key(tenant_id: str, lane_id: int) -> str:
    """Where the users of a lane are, with their counts."""
    return _key(tenant_id, lane_id, "ids")


def _key(tenant_id: str, lane_id: int, what: str) -> str:
    return f"{{o:{tenant_id}:{lane_id}}}:{what}"
