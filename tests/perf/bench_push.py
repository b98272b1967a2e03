"""Push: who is online, batches around common bodies, and the batch as the gateway reads it. Spec: §6."""

from qim_streams.mailbox.members import Addressed
from qim_streams.push.batches import Audiences, build_batches, find_audiences
from qim_streams.push.presence import DeviceBudget, EpochTable, OnlineDevices
from qim_streams.records import Presence, PushBatch, decode_push, record_key
from qim_streams.wire.events import common_body
from tests.perf.registry import Case, always, benchmark
from tests.perf.samples import (
    COMMON_BODY,
    DEVICE,
    MESSAGE,
    NOW_MS,
    PEER,
    PEER_ORDINAL,
    SENDER_ORDINAL,
    TENANT,
    dispatches,
)

SHARD, BATCH = 5, 100
CONNECTION = 1 << 32 | 7


@benchmark("push.common_body")
def body() -> Case[bytes]:
    """The part of an event that is encoded once per message."""
    return Case(lambda: common_body(MESSAGE), always(COMMON_BODY))


@benchmark("push.find_audiences.100_direct")
def audiences() -> Case[list[tuple[int, Audiences]]]:
    """Who gets 100 messages of a direct chat whose peer is online."""
    online, records = _online(), _records()
    return Case(
        lambda: list(find_audiences(records, online)),
        lambda parts: [len(one.recipients) for one in parts[0][1][0, TENANT]] == [1] * BATCH,
    )


@benchmark("push.build_batches.100_direct")
def batches() -> Case[list[bytes]]:
    """The push records of those 100 messages, encoded."""
    ((_, found),) = find_audiences(_records(), _online())
    bodies = {one.message_id: COMMON_BODY for one in dispatches(BATCH, SHARD)}
    return Case(
        lambda: [batch.encode() for _, batch in build_batches(SHARD, 12, found, bodies)],
        lambda built: [item.mailbox_seq for item in decode_push(built[0]).items] == list(range(1, BATCH + 1)),
    )


@benchmark("push.decode_batch.100_direct")
def decode() -> Case[PushBatch]:
    """The same, read by the gateway."""
    ((_, found),) = find_audiences(_records(), _online())
    bodies = {one.message_id: COMMON_BODY for one in dispatches(BATCH, SHARD)}
    ((_, batch),) = build_batches(SHARD, 12, found, bodies)
    data = batch.encode()
    return Case(lambda: decode_push(data), always(batch))


def _records() -> list[Addressed]:
    both = [SENDER_ORDINAL, PEER_ORDINAL]
    return [Addressed(offset, one, both) for offset, one in enumerate(dispatches(BATCH, SHARD), 1)]


def _online() -> OnlineDevices:
    online = OnlineDevices(EpochTable(), DeviceBudget(1_000))
    peer = Presence(TENANT, PEER, PEER_ORDINAL, DEVICE, 0, CONNECTION, 3, NOW_MS)
    online.apply(record_key(TENANT, PEER, DEVICE), peer.encode())
    return online
