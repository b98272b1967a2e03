"""Epoch boundaries in Redis: ``{s:k}:epochs``, a hash of epoch -> EpochBoundary.

The script that grants a shard's epoch writes it (`ownership.redis_leases`). The hash keeps
`limits.EPOCH_BOUNDARIES_MAX` epochs; a cursor from before the oldest of them is resolved by nothing. After a
total loss the shard's owner adds what it can prove of all epochs before (`mailbox.kept`).

Spec: §7, §11.
"""

from typing import Any

from qim_streams import limits
from qim_streams.errors import RecordError, StoreError
from qim_streams.mailbox.kept import FIELD, KeptPositions, decode_kept
from qim_streams.redis_tier import RedisClient, translated
from qim_streams.sync.boundaries import EpochBoundary, decode_boundary, resolve


class RedisEpochBoundaries:
    """`EpochBoundaries` on Redis."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    async def boundary(self, shard: int, lane: int, from_epoch: int, to_epoch: int) -> int | None:
        """See `EpochBoundaries.boundary`."""
        kept = await self._kept(shard)
        if kept is None or not kept.covers(from_epoch, to_epoch):
            return await self._since(shard, lane, from_epoch, to_epoch)
        if kept.last_epoch == to_epoch:
            return kept.through_seq
        later = await self._since(shard, lane, kept.last_epoch, to_epoch)
        return None if later is None else min(kept.through_seq, later)

    async def _kept(self, shard: int) -> KeptPositions | None:
        async with translated(f"s:{shard}"):
            data: Any = await self._client.hget(f"{{s:{shard}}}:epochs", FIELD)
        try:
            return None if data is None else decode_kept(data)
        except RecordError as error:
            raise StoreError(f"s:{shard}: epoch boundary: {error}") from error

    async def _since(self, shard: int, lane: int, from_epoch: int, to_epoch: int) -> int | None:
        if to_epoch - from_epoch > limits.EPOCH_BOUNDARIES_MAX:
            return None
        return resolve(await self.read(shard, from_epoch + 1, to_epoch), lane)

    async def read(self, shard: int, first: int, last: int) -> list[EpochBoundary | None]:
        """The boundaries of the epochs `first` to `last`, both inclusive; None where none is kept.

        At most `limits.EPOCH_BOUNDARIES_MAX` of them: epochs may be as far apart as seconds since 1970.
        """
        assert last - first < limits.EPOCH_BOUNDARIES_MAX, f"epochs {first} to {last} of s:{shard}"
        wanted = [str(epoch) for epoch in range(first, last + 1)]
        if not wanted:
            return []
        async with translated(f"s:{shard}"):
            rows: Any = await self._client.hmget(f"{{s:{shard}}}:epochs", wanted)
        try:
            return [None if row is None else decode_boundary(row) for row in rows]
        except RecordError as error:
            raise StoreError(f"s:{shard}: epoch boundary: {error}") from error
