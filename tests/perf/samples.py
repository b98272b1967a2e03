"""What the benchmarks work on: one message on its way, and groups of members as large tenants have them.

Sizes are those of a usual message: a body of 200 bytes (the median of real rooms is below), ids of 8 to
34 characters. Everything is fixed; nothing random differs between two runs.
"""

import itertools
import random
from collections.abc import Callable

from pyroaring import BitMap

from qim_streams import hlc, ids
from qim_streams.fanout.plan import OutboxMessage, body_digest, plan
from qim_streams.placement import mailbox_shard, outbox_partition
from qim_streams.records import GroupDispatch, MessageRecord, OutboxRecord, pack_ordinals, record_key
from qim_streams.wire.events import common_body

TENANT, SENDER, PEER, DEVICE = "acme", "user-000017", "user-004711", "phone-1"
SENDER_ORDINAL, PEER_ORDINAL = (17 << 6) | 5, (4_711 << 6) | 40
NOW_MS = 1_760_000_000_000
BODY = bytes(range(200))
PARTITIONS, SHARDS = 8, 16
CHAT = ids.direct_conversation_id(TENANT, SENDER, PEER)
USERS = 1_000_000  # of the tenant of large groups

MESSAGE = MessageRecord(
    4_711,
    3,
    TENANT,
    CHAT,
    hlc.encode(NOW_MS, 3, 7),
    hlc.encode(NOW_MS, 3, 7),
    SENDER,
    SENDER_ORDINAL,
    DEVICE,
    "m-000000000017",
    12,
    NOW_MS,
    0,
    0,
    BODY,
)
COMMON_BODY = common_body(MESSAGE)


def direct_members() -> dict[int, tuple[int, bytes]]:
    """The members of the direct chat as they travel in its Outbox record."""
    seats: dict[int, list[int]] = {}
    for user, ordinal in ((SENDER, SENDER_ORDINAL), (PEER, PEER_ORDINAL)):
        seats.setdefault(mailbox_shard(TENANT, user, SHARDS), []).append(ordinal)
    return {shard: (1, pack_ordinals(sorted(found))) for shard, found in seats.items()}


OUTBOX = OutboxRecord(MESSAGE.encode(), 12, 0, direct_members())
PARTITION = outbox_partition(TENANT, CHAT, PARTITIONS)
READ = OutboxMessage(PARTITION, 90_210, record_key(TENANT, CHAT), OUTBOX, MESSAGE)


def dispatch() -> GroupDispatch:
    """The sample message's first dispatch."""
    return plan(READ, direct_members())[0]


def dispatches(count: int, shard: int) -> list[GroupDispatch]:
    """`count` different messages for one shard, each to the two users of a direct chat."""
    first = dispatch()
    message_ids = [hlc.encode(NOW_MS + number, 0, 7) for number in range(count)]
    return [
        first._replace(
            dispatch_id=ids.dispatch_id(message_id, shard),
            message_id=message_id,
            last_activity_id=message_id,
            target_mailbox_shard=shard,
            conversation_seq=number + 1,
            members=pack_ordinals([SENDER_ORDINAL, PEER_ORDINAL]),
            body_digest=body_digest(BODY),
        )
        for number, message_id in enumerate(message_ids)
    ]


def members(count: int, among: int = USERS) -> BitMap:
    """`count` users of a tenant that has `among`."""
    return BitMap(random.Random(count).sample(range(among), count))


def never_repeated(template: bytes, mark: bytes) -> Callable[[], bytes]:
    """Makes copies of `template` in which the digits `mark` are another number each time.

    For what is cached by its content, where the first time is what matters. Costs about 0.3 µs.
    """
    head, found, tail = template.partition(mark)
    if not found or not mark.isdigit():
        raise ValueError(f"{mark!r} is not in the template, or not a number")
    numbers, digits = itertools.count(1), len(mark)
    return lambda: b"%b%0*d%b" % (head, digits, next(numbers), tail)
