"""Tenants, users, devices and recently active conversations, read from the hot tier. Nothing is written.

Users are walked lane by lane (``HSCAN`` of the ordinal directory), conversations by the index that the
archiver keeps (``{ob:p}:hot``), newest first over all partitions. Both are bounded per request.

Spec: §2, §8.
"""

import asyncio
import heapq
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from qim_streams.commit import keys
from qim_streams.console.directory import Active, DeviceRow
from qim_streams.errors import ProtocolError
from qim_streams.gateway.redis_devices import NOTHING, devices_key
from qim_streams.ids import is_text_id
from qim_streams.membership.ports import Conversation
from qim_streams.membership.redis_directory import ids_key
from qim_streams.membership.redis_store import RedisMembershipStore
from qim_streams.placement import LANES, lane, ordinal_of
from qim_streams.redis_tier import RedisClient, translated
from qim_streams.sessions.redis_projection import TENANTS

TENANTS_MAX: Final = 1_000
SCAN_COUNT: Final = 500
SCANS_MAX: Final = 96  # in one request: every lane once, and more
ACTIVE_MAX: Final = 2_000  # entries looked at in one request
ACTIVE_STEP: Final = 200
_TEXT = re.compile(r"[A-Za-z0-9._@~-]{0,128}")
_USERS_CURSOR = re.compile(r"([0-9]{1,2})\.([0-9]{1,20})")
_ACTIVE_CURSOR = re.compile(r"([0-9]{1,16})\.([0-9]{1,6})")
_SCAN_MAX: Final = 2**64 - 1


class RedisUserIndex:
    """`UserIndex` on Redis."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def tenants(self) -> list[str]:
        """See `UserIndex.tenants`."""
        found: set[str] = set()
        cursor, names = 0, list[Any]()
        async with translated("tenants"):
            while len(found) < TENANTS_MAX:
                answer: Any = await self._client.sscan(TENANTS, cursor, count=SCAN_COUNT)
                cursor, names = answer
                found |= {name.decode() for name in names}
                if not cursor:
                    break
        return sorted(found)[:TENANTS_MAX]

    async def users(
        self, tenant_id: str, cursor: str | None, limit: int, contains: str
    ) -> tuple[list[tuple[str, int]], str | None]:
        """See `UserIndex.users`. A page may have some more than `limit`: a small lane comes whole."""
        number, at = _users_place(cursor)
        match = f"*{_searched(contains)}*" if contains else None
        found: dict[str, int] = {}
        async with translated("ordinals"):
            for _ in range(SCANS_MAX):
                if number >= LANES or len(found) >= limit:
                    break
                answer: Any = await self._client.hscan(
                    ids_key(tenant_id, number), at, match=match, count=SCAN_COUNT
                )
                at, rows = answer
                found |= {user.decode(): ordinal_of(int(count), number) for user, count in rows.items()}
                number += not at
        return list(found.items()), None if number >= LANES else f"{number}.{at}"

    async def ordinal(self, tenant_id: str, user_id: str) -> int | None:
        """See `UserIndex.ordinal`."""
        number = lane(tenant_id, user_id)
        async with translated("ordinals"):
            count: Any = await self._client.hget(ids_key(tenant_id, number), user_id)
        return None if count is None else ordinal_of(int(count), number)

    async def devices(self, tenant_id: str, user_id: str) -> list[DeviceRow]:
        """See `UserIndex.devices`."""
        async with translated("device sessions"):
            rows: Any = await self._client.hgetall(devices_key(tenant_id, user_id))
        return sorted(
            (_device(name.decode(), row.decode().split(" ")) for name, row in rows.items()),
            key=lambda one: -one.last_seen_ms,
        )


class RedisConversationIndex:
    """`ConversationIndex` on Redis. `heads` are read by the membership store."""

    def __init__(
        self, client: RedisClient, partitions: int, store: Callable[[], RedisMembershipStore]
    ) -> None:
        self._client, self._partitions, self._store = client, partitions, store

    async def active(
        self, tenant_id: str, cursor: str | None, limit: int, contains: str
    ) -> tuple[list[Active], str | None]:
        """See `ConversationIndex.active`. The place is a moment and how many of that moment were shown."""
        below, skip = _active_place(cursor)
        wanted = _searched(contains)
        found: list[Active] = []
        looked = 0
        while looked < ACTIVE_MAX:
            rows = await self._newest(below, skip + ACTIVE_STEP)
            part = rows[skip : skip + ACTIVE_STEP]
            for at_ms, name, partition in part:
                looked += 1
                skip = skip + 1 if at_ms == below else 1
                below = at_ms
                tenant, _, conversation = name.partition(":")
                if tenant == tenant_id and wanted in conversation:
                    found.append(Active(conversation, at_ms, partition))
                if len(found) >= limit:
                    return found, f"{below}.{skip}"
            if len(part) < ACTIVE_STEP:
                return found, None
        return found, f"{below}.{skip}"

    async def heads(self, tenant_id: str, conversation_ids: Sequence[str]) -> list[Conversation | None]:
        """See `ConversationIndex.heads`."""
        store = self._store()
        return list(await asyncio.gather(*(store.conversation(tenant_id, one) for one in conversation_ids)))

    async def _newest(self, below: int | None, count: int) -> list[tuple[int, str, int]]:
        """The newest `count` entries of all partitions not above `below`, by falling time, then by name."""
        top = "+inf" if below is None else below
        async with translated("conversations"):
            pipe = self._client.pipeline(transaction=False)
            for partition in range(self._partitions):
                pipe.zrevrangebyscore(
                    f"{keys.base(partition)}hot", top, "-inf", start=0, num=count, withscores=True
                )
            lists = await pipe.execute()
        rows = (
            (int(score), name.decode(), partition)
            for partition, of_one in enumerate(lists)
            for name, score in of_one
        )
        return heapq.nsmallest(count, rows, key=lambda row: (-row[0], row[1]))


def _searched(text: str) -> str:
    """What may be looked for: letters of ids, none of which means anything to a pattern."""
    if not _TEXT.fullmatch(text):
        raise ProtocolError("FIELD_INVALID", "contains: letters, digits and . _ @ ~ - only", field="contains")
    return text


def _users_place(cursor: str | None) -> tuple[int, int]:
    if cursor is None:
        return 0, 0
    match = _USERS_CURSOR.fullmatch(cursor)
    if match is None or int(match[2]) > _SCAN_MAX:
        raise ProtocolError("FIELD_INVALID", "cursor: is not one of ours", field="cursor")
    return int(match[1]), int(match[2])


def _active_place(cursor: str | None) -> tuple[int | None, int]:
    if cursor is None:
        return None, 0
    match = _ACTIVE_CURSOR.fullmatch(cursor)
    if match is None or int(match[2]) > ACTIVE_MAX * 100:
        raise ProtocolError("FIELD_INVALID", "cursor: is not one of ours", field="cursor")
    return int(match[1]), int(match[2])


def _device(name: str, words: list[str]) -> DeviceRow:
    """A row of ``device_session.lua``; older ones have two words only."""
    epoch, seen, platform, by = [*words, NOTHING, NOTHING][:4]
    return DeviceRow(
        name,
        int(epoch) if epoch.isdigit() else 0,
        int(seen) if seen.isdigit() else 0,
        platform if is_text_id(platform) else None,
        by if is_text_id(by) else None,
    )
