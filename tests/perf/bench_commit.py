"""Commit: what the writer makes of a send before the script is called. Spec: §3."""

from qim_streams.commit.rules import payload_digest
from qim_streams.placement import mailbox_shard, outbox_partition
from qim_streams.records import decode_message, message_head
from tests.perf.registry import Case, always, benchmark
from tests.perf.samples import BODY, CHAT, MESSAGE, PARTITION, PARTITIONS, PEER, SHARDS, TENANT


@benchmark("commit.payload_digest")
def digest() -> Case[bytes]:
    """What tells a repeat from a conflict, over a body of 200 bytes; the same in every version."""
    return Case(lambda: payload_digest(0, BODY), always(bytes.fromhex("531c67b314482cb517cf98dea2fbacfc")))


@benchmark("commit.message_tail")
def tail() -> Case[bytes]:
    """The bytes of a message that the script puts a head in front of."""
    head = message_head(MESSAGE.conversation_seq, MESSAGE.membership_version)
    return Case(MESSAGE.tail, lambda data: decode_message(head + data) == MESSAGE)


@benchmark("placement.outbox_partition")
def partition() -> Case[int]:
    """Where a conversation lives; asked for each send."""
    return Case(lambda: outbox_partition(TENANT, CHAT, PARTITIONS), always(PARTITION))


@benchmark("placement.mailbox_shard")
def shard() -> Case[int]:
    """Where a user lives; the same in every version."""
    return Case(lambda: int(mailbox_shard(TENANT, PEER, SHARDS)), always(11))
