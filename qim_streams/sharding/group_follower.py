"""GroupFollower: logs that stay partitioned by group, followed for the shards that share a group.

Who is registered for offline push is kept by the shards of the beginning and is not moved by a split. A new
shard's owner follows the partition of its group, and takes of it what concerns its users; the others are in
none of its records.

Invariants: every shard that is followed gets all records of its group's partition, in order, at least once; a
shard that is made by a split while it is followed goes over to its group's partition.

Spec: §6, §11.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from qim_streams.errors import StoreUnavailable
from qim_streams.log_ports import LogRecord
from qim_streams.push.ports import Follower, OnRecords
from qim_streams.sharding.follower import Mappings
from qim_streams.sharding.rules import Placement

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5


class GroupFollower:
    """`push.ports.Follower` by shard, on one by partition."""

    def __init__(self, inner: Follower, mappings: Mappings) -> None:
        self._inner, self._mappings = inner, mappings
        self._on_records: OnRecords | None = None
        self._groups: dict[int, int] = {}  # shard -> the partition that is read for it
        self._changing: set[asyncio.Task[None]] = set()
        mappings.on_change.append(self._changed)

    def start(self, on_records: OnRecords) -> None:
        """See the port."""
        self._on_records = on_records
        self._inner.start(self._deliver)

    async def follow(self, partition: int) -> None:
        """See the port; `partition` is a shard."""
        group = self._mappings.current.group_of(partition)
        self._groups[partition] = group
        await self._inner.follow(group)

    def unfollow(self, partitions: frozenset[int]) -> None:
        """See the port."""
        left = {group for shard in partitions if (group := self._groups.pop(shard, None)) is not None}
        self._inner.unfollow(frozenset(left - set(self._groups.values())))

    def failure(self) -> BaseException | None:
        """See the port."""
        return self._inner.failure()

    async def close(self) -> None:
        """See the port."""
        self._mappings.on_change.remove(self._changed)
        for task in self._changing:
            task.cancel()
        await self._inner.close()

    async def _deliver(self, partition: int, records: Sequence[LogRecord]) -> None:
        assert self._on_records is not None, "started before anything is followed"
        for shard, group in list(self._groups.items()):
            if group == partition:
                await self._on_records(shard, records)

    def _changed(self, placement: Placement) -> None:
        """A mapping was read: shards that were nobody's before have a group now."""
        for shard, group in self._groups.items():
            if placement.group_of(shard) != group:
                task = asyncio.get_running_loop().create_task(self._go_over(shard), name="group-follower")
                self._changing.add(task)
                task.add_done_callback(self._changing.discard)

    async def _go_over(self, shard: int) -> None:
        while shard in self._groups:
            before = self._groups[shard]
            try:
                await self.follow(shard)
            except StoreUnavailable as error:
                log.warning("shard %d: the log of its group is not read yet: %s", shard, error)
                await asyncio.sleep(RETRY_S)
                continue
            if before not in self._groups.values():
                self._inner.unfollow(frozenset({before}))
            return
