"""Parts on the hot tier that several roles put together alike.

Spec: §14.4.
"""

from functools import partial

from qim_streams.commit.calls import PartitionCalls
from qim_streams.membership.past import KeptIntervals
from qim_streams.membership.redis_store import RedisMembershipStore
from qim_streams.ownership.redis_wholeness import RedisWholeness
from qim_streams.redis_tier import RedisClient
from qim_streams.roles.tracing import partition_of
from qim_streams.script_pipe import ScriptPipe
from qim_streams.settings import Settings


def kept_intervals(settings: Settings, redis: RedisClient) -> KeptIntervals:
    """Members of messages whose version the hot tier has no more."""
    place = partial(partition_of, settings.outbox_partitions)
    rows = RedisMembershipStore(redis, PartitionCalls(ScriptPipe(redis)), place)
    return KeptIntervals(rows, RedisWholeness(redis, settings.outbox_partitions), settings.mailbox_shards)
