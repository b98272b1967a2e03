"""`HotRecords` on Redis (key table: `commit.keys`): four scripts, each on keys of one Outbox partition.

Invariants: a removal compares and removes in one step (``hot_drop.lua``); calls are bounded in keys and
bytes; repeating any of them is harmless.

Spec: §14.8.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from qim_streams.archive.ports import ArchivedCopy, Covered, Dropped, Silent
from qim_streams.commit import keys
from qim_streams.redis_tier import RedisClient, Script, translated, type_args

NOTES_MAX: Final = 500  # conversations in one call
COPIES_MAX: Final = 500  # messages in one call of `drop`: three arguments each, well below Lua's stack


class RedisHotRecords:
    """The messages of the hot tier, seen by the archiver."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._note = Script.load("qim_streams.archive", "hot_note.lua")
        self._silent = Script.load("qim_streams.archive", "hot_silent.lua")
        self._drop = Script.load("qim_streams.archive", "hot_drop.lua")
        self._forget = Script.load("qim_streams.archive", "hot_forget.lua")

    async def note(self, partition: int, conversations: Sequence[Covered], at_ms: int) -> list[int]:
        """See the port."""
        found: list[int] = []
        for start in range(0, len(conversations), NOTES_MAX):
            args: list[type_args] = [at_ms]
            for tenant, chat, seq in conversations[start : start + NOTES_MAX]:
                args += (keys.conversation(tenant, chat), seq)
            answer = await self._call(self._note, partition, ("hot",), args)
            found.extend(int(number) for number in answer)
        return found

    async def silent(self, partition: int, before_ms: int, limit: int) -> list[Silent]:
        """See the port."""
        flat = await self._call(self._silent, partition, ("hot",), (before_ms, limit))
        return [
            Silent(*_split(name), int(hot_from), int(covered_seq))
            for name, hot_from, covered_seq in zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        ]

    async def drop(
        self,
        partition: int,
        conversation: tuple[str, str],
        copies: Sequence[ArchivedCopy],
        hot_from: int,
    ) -> Dropped:
        """See the port; at most `COPIES_MAX` copies."""
        if len(copies) > COPIES_MAX:
            raise ValueError(f"copies: {len(copies)} in one call, at most {COPIES_MAX}")
        name = keys.conversation(*conversation)
        args: list[type_args] = [hot_from]
        for one in copies:
            # SHA-1 is what Lua scripts of Redis have; nobody gains anything by making it collide here.
            digest = hashlib.sha1(one.record, usedforsecurity=False).hexdigest()
            args += (one.conversation_seq, one.message_id, digest)
        names = ("pend", f"r:{name}", f"c:{name}")
        removed, differing, stopped_at = await self._call(self._drop, partition, names, args)
        return Dropped(removed, differing, stopped_at or None)

    async def forget(self, partition: int, conversations: Sequence[tuple[str, str]], before_ms: int) -> None:
        """See the port."""
        for start in range(0, len(conversations), NOTES_MAX):
            names = [keys.conversation(*one) for one in conversations[start : start + NOTES_MAX]]
            await self._call(self._forget, partition, ("hot",), (before_ms, *names))

    async def _call(
        self, script: Script, partition: int, names: Sequence[str], args: Sequence[type_args]
    ) -> Any:
        base = keys.base(partition)
        async with translated(f"ob:{partition}"):
            return await script.call(self._client, [base + name for name in names], args)


def _split(name: bytes) -> tuple[str, str]:
    tenant, _, conversation = name.decode().partition(":")
    return tenant, conversation
