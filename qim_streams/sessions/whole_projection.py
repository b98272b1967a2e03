"""WholeProjection: the checkpoints that vouch for users, wherever splits have put their positions.

A user who moved to another MailboxShard was projected by each of his shards in turn. Readers name the present
one and are told what all of them together vouch for.

Spec: §9, §11.
"""

from collections.abc import Sequence

from qim_streams.redis_tier import RedisClient
from qim_streams.sessions.projection_records import NOTHING, Checkpoint
from qim_streams.sessions.redis_projection import RedisProjection
from qim_streams.sharding import rules
from qim_streams.sharding.follower import Mappings
from qim_streams.sharding.rules import Part


class WholeProjection(RedisProjection):
    """The projection store as readers see it."""

    def __init__(self, client: RedisClient, mappings: Mappings) -> None:
        super().__init__(client)
        self._mappings = mappings

    async def checkpoints(self, shards: Sequence[int]) -> list[Checkpoint | None]:
        """See `ProjectionStore.checkpoints`. Those of users whose present shard each is."""
        parts = [self._mappings.current.parts(shard) for shard in shards]
        found = iter(await super().checkpoints([part.shard for one in parts for part in one]))
        return [joined(one, [next(found) for _ in one]) for one in parts]


def joined(parts: Sequence[Part], found: Sequence[Checkpoint | None]) -> Checkpoint | None:
    """What the shards of a user who moved vouch for together; None while one of them has no checkpoint.

    The newest epoch counts: whoever was rebuilt in it was rebuilt from all his parts.
    """
    if len(parts) == 1:
        return found[0]
    checkpoints = [one for one in found if one is not None]
    if len(checkpoints) < len(parts):
        return None
    caught_up = all(one.caught_up for one in checkpoints)
    return Checkpoint(
        max(one.epoch for one in checkpoints),
        rules.covered(parts, [one.offset for one in checkpoints]),
        NOTHING if caught_up else rules.SEQ_MAX,
    )
