"""Epoch boundaries in Redis: ``{s:k}:epochs``, a hash of epoch -> EpochBoundary.

The script that grants a shard's epoch writes it (`ownership.redis_leases`). The hash keeps
`limits.EPOCH_BOUNDARIES_MAX` epochs; a cursor from before the oldest of them is resolved by nothing.

Spec: §7, §11.
"""

from typing import Any

from qim_streams import limits
from qim_streams.errors import RecordError, StoreError
from qim_streams.redis_tier import RedisClient, translated
from qim_streams.sync.boundaries import EpochBoundary, decode_boundary, resolve


class RedisEpochBoundaries:
    """`EpochBoundaries` on Redis."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def boundary(self, shard: int, lane: int, from_epoch: int, to_epoch: int) -> int | None:
        """See `EpochBoundaries.boundary`."""
        if to_epoch - from_epoch > limits.EPOCH_BOUNDARIES_MAX:
            return None
        return resolve(await self.read(shard, from_epoch + 1, to_epoch), lane)

    async def read(self, shard: int, first: int, last: int) -> list[EpochBoundary | None]:
        """The boundaries of the epochs `first` to `last`, both inclusive; None where none is kept."""
        wanted = [str(epoch) for epoch in range(first, last + 1)]
        if not wanted:
            return []
        async with translated(f"s:{shard}"):
            rows: Any = await self._client.hmget(f"{{s:{shard}}}:epochs", wanted)
        try:
            return [None if row is None else decode_boundary(row) for row in rows]
        except RecordError as error:
            raise StoreError(f"s:{shard}: epoch boundary: {error}") from error
