"""What operators did with dead letters, in Redis.

==================  ======  =====================================================================
``{dl:<p>}:done``    hash    offset in a partition of the dead letters -> ``<state> <ms>``; none: open
==================  ======  =====================================================================

A mark goes when the log has lost its letter. With the hot tier the marks are lost, and letters are open
again: giving one back twice is harmless.

Spec: §11.
"""

from collections.abc import Sequence
from typing import Any, Final

from qim_streams.console.dead_letters import OPEN, Mark
from qim_streams.redis_tier import RedisClient, Script, translated

MARKS_MAX: Final = 100_000  # looked at to forget; more are left for the next time


class RedisLetterMarks:
    """`LetterMarks` on Redis."""

    def __init__(self, client: RedisClient) -> None:
        self._client, self._move = client, Script.load("qim_streams.console", "letter_mark.lua")

    async def read(self, places: Sequence[tuple[int, int]]) -> list[Mark | None]:
        """See `LetterMarks.read`."""
        if not places:
            return []
        async with translated("dead letters"):
            pipe = self._client.pipeline(transaction=False)
            for partition, offset in places:
                pipe.hget(_key(partition), str(offset))
            rows = await pipe.execute()
        return [None if row is None else _mark(row) for row in rows]

    async def move(self, place: tuple[int, int], expected: str, mark: Mark) -> bool:
        """See `LetterMarks.move`."""
        async with translated("dead letters"):
            moved = await self._move.call(
                self._client,
                [_key(place[0])],
                (str(place[1]), expected, f"{mark.state} {mark.at_ms}"),
            )
        return bool(moved)

    async def forget(self, partition: int, below: int) -> None:
        """See `LetterMarks.forget`."""
        async with translated("dead letters"):
            if await self._client.hlen(_key(partition)) > MARKS_MAX:
                return
            offsets: Any = await self._client.hkeys(_key(partition))
            gone = [one for one in offsets if int(one) < below]
            if gone:
                await self._client.hdel(_key(partition), *gone)


def _mark(row: Any) -> Mark:
    state, _, at = row.decode().partition(" ")
    return Mark(state or OPEN, int(at) if at.isdigit() else 0)


def _key(partition: int) -> str:
    return f"{{dl:{partition}}}:done"
