"""`HotMarks` on Redis (key table: `commit.keys`).

Spec: §14.4.
"""

from collections.abc import Sequence
from typing import Any

from qim_streams.commit import keys
from qim_streams.commit.redis_acceptance import RedisAcceptance
from qim_streams.ownership.redis_wholeness import RedisWholeness
from qim_streams.redis_tier import RedisClient, translated
from qim_streams.repair.ports import HotMark

_NAMES = ("tail", "gtail", "accept")


class RedisMarks:
    """Reads three keys of each partition and asks whether it is proved."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def read(self, partitions: Sequence[int]) -> list[HotMark]:
        """See the port."""
        if not partitions:
            return []
        doubtful = await RedisWholeness(self._client, len(partitions)).doubtful(partitions)
        async with translated("hot tier"):
            pipe = self._client.pipeline(transaction=False)
            for partition in partitions:
                pipe.mget([keys.base(partition) + name for name in _NAMES])
            rows = await pipe.execute()
        return [
            _mark(row, partition not in doubtful) for partition, row in zip(partitions, rows, strict=True)
        ]

    async def accept(self, partition: int, begin: int) -> None:
        """See the port."""
        await RedisAcceptance(self._client).accept(partition, begin)


def _mark(row: Sequence[Any], proved: bool) -> HotMark:
    tail, change_tail, accepted = (-1 if value is None else int(value) for value in row)
    return HotMark(tail, change_tail, proved, accepted)
