"""Rooms on Redis. Every write compares the epoch of the partition's owner in the same slot.

Keys, ``<t>`` = ``<tenant>:<room>``:

* ``{rm:p}:r:<t>`` hash: ``head``, ``seq`` of the last checkpoint, and ``u.<user>`` for each standing
* ``{rm:p}:list:<tenant>`` zset: ids of open rooms
* ``{rm:p}:at`` string: log offset that the stored seqs reflect
* ``{rc:<t>}:here`` hash: gateway -> ``<connections> <good until, ms>``; goes when nobody refreshes it

What is lost with Redis is lost: rooms are made anew, which their epoch tells (docs/decisions/0018-rooms.md).

Spec: §10.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from qim_streams.codec import Layout, pack_fields
from qim_streams.errors import StoreError
from qim_streams.ids import is_text_id
from qim_streams.placement import room_partition
from qim_streams.redis_tier import RedisClient, Script, translate, translated, type_args
from qim_streams.rooms.ports import StoredRoom
from qim_streams.rooms.rules import NOBODY, RoomHead, Standing

CLOSED_KEPT_MS: Final = 86_400_000  # so that its id means nothing else while anybody remembers it
COUNT_TTL_MS: Final = 45_000
SLICE: Final = 500  # rooms in one request
_HEAD = Layout("RoomHead", str, str, str, int, bool, bool)
_STANDING = Layout("Standing", str, int, int)
_USER = "u."


class RedisRoomStore:
    """`RoomStore`."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._script = Script.load("qim_streams.rooms", "room.lua")

    async def load(self, partition: int, tenant_id: str, room_id: str) -> StoredRoom | None:
        """See the port. RecordError for damaged rows."""
        async with translated(f"rm:{partition}"):
            fields: Any = await self._client.hgetall(_room(partition, tenant_id, room_id))
        head = fields.get(b"head")
        if head is None:
            return None
        standings = {
            name.decode()[len(_USER) :]: Standing(*_STANDING.read(value)[:3])
            for name, value in fields.items()
            if name.startswith(_USER.encode())
        }
        return StoredRoom(RoomHead(*_HEAD.read(head)[:6]), int(fields.get(b"seq", b"0")), standings)

    async def create(self, partition: int, epoch: int, tenant_id: str, room_id: str, head: RoomHead) -> bool:
        """See the port."""
        return await self._write(partition, epoch, "create", tenant_id, room_id, head, {})

    async def put(
        self,
        partition: int,
        epoch: int,
        tenant_id: str,
        room_id: str,
        head: RoomHead,
        standings: Mapping[str, Standing],
    ) -> None:
        """See the port."""
        if not await self._write(partition, epoch, "put", tenant_id, room_id, head, standings):
            raise StoreError(f"rm:{partition}: the room is not there any more")

    async def _write(
        self,
        partition: int,
        epoch: int,
        action: str,
        tenant_id: str,
        room_id: str,
        head: RoomHead,
        standings: Mapping[str, Standing],
    ) -> bool:
        rows: list[str | bytes] = ["head", pack_fields(tuple(head))]
        for user, standing in standings.items():
            rows += (_USER + user, b"" if standing == NOBODY else pack_fields(tuple(standing)))
        base = f"{{rm:{partition}}}:"
        keys = (base + "epoch", _room(partition, tenant_id, room_id), f"{base}list:{tenant_id}")
        kept_ms = CLOSED_KEPT_MS if head.closed else 0
        async with translated(f"rm:{partition}", epoch):
            answer = await self._script.call(self._client, keys, (epoch, action, room_id, kept_ms, *rows))
        return bool(answer)

    async def checkpoint(
        self, partition: int, epoch: int, known: int, offset: int, seqs: Mapping[tuple[str, str], int]
    ) -> int:
        """See the port. In slices, of which the last one moves the offset."""
        base, rows = f"{{rm:{partition}}}:", list(seqs.items())
        slices = [rows[at : at + SLICE] for at in range(0, len(rows), SLICE)] or [[]]
        stands = known
        for index, part in enumerate(slices):
            at = offset if index == len(slices) - 1 else known
            keys = (base + "epoch", base + "at", *(_room(partition, *name) for name, _ in part))
            args: list[type_args] = [epoch, "checkpoint", at, known, *(seq for _, seq in part)]
            async with translated(f"rm:{partition}", epoch):
                stands = int(await self._script.call(self._client, keys, args))
            if stands < known:
                break
        return stands

    async def position(self, partition: int) -> int:
        """See the port."""
        async with translated(f"rm:{partition}"):
            return int(await self._client.get(f"{{rm:{partition}}}:at") or 0)


class RedisRoomListing:
    """`RoomListing` over all partitions."""

    def __init__(self, client: RedisClient, partitions: int) -> None:
        self._client, self._partitions = client, partitions

    async def rooms(self, tenant_id: str, after_room_id: str, limit: int) -> list[str]:
        """See the port."""
        low = f"({after_room_id}" if is_text_id(after_room_id) else "-"
        async with translated("rooms"):
            pipe = self._client.pipeline(transaction=False)
            for partition in range(self._partitions):
                pipe.zrangebylex(f"{{rm:{partition}}}:list:{tenant_id}", low, "+", 0, limit)
            found = await pipe.execute()
        return sorted(one.decode() for part in found for one in part)[:limit]

    async def view(self, tenant_id: str, room_id: str) -> StoredRoom | None:
        """A room as the store has it."""
        number = room_partition(tenant_id, room_id, self._partitions)
        return await RedisRoomStore(self._client).load(number, tenant_id, room_id)


class RedisRoomCounts:
    """`RoomCounts`: a few requests for all rooms of a gateway, none per join."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def exchange(
        self, gateway: str, counts: Mapping[tuple[str, str], int], now_ms: int
    ) -> dict[tuple[str, str], int]:
        """See the port."""
        rooms, totals = list(counts), dict[tuple[str, str], int]()
        for start in range(0, len(rooms), SLICE):
            part = rooms[start : start + SLICE]
            async with translated("room counts"):
                pipe = self._client.pipeline(transaction=False)
                for name in part:
                    key, count = _here(name), counts[name]
                    if count:
                        pipe.hset(key, gateway, f"{count} {now_ms + COUNT_TTL_MS}")
                        pipe.pexpire(key, 2 * COUNT_TTL_MS)
                    else:
                        pipe.hdel(key, gateway)
                        pipe.exists(key)
                    pipe.hgetall(key)
                answers = await pipe.execute(raise_on_error=False)
            for name, fields in zip(part, answers[2::3], strict=True):
                totals[name] = _total(fields, now_ms)
        return totals

    async def totals(self, rooms: Sequence[tuple[str, str]], now_ms: int) -> list[int]:
        """See the port."""
        async with translated("room counts"):
            pipe = self._client.pipeline(transaction=False)
            for name in rooms:
                pipe.hgetall(_here(name))
            return [_total(fields, now_ms) for fields in await pipe.execute()]


def _total(fields: Any, now_ms: int) -> int:
    if isinstance(fields, Exception):
        raise translate(fields, "room counts") from fields
    total = 0
    for value in fields.values():
        count, _, until_ms = value.decode().partition(" ")
        if int(until_ms) > now_ms:
            total += int(count)
    return total


def _room(partition: int, tenant_id: str, room_id: str) -> str:
    return f"{{rm:{partition}}}:r:{tenant_id}:{room_id}"


def _here(name: tuple[str, str]) -> str:
    return f"{{rc:{name[0]}:{name[1]}}}:here"
