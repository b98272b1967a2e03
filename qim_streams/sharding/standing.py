"""How MailboxShards stand: where their users came from and how far they are, for whoever shows them.

Spec: §11.
"""

from typing import NamedTuple

from qim_streams.sharding.operation import SplitLogs, SplitStores
from qim_streams.sharding.rules import Placement


class ShardStanding(NamedTuple):
    """`came_from`: the shards that it was split from, the oldest first. `records`: the end of its log."""

    shard: int
    came_from: list[int]
    first_seq: int
    watermark: int
    records: int
    mailboxes: int


class MapStanding(NamedTuple):
    """All shards; `partitions` of the dispatch log, in use or not."""

    partitions: int
    shards: list[ShardStanding]


async def standing_of(placement: Placement, logs: SplitLogs, stores: SplitStores) -> MapStanding:
    """The shards of a placement. StoreUnavailable."""
    shards = list(range(placement.shards))
    ends = await logs.dispatch_ends()
    coverage, sizes = await stores.coverage(shards), await stores.sizes(shards)
    return MapStanding(
        len(ends),
        [
            ShardStanding(
                one,
                [part.shard for part in placement.parts(one)[:-1]],
                placement.first_of(one),
                coverage[one],
                ends[one],
                sizes[one],
            )
            for one in shards
        ],
    )
