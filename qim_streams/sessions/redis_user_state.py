"""States of users and what the archive lacks of them, on Redis (key table: `sessions.keys`).

Invariants: a state is replaced by compare-and-set, and is on the dirty list in the same step; the index of
lanes is written before a list is added to, so a list that holds something is always found.

Spec: §9.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from redis import exceptions as redis_errors

from qim_streams.command_pipe import CommandPipe
from qim_streams.lru import LruMap
from qim_streams.placement import lane_of_ordinal
from qim_streams.redis_tier import RedisClient, Script, exchange, translate, translated, type_args
from qim_streams.script_pipe import ScriptPipe
from qim_streams.sessions import keys
from qim_streams.sessions.ports import (
    Candidate,
    CandidatePage,
    DirtyState,
    Replaced,
    SessionUser,
    StateChange,
)
from qim_streams.sessions.rules import ListPlace

RESTORE_MAX = 500  # states in one call
LANE_NOTED_MS = 20_000  # how long this process trusts that a lane is in the index
_LANES_KNOWN_MAX = 100_000


class RedisUserStates:
    """`UserStateStore`, `ChangeOrders` and `DirtyStates` on Redis."""

    def __init__(self, client: RedisClient, now_ms: Callable[[], int]) -> None:
        self._client, self._now_ms = client, now_ms
        self._pipe, self._reads = ScriptPipe(client), CommandPipe(client)
        self._noted: LruMap[str, int] = LruMap(_LANES_KNOWN_MAX, _LANES_KNOWN_MAX)
        package = "qim_streams.sessions"
        self._page = Script.load(package, "user_page.lua")
        self._replace = Script.load(package, "user_replace.lua")
        self._restore = Script.load(package, "user_restore.lua")
        self._order = Script.load(package, "user_order.lua")
        self._take = Script.load(package, "dirty_take.lua")
        self._settle = Script.load(package, "dirty_settle.lua")

    # -- states

    async def page(self, user: SessionUser, before: ListPlace | None, limit: int) -> CandidatePage:
        """See `UserStateStore.page`."""
        place: tuple[type_args, ...] = ("", "") if before is None else before
        names = [_key(user, what) for what in ("convs", "uc", "pin", "wide", "last")]
        answer = await self._call(self._page, names, (keys.RESTORED_FIELD, limit, *place))
        restored, size, order, *lists = answer
        pinned, wide, rows = (list(_candidates(one)) for one in lists)
        return CandidatePage(bool(restored), int(size), pinned, wide, rows, int(order))

    async def load(
        self, user: SessionUser, conversation_ids: Sequence[str]
    ) -> tuple[bool, list[bytes | None]]:
        """See `UserStateStore.load`."""
        async with translated("user states"):
            wanted = "HMGET", _key(user, "uc"), keys.RESTORED_FIELD, *conversation_ids
            (found,) = await self._reads.run(wanted)
        return found[0] is not None, found[1:]

    async def replace(self, user: SessionUser, changes: Sequence[StateChange]) -> Replaced:
        """See `UserStateStore.replace`."""
        lane = lane_of_ordinal(user.ordinal)
        await self._note(user.tenant_id, lane)
        args: list[type_args] = [user.ordinal, self._now_ms()]
        for name, expected, state, version, pinned_at in changes:
            args += (name, 0 if expected is None else 1, expected or "", state, version, pinned_at)
        dirty = keys.base(user.tenant_id, lane) + "dirty"
        names = (_key(user, "uc"), _key(user, "pin"), dirty, _key(user, "last"))
        order, *done = await self._call(self._replace, names, args)
        return Replaced([bool(one) for one in done], int(order))

    async def restore(self, user: SessionUser, states: Sequence[StateChange]) -> None:
        """See `UserStateStore.restore`. The mark comes with the last part."""
        names = (_key(user, "uc"), _key(user, "pin"))
        for start in range(0, max(1, len(states)), RESTORE_MAX):
            last = start + RESTORE_MAX >= len(states)
            args: list[type_args] = [keys.RESTORED_FIELD if last else ""]
            for one in states[start : start + RESTORE_MAX]:
                args += (one.conversation_id, one.state, one.pinned_at)
            await self._call(self._restore, names, args)

    async def activities(self, user: SessionUser, conversation_ids: Sequence[str]) -> list[int]:
        """See `UserStateStore.activities`."""
        if not conversation_ids:
            return []
        async with translated("user states"):
            (found,) = await self._reads.run(("ZMSCORE", _key(user, "convs"), *conversation_ids))
        return [0 if score is None else int(float(score)) for score in found]

    async def next_order(self, user: SessionUser) -> int:
        """See `ChangeOrders.next_order`."""
        return int(await self._call(self._order, (_key(user, "last"),), (self._now_ms(),)))

    async def last_order(self, user: SessionUser) -> int:
        """See `ChangeOrders.last_order`."""
        async with translated("user states"):
            (found,) = await self._reads.run(("GET", _key(user, "last")))
        return int(found or 0)

    async def read_seqs(self, wanted: Sequence[tuple[SessionUser, str]]) -> list[bytes | None]:
        """See `UserStateStore.read_seqs`."""
        if not wanted:
            return []
        async with translated("user states"):
            answers = await exchange(
                self._client, [("HGET", _key(user, "uc"), name) for user, name in wanted]
            )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise translate(answer, "user states") from answer
        return answers

    # -- what the archive may lack

    async def lanes(self) -> list[tuple[str, int]]:
        """See `DirtyStates.lanes`."""
        async with translated("dirty states"):
            found: Any = await self._client.zrange(keys.LANES_KEY, 0, -1)
        return [_lane(one) for one in found]

    async def take(self, lane: tuple[str, int], limit: int) -> list[DirtyState]:
        """See `DirtyStates.take`."""
        answer = await self._call(self._take, (keys.base(*lane) + "dirty",), (limit,))
        return [
            DirtyState(*_member(member), int(float(version)), state)
            for member, version, state in zip(answer[::3], answer[1::3], answer[2::3], strict=True)
        ]

    async def settle(self, lane: tuple[str, int], done: Sequence[DirtyState]) -> None:
        """See `DirtyStates.settle`."""
        if not done:
            return
        args: list[type_args] = []
        for one in done:
            args += (keys.dirty_member(one.ordinal, one.conversation_id), one.version)
        await self._call(self._settle, (keys.base(*lane) + "dirty",), args)

    async def forget_lane(self, lane: tuple[str, int], before_ms: int) -> None:
        """See `DirtyStates.forget_lane`. Who adds notes the lane first, and adds long before `before_ms`."""
        member = f"{lane[0]}:{lane[1]}"
        async with translated("dirty states"):
            noted = await self._client.zscore(keys.LANES_KEY, member)
            if noted is not None and noted < before_ms:
                await self._client.zrem(keys.LANES_KEY, member)

    async def _note(self, tenant_id: str, lane: int) -> None:
        member, now = f"{tenant_id}:{lane}", self._now_ms()
        noted = self._noted.get(member)
        if noted is not None and now - noted < LANE_NOTED_MS:
            return
        async with translated("dirty states"):
            await self._client.zadd(keys.LANES_KEY, {member: now}, gt=True)
        self._noted.put(member, now)

    async def _call(self, script: Script, names: Sequence[str], args: Sequence[type_args]) -> Any:
        try:
            return await self._pipe.call(script, names, args)
        except (redis_errors.RedisError, OSError, TimeoutError) as error:
            raise translate(error, "user states") from error


def _key(user: SessionUser, what: str) -> str:
    return keys.of_user(user.tenant_id, user.ordinal, what)


def _candidates(flat: Sequence[Any]) -> Iterator[Candidate]:
    for name, activity, state in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
        yield Candidate(name.decode(), int(float(activity)), state)


def _member(member: bytes) -> tuple[int, str]:
    ordinal, _, conversation = member.partition(b":")
    return int(ordinal), conversation.decode()


def _lane(member: bytes) -> tuple[str, int]:
    tenant, _, lane = member.decode().rpartition(":")
    return tenant, int(lane)
