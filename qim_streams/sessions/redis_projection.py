"""The session projection on Redis.

====================================  ======  ==============================================================
``{q:<tenant>:<lane>}:convs:<ord>``   zset    conversation -> activity, ms: the rows of a user
``{q:<tenant>:<lane>}:wide:<ord>``    set     those whose activity is kept in their heads
``{q:<tenant>:<lane>}:reg``           hash    ``ordinal:conversation`` -> Registration that waits
``{q:<tenant>:<lane>}:built``         hash    ordinal -> projection epoch in which the user was rebuilt
``{qp:<k>}:at``                       hash    checkpoint of a MailboxShard: ``epoch offset target``
``{qp:<k>}:has:<tenant>``             hash    wide conversation -> ``<epoch> <bitmap version>``: whose rows
                                              exist in this shard
``{qt:all}:tenants``                  set     tenants that have rows
====================================  ======  ==============================================================

Invariants: a row only grows; a conversation that is in a user's set was registered in the same step; a
checkpoint moves by compare-and-set only. A checkpoint is written after what it covers was acknowledged, so
a server that lost its last writes lost the checkpoint before the rows.

Spec: §9, §14.5, §14.6.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
from redis import exceptions as redis_errors

from qim_streams.command_pipe import CommandPipe
from qim_streams.errors import RecordError, StoreError
from qim_streams.lru import LruMap
from qim_streams.placement import lane_of_ordinal
from qim_streams.redis_tier import RedisClient, Script, exchange, translate, translated, type_args
from qim_streams.sessions.projection_ports import Advance, CoverOf
from qim_streams.sessions.projection_records import (
    Checkpoint,
    Cover,
    Registration,
    SessionRow,
    Slot,
    decode_registration,
)

ROWS_PER_CALL = 250  # about a third of a millisecond of the server
CALLS_PER_TRIP = 256
TENANTS = "{qt:all}:tenants"
_TENANTS_KNOWN_MAX = 10_000
_FIELDS = ("epoch", "offset", "target")

_Call = tuple[str, tuple[type_args, ...]]


def slot_key(slot: Slot, what: str) -> str:
    """A key of a slot."""
    return f"{{q:{slot[0]}:{slot[1]}}}:{what}"


def user_key(tenant_id: str, ordinal: int, what: str) -> str:
    """A key of a user: ``convs`` or ``wide``."""
    return f"{{q:{tenant_id}:{lane_of_ordinal(ordinal)}}}:{what}:{ordinal}"


class RedisProjection:
    """`ProjectionStore`, `RegistrationQueue` and `Rebuilds` on Redis."""

    def __init__(self, client: RedisClient) -> None:
        self._client, self._reads = client, CommandPipe(client)
        self._project = Script.load("qim_streams.sessions", "project.lua")
        self._begin = Script.load("qim_streams.sessions", "checkpoint_begin.lua")
        self._advance = Script.load("qim_streams.sessions", "checkpoint_advance.lua")
        self._tenants: LruMap[str, bool] = LruMap(_TENANTS_KNOWN_MAX, _TENANTS_KNOWN_MAX)
        self._life = ""  # of the server in which these were noted

    # -- rows

    async def write(self, rows: Mapping[Slot, Sequence[SessionRow]]) -> int:
        """See `ProjectionStore.write`."""
        await self._note_tenants({tenant for tenant, _ in rows})
        calls = [call for slot, of_slot in rows.items() for call in _writes(slot, of_slot)]
        return sum([int(fresh) for fresh in await self._run(self._project, calls)])

    async def _note_tenants(self, tenants: set[str]) -> None:
        """Before any row: who looks for registrations finds the slots by it."""
        fresh = [tenant for tenant in tenants if self._tenants.get(tenant) is None]
        if fresh:
            async with translated("projection"):
                await self._client.sadd(TENANTS, *fresh)
            for tenant in fresh:
                self._tenants.put(tenant, True, 1)

    # -- checkpoints

    async def checkpoints(self, shards: Sequence[int]) -> list[Checkpoint | None]:
        """See `ProjectionStore.checkpoints`."""
        if not shards:
            return []
        async with translated("projection"):
            rows = await self._reads.run(*[("HMGET", _at(shard), *_FIELDS) for shard in shards])
        return [_checkpoint(row) for row in rows]

    async def begin(self, shard: int, expected: Checkpoint | None, new: Checkpoint) -> Checkpoint:
        """See `ProjectionStore.begin`."""
        before: tuple[type_args, ...] = ("", "", "") if expected is None else tuple(expected)
        (row,) = await self._run(self._begin, [(_at(shard), (*before, *new))])
        stands = _checkpoint(row)
        if stands is None:
            raise StoreError(f"projection of shard {shard}: its checkpoint is there in part only")
        return stands

    async def life(self) -> str:
        """See `ProjectionStore.life`."""
        async with translated("projection"):
            found: dict[str, Any] = await self._client.info("server")
        life = str(found["run_id"])
        if life != self._life:
            self._tenants.clear()
            self._life = life
        return life

    async def advance(self, moves: Sequence[Advance]) -> list[Checkpoint | None]:
        """See `ProjectionStore.advance`."""
        calls: list[_Call] = [
            (_at(one.shard), (one.epoch, one.expected, one.observed, one.life)) for one in moves
        ]
        return [_checkpoint(row) for row in await self._run(self._advance, calls)]

    # -- wide conversations

    async def covers(self, wanted: Sequence[CoverOf]) -> list[Cover | None]:
        """See `ProjectionStore.covers`."""
        if not wanted:
            return []
        async with translated("projection"):
            pipe = self._client.pipeline(transaction=False)
            for one in wanted:
                pipe.hget(_has(one), one.conversation_id)
            return [_cover(value) for value in await pipe.execute()]

    async def cover(self, of: CoverOf, cover: Cover) -> None:
        """See `ProjectionStore.cover`."""
        async with translated("projection"):
            await self._client.hset(_has(of), of.conversation_id, f"{cover.epoch} {cover.bitmap_version}")

    # -- registrations

    async def tenants(self) -> list[str]:
        """See `RegistrationQueue.tenants`."""
        async with translated("projection"):
            found: set[Any] = await self._client.smembers(TENANTS)
        return sorted(one.decode() for one in found)

    async def pending(self, slots: Sequence[Slot], limit: int) -> list[Registration]:
        """See `RegistrationQueue.pending`. RecordError when the queue holds something else."""
        async with translated("projection"):
            pipe = self._client.pipeline(transaction=False)
            for slot in slots:
                pipe.hscan(slot_key(slot, "reg"), count=limit)
            answers = await pipe.execute()
        return [
            decode_registration(slot[0], field, value)
            for slot, (_, found) in zip(slots, answers, strict=True)
            for field, value in found.items()
        ]

    async def settle(self, done: Sequence[Registration]) -> None:
        """See `RegistrationQueue.settle`."""
        if not done:
            return
        by_slot: dict[Slot, list[str]] = {}
        for one in done:
            by_slot.setdefault((one.tenant_id, lane_of_ordinal(one.ordinal)), []).append(one.field)
        async with translated("projection"):
            pipe = self._client.pipeline(transaction=False)
            for slot, fields in by_slot.items():
                pipe.hdel(slot_key(slot, "reg"), *fields)
            await pipe.execute()

    # -- rebuilding

    async def has_rows(self, tenant_id: str, ordinal: int) -> bool:
        """See `Rebuilds.has_rows`."""
        async with translated("projection"):
            (found,) = await self._reads.run(("EXISTS", user_key(tenant_id, ordinal, "convs")))
        return bool(found)

    async def rebuilt_in(self, tenant_id: str, ordinal: int) -> int | None:
        """See `Rebuilds.rebuilt_in`."""
        async with translated("projection"):
            (found,) = await self._reads.run(("HGET", _built(tenant_id, ordinal), ordinal))
        return None if found is None else int(found)

    async def note_rebuilt(self, tenant_id: str, ordinal: int, epoch: int) -> None:
        """See `Rebuilds.note_rebuilt`."""
        async with translated("projection"):
            await self._client.hset(_built(tenant_id, ordinal), str(ordinal), str(epoch))

    # -- calls

    async def _run(self, script: Script, calls: Sequence[_Call]) -> list[Any]:
        """The answers of script calls, in as few round trips as the bound allows; the first error is raised.

        Every call may be repeated, so after an error all of them are.
        """
        answers: list[Any] = []
        for start in range(0, len(calls), CALLS_PER_TRIP):
            answers += await self._trip(script, calls[start : start + CALLS_PER_TRIP])
        return answers

    async def _trip(self, script: Script, calls: Sequence[_Call]) -> list[Any]:
        async with translated("projection"):
            answers = await exchange(
                self._client, [("EVALSHA", script.sha, 1, key, *args) for key, args in calls]
            )
            for index, answer in enumerate(answers):
                if isinstance(answer, redis_errors.NoScriptError):
                    key, args = calls[index]
                    answers[index] = await self._client.eval(script.source, 1, key, *args)
        return _read(answers)


def _writes(slot: Slot, rows: Sequence[SessionRow]) -> list[_Call]:
    key = slot_key(slot, "reg")
    calls: list[_Call] = []
    for wide in (False, True):
        some = [row for row in rows if row[4] is wide]
        for start in range(0, len(some), ROWS_PER_CALL):
            part = [field for row in some[start : start + ROWS_PER_CALL] for field in row[:4]]
            # The Lua library of Redis reads the old raw type only, not bin.
            calls.append((key, ("1" if wide else "0", msgpack.packb(part, use_bin_type=False))))
    return calls


def _at(shard: int) -> str:
    return f"{{qp:{shard}}}:at"


def _has(of: CoverOf) -> str:
    return f"{{qp:{of.shard}}}:has:{of.tenant_id}"


def _built(tenant_id: str, ordinal: int) -> str:
    return slot_key((tenant_id, lane_of_ordinal(ordinal)), "built")


def _read(answers: list[Any]) -> list[Any]:
    """The answers, or the first error among them."""
    for answer in answers:
        if isinstance(answer, BaseException):
            raise translate(answer, "projection") from answer
    return answers


def _checkpoint(row: Sequence[bytes | None]) -> Checkpoint | None:
    epoch, offset, target = row
    if epoch is None or offset is None or target is None:
        return None
    return Checkpoint(int(epoch), int(offset), int(target))


def _cover(value: bytes | None) -> Cover | None:
    if value is None:
        return None
    epoch, space, version = value.partition(b" ")
    if not space:
        raise RecordError("projection: what is covered of a wide conversation is not two numbers")
    return Cover(int(epoch), int(version))
