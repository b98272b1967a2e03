"""The book of presence in Redis: ``{q:<tenant>:<lane>}:on:<ord>`` and ``...:seen:<ord>``, a script for both.

Spec: §6.
"""

from collections.abc import Sequence

from qim_streams.presence.book import Seen, Sight
from qim_streams.redis_tier import RedisClient, Script, translate, translated, type_args
from qim_streams.sessions import keys
from qim_streams.sessions.ports import SessionUser

CALLS_MAX = 500  # script calls in one pipeline

_Call = tuple[SessionUser, tuple[type_args, ...]]


class RedisPresenceBook:
    """`book.PresenceBook` on Redis."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._script = Script.load("qim_streams.presence", "sight.lua")

    async def note(self, sights: Sequence[Sight], now_ms: int) -> list[Seen | None]:
        """See the port."""
        answers = await self._call(
            [(one.user, ("note", now_ms, one.device_id, one.until_ms)) for one in sights]
        )
        return [seen if changed else None for changed, seen in answers]

    async def seen(self, users: Sequence[SessionUser], now_ms: int) -> list[Seen]:
        """See the port."""
        return [seen for _, seen in await self._call([(user, ("seen", now_ms)) for user in users])]

    async def set_visible(self, user: SessionUser, visible: bool, now_ms: int) -> Seen | None:
        """See the port."""
        ((changed, seen),) = await self._call([(user, ("show" if visible else "hide", now_ms))])
        return seen if changed else None

    async def _call(self, calls: Sequence[_Call]) -> list[tuple[bool, Seen]]:
        found = []
        for begin in range(0, len(calls), CALLS_MAX):
            part = [
                ([_key(user, "on"), _key(user, "seen")], args)
                for user, args in calls[begin : begin + CALLS_MAX]
            ]
            async with translated("presence"):
                answers = await self._script.call_many(self._client, part)
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise translate(answer, "presence") from answer
                changed, online, last = answer
                found.append((bool(changed), Seen(bool(online), int(last))))
        return found


def _key(user: SessionUser, what: str) -> str:
    return keys.of_user(user.tenant_id, user.ordinal, what)
