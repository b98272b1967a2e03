"""Fan-out: an Outbox record is read and becomes one dispatch per shard. Spec: §4."""

from typing import NamedTuple

from qim_streams.fanout.plan import OutboxMessage, ShardMap, encode_plan, plan, read_outbox
from qim_streams.fanout.recent import RecentMessages, Verdict
from qim_streams.placement import outbox_partition
from qim_streams.records import OutboxRecord, decode_dispatch, record_key
from tests.perf.registry import Case, always, benchmark
from tests.perf.samples import MESSAGE, OUTBOX, PARTITION, PARTITIONS, READ, SHARDS, TENANT, direct_members

Planned = list[tuple[int, bytes]]


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


@benchmark("fanout.judge.100_new")
def judge() -> Case[list[Verdict]]:
    """A batch of 100 messages that were not seen before."""
    recent = RecentMessages()
    batch = [
        READ._replace(message=MESSAGE._replace(message_id=bytes([n]) * 16, conversation_seq=n))
        for n in range(1, 101)
    ]
    return Case(lambda: recent.judge(batch), always([Verdict.NEW] * 100))


@benchmark("fanout.plan.direct")
def plan_direct() -> Case[Planned]:
    """A direct chat: two dispatches, or one if both users share a shard; their bytes."""
    return _plan(READ, direct_members())


@benchmark("fanout.plan.group_16_shards")
def plan_group() -> Case[Planned]:
    """A group of 1,000: its members lie in bitmaps, so only the 16 shards count."""
    group = "g.1000"
    message = MESSAGE._replace(conversation_id=group)
    partition = outbox_partition(TENANT, group, PARTITIONS)
    outbox = OutboxRecord(message.encode(), 12, 0, None)
    source = OutboxMessage(partition, 1, record_key(TENANT, group), outbox, message)
    return _plan(source, dict.fromkeys(range(16), (3, None)))


def _plan(source: OutboxMessage, shards: ShardMap) -> Case[Planned]:
    expected = [(one.target_mailbox_shard, one) for one in plan(source, shards)]
    return Case(
        lambda: encode_plan(source, shards),
        lambda planned: (
            [(shard, decode_dispatch(data)) for shard, data in planned] == expected
            and [shard for shard, _ in planned] == sorted(shards)
        ),
    )
