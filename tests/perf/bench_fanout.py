"""Fan-out: an Outbox record is read and becomes one dispatch per shard. Spec: §4."""

from typing import NamedTuple

from qim_streams import ids
from qim_streams.fanout.plan import OutboxMessage, ShardMap, plan, read_outbox
from qim_streams.placement import outbox_partition
from qim_streams.records import GroupDispatch, OutboxRecord, record_key
from tests.perf.registry import Case, always, benchmark
from tests.perf.samples import MESSAGE, OUTBOX, PARTITION, PARTITIONS, READ, SHARDS, TENANT, direct_members


class Record(NamedTuple):
    """A record of the log."""

    offset: int
    key: bytes | None
    value: bytes | None


@benchmark("fanout.read_outbox")
def read() -> Case[OutboxMessage]:
    """A record decoded and checked, as every one is before it is planned."""
    record = Record(READ.offset, READ.key, OUTBOX.encode())
    return Case(lambda: read_outbox(record, PARTITION, PARTITIONS, SHARDS), always(READ))


@benchmark("fanout.plan.direct")
def plan_direct() -> Case[list[GroupDispatch]]:
    """A direct chat: two dispatches, or one if both users share a shard."""
    shards = direct_members()
    return Case(lambda: plan(READ, shards), lambda planned: _is_right(planned, shards))


@benchmark("fanout.plan.group_16_shards")
def plan_group() -> Case[list[GroupDispatch]]:
    """A group of 1,000: its members lie in bitmaps, so only the 16 shards count."""
    group = "g.1000"
    message = MESSAGE._replace(conversation_id=group)
    partition = outbox_partition(TENANT, group, PARTITIONS)
    outbox = OutboxRecord(message.encode(), 12, 0, None)
    source = OutboxMessage(partition, 1, record_key(TENANT, group), outbox, message)
    shards: ShardMap = dict.fromkeys(range(16), (3, None))
    return Case(lambda: plan(source, shards), lambda planned: _is_right(planned, shards))


def _is_right(planned: list[GroupDispatch], shards: ShardMap) -> bool:
    return [one.target_mailbox_shard for one in planned] == sorted(shards) and all(
        one.dispatch_id == ids.dispatch_id(one.message_id, one.target_mailbox_shard)
        and (one.bitmap_version, one.members) == shards[one.target_mailbox_shard]
        for one in planned
    )
