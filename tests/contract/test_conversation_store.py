"""One suite for every ConversationStore: the fake holds what Redis holds (T-C1)."""

import asyncio

import pytest

from qim_streams.commit.calls import PartitionCalls
from qim_streams.commit.keys import base
from qim_streams.commit.ports import CommitResult, CommitStatus, Confirmed, Covered
from qim_streams.commit.redis_store import RedisConversationStore
from qim_streams.commit.rules import NO_ID
from qim_streams.errors import FencedError, InvariantViolation, StoreError
from qim_streams.membership.ports import MembershipChange
from qim_streams.records import MessageRecord, decode_message
from qim_streams.redis_tier import RedisClient
from qim_streams.script_pipe import ScriptPipe
from tests.support.hot_tier import (
    PARTITIONS,
    RETENTION_S,
    TENANT,
    HotTier,
    memory_tier,
    message_id,
    partition_of,
    redis_tier,
    request,
)

S = CommitStatus


@pytest.fixture(params=["memory", "redis"])
async def tier(request: pytest.FixtureRequest, hot_client: RedisClient) -> HotTier:
    return memory_tier() if request.param == "memory" else redis_tier(hot_client)


async def test_a_new_message_gets_the_next_seq_and_its_record(tier: HotTier) -> None:
    partition, epoch = await tier.group("g", {"ann": "owner", "bob": "member"})
    body = bytes(range(256)) * 3
    results = await tier.conversations.commit(
        partition,
        epoch,
        [request("g", "ann", "m1", message_id(5)), request("g", "bob", "m1", message_id(6), body)],
    )
    assert results == [
        CommitResult(S.NEW, message_id(5), 1, 1, 1_000, 2),
        CommitResult(S.NEW, message_id(6), 2, 1, 1_000, 2),
    ]
    (record,) = await tier.conversations.records([(TENANT, "g", 2)])
    assert record is not None
    message = decode_message(record)
    assert (message.conversation_seq, message.membership_version, message.body) == (2, 1, body)
    head = await tier.membership.conversation(TENANT, "g")
    assert head is not None
    assert head.seq == 2


async def test_a_repeat_is_answered_the_same_before_and_after_it_is_confirmed(tier: HotTier) -> None:
    """C1: one client_message_id, one message."""
    partition, epoch = await tier.group("g", {"ann": "owner"})
    store = tier.conversations
    (first,) = await store.commit(partition, epoch, [request("g", "ann", "m", message_id(5))])
    (again,) = await store.commit(partition, epoch, [request("g", "ann", "m", message_id(9))])
    await store.confirm(partition, epoch, Confirmed([first.message_id], 0))
    (later,) = await store.commit(partition, epoch, [request("g", "ann", "m", message_id(10))])
    assert first.status is S.NEW
    assert again == first._replace(status=S.REPEAT_RESERVED, members_active=0)
    assert later == first._replace(status=S.REPEAT_COMMITTED, members_active=0)


async def test_a_repeat_inside_one_call_is_reserved(tier: HotTier) -> None:
    partition, epoch = await tier.group("g", {"ann": "owner"})
    twice = [request("g", "ann", "m", message_id(5)), request("g", "ann", "m", message_id(6))]
    results = await tier.conversations.commit(partition, epoch, twice)
    assert [r.status for r in results] == [S.NEW, S.REPEAT_RESERVED]
    assert results[1].message_id == message_id(5)


async def test_another_payload_is_a_conflict_and_the_first_stands(tier: HotTier) -> None:
    partition, epoch = await tier.group("g", {"ann": "owner"})
    store = tier.conversations
    (first,) = await store.commit(partition, epoch, [request("g", "ann", "m", message_id(5), b"one")])
    (other,) = await store.commit(partition, epoch, [request("g", "ann", "m", message_id(6), b"two")])
    assert other == first._replace(status=S.CONFLICT, members_active=0)
    (record,) = await store.records([(TENANT, "g", 1)])
    assert record is not None
    assert decode_message(record).body == b"one"


async def test_dedup_knows_every_id_and_every_sender(tier: HotTier) -> None:
    """C4: X and Y together, then X again: one X, one Y."""
    partition, epoch = await tier.group("g", {"ann": "owner", "bob": "member"})
    store = tier.conversations
    both = [request("g", "ann", "x", message_id(5)), request("g", "ann", "y", message_id(6))]
    first = await store.commit(partition, epoch, both)
    (again,) = await store.commit(partition, epoch, [request("g", "ann", "x", message_id(7))])
    (other,) = await store.commit(partition, epoch, [request("g", "bob", "x", message_id(8))])
    assert [r.conversation_seq for r in first] == [1, 2]
    assert (again.status, again.conversation_seq) == (S.REPEAT_RESERVED, 1)
    assert (other.status, other.conversation_seq) == (S.NEW, 3)


async def test_refusals(tier: HotTier) -> None:
    partition, epoch = await tier.group("g", {"ann": "owner", "bob": "member"}, send_policy="admins")
    store = tier.conversations
    results = await store.commit(
        partition,
        epoch,
        [
            request("g", "eve", "m", message_id(5)),
            request("g", "bob", "m", message_id(6)),
            request("g", "ann", "m", message_id(7), refuse_new=True),
        ],
    )
    assert [r.status for r in results] == [S.NOT_MEMBER, S.NOT_ALLOWED, S.RATE_LIMITED]
    assert results[0] == CommitResult(S.NOT_MEMBER)
    other = next(f"g{n}" for n in range(100) if partition_of(TENANT, f"g{n}") == partition)
    (missing,) = await store.commit(partition, epoch, [request(other, "ann", "m", message_id(8))])
    assert missing.status is S.NO_CONVERSATION
    assert await store.pending(partition, epoch, 10) == []


async def test_a_repeat_is_answered_although_it_would_be_refused_as_new(tier: HotTier) -> None:
    """Whatever happened in between (Spec: §3.5): left, dismissed, too fast."""
    partition, epoch = await tier.group("g", {"ann": "owner", "bob": "member"})
    store = tier.conversations
    (first,) = await store.commit(partition, epoch, [request("g", "bob", "m", message_id(5))])
    leaves = MembershipChange(TENANT, "g", 1, tier.token(), 2_000, leaves=["bob"], head={"dismissed": 1})
    await tier.membership.apply(partition, epoch, [leaves])
    (again,) = await store.commit(
        partition, epoch, [request("g", "bob", "m", message_id(6), refuse_new=True)]
    )
    assert again == first._replace(status=S.REPEAT_RESERVED, members_active=0)
    new = [request("g", "bob", "n", message_id(7)), request("g", "ann", "n", message_id(8))]
    assert [r.status for r in await store.commit(partition, epoch, new)] == [S.NOT_MEMBER, S.DISMISSED]


async def test_an_id_that_is_not_above_the_last_is_refused_with_all_behind_it(tier: HotTier) -> None:
    partition, epoch = await tier.group("g", {"ann": "owner"})
    store = tier.conversations
    await store.commit(partition, epoch, [request("g", "ann", "a", message_id(2**47, 0xFFFF, 2**64 - 2))])
    last = message_id(2**47, 0xFFFF, 2**64 - 2)
    results = await store.commit(
        partition,
        epoch,
        [
            request("g", "ann", "b", last),
            request("g", "ann", "c", message_id(2**47 + 1)),
            request("g", "ann", "a", message_id(1)),
        ],
    )
    assert [r.status for r in results] == [S.CLOCK_BEHIND, S.CLOCK_BEHIND, S.REPEAT_RESERVED]
    assert results[0].message_id == last
    higher = message_id(2**47, 0xFFFF, 2**64 - 1)  # one above in the last bit: beyond any double
    assert (await store.commit(partition, epoch, [request("g", "ann", "b", higher)]))[0].status is S.NEW


async def test_the_first_message_may_not_have_the_zero_id(tier: HotTier) -> None:
    partition, epoch = await tier.group("g", {"ann": "owner"})
    (result,) = await tier.conversations.commit(partition, epoch, [request("g", "ann", "a", NO_ID)])
    assert result == CommitResult(S.CLOCK_BEHIND, NO_ID)


async def test_an_old_owner_writes_nothing(tier: HotTier) -> None:
    """P14: the epoch is compared before anything else."""
    partition, epoch = await tier.group("g", {"ann": "owner"})
    store = tier.conversations
    (first,) = await store.commit(partition, epoch, [request("g", "ann", "m", message_id(5))])
    _, newer = await tier.own("g", boot=2)
    assert newer == epoch + 1
    for call in (
        store.commit(partition, epoch, [request("g", "ann", "n", message_id(6))]),
        store.commit(partition, epoch, [], Confirmed([first.message_id], 0)),
        store.confirm(partition, epoch, Confirmed([first.message_id], 0)),
        store.pending(partition, epoch, 10),
    ):
        with pytest.raises(FencedError) as caught:
            await call
        assert (caught.value.epoch, caught.value.current) == (epoch, newer)
    (left,) = await store.pending(partition, newer, 10)
    assert left.message_id == first.message_id
    head = await tier.membership.conversation(TENANT, "g")
    assert head is not None
    assert head.seq == 1


async def test_pending_messages_come_oldest_first_and_leave_when_confirmed(tier: HotTier) -> None:
    partition, epoch = await tier.group("g", {"ann": "owner"})
    store = tier.conversations
    many = [request("g", "ann", f"m{n}", message_id(100 + n), b"%d" % n) for n in range(30)]
    results = await store.commit(partition, epoch, many)
    pending = await store.pending(partition, epoch, 10)
    assert [p.conversation_seq for p in pending] == list(range(1, 11))
    assert [decode_message(p.record).body for p in pending] == [b"%d" % n for n in range(10)]
    await store.confirm(partition, epoch, Confirmed([r.message_id for r in results[:12]], 11))
    await store.commit(partition, epoch, [], Confirmed([r.message_id for r in results[12:15]], 14))
    left = await store.pending(partition, epoch, 100)
    assert [p.conversation_seq for p in left] == list(range(16, 31))
    await store.confirm(partition, epoch, Confirmed([message_id(1), *(p.message_id for p in left)], 29))
    assert await store.pending(partition, epoch, 100) == []


async def test_a_large_group_of_requests_is_one_order(tier: HotTier) -> None:
    partition, epoch = await tier.group("g", {"ann": "owner"})
    many = [request("g", "ann", f"m{n}", message_id(100, n)) for n in range(1_300)]
    results = await tier.conversations.commit(partition, epoch, many)
    assert [r.conversation_seq for r in results] == list(range(1, 1_301))
    wanted = [(TENANT, "g", seq) for seq in (1_300, 1, 1_301, 700)]
    found = await tier.conversations.records(wanted)
    assert [row and decode_message(row).conversation_seq for row in found] == [1_300, 1, None, 700]


async def test_records_of_many_partitions_in_one_call(tier: HotTier) -> None:
    chats = [f"chat{n}" for n in range(20)]
    assert {partition_of(TENANT, chat) for chat in chats} == set(range(PARTITIONS))
    for number, chat in enumerate(chats):
        partition, epoch = await tier.group(chat, {"ann": "owner"})
        await tier.conversations.commit(partition, epoch, [request(chat, "ann", "m", message_id(number + 1))])
    found = await tier.conversations.records([(TENANT, chat, 1) for chat in chats] + [("x", "y", 1)])
    assert [row and decode_message(row).conversation_id for row in found] == [*chats, None]
    assert await tier.conversations.records([]) == []


async def test_the_largest_seq_is_exact_and_the_last(tier: HotTier) -> None:
    """Numbers are exact to 2^53 - 1; there the conversation ends instead of repeating a number."""
    partition, epoch = await tier.group("g", {"ann": "owner"})
    largest = 2**53 - 1
    if tier.client is not None:
        await tier.client.hset(f"{base(partition)}c:{TENANT}:g", "seq", str(largest - 1))
    else:
        assert tier.memory is not None
        tier.memory.partition(partition).heads[TENANT, "g"].seq = largest - 1
    results = await tier.conversations.commit(
        partition,
        epoch,
        [request("g", "ann", "a", message_id(5)), request("g", "ann", "b", message_id(6))],
    )
    assert [(r.status, r.conversation_seq) for r in results] == [(S.NEW, largest), (S.EXHAUSTED, 0)]
    (record,) = await tier.conversations.records([(TENANT, "g", largest)])
    assert record is not None
    assert decode_message(record).conversation_seq == largest
    (pending,) = await tier.conversations.pending(partition, epoch, 5)
    assert pending.conversation_seq == largest


def lost(chat: str, seq: int, body: bytes = b"hi", sender: str = "ann") -> MessageRecord:
    """A message as the Outbox has it."""
    one = message_id(100 + seq)
    return MessageRecord(
        seq, 1, TENANT, chat, one, one, sender, 7, "phone", f"m{seq}", 1, 1_000 + seq, 0, 0, body
    )


async def test_what_the_store_lost_is_put_back_and_no_number_is_used_twice(tier: HotTier) -> None:
    """§14.4, D4."""
    partition, epoch = await tier.group("g", {"ann": "owner"})
    store = tier.conversations
    assert await store.covered(partition, epoch) == (-1, 0)
    messages = [lost("g", seq) for seq in (1, 2, 3)]
    assert await store.restore(partition, epoch, messages, Covered(41, 3)) == 3
    assert await store.covered(partition, epoch) == (41, 3)
    assert await store.records([(TENANT, "g", seq) for seq in (1, 2, 3)]) == [m.encode() for m in messages]
    (again,) = await store.commit(partition, epoch, [request("g", "ann", "m2", message_id(900))])
    assert again == CommitResult(S.REPEAT_COMMITTED, message_id(102), 2, 1, 1_002)
    (behind,) = await store.commit(partition, epoch, [request("g", "ann", "n", message_id(103))])
    assert behind == CommitResult(S.CLOCK_BEHIND, message_id(103))
    (new,) = await store.commit(partition, epoch, [request("g", "ann", "n", message_id(104))])
    assert (new.status, new.conversation_seq) == (S.NEW, 4)
    assert await store.pending(partition, epoch, 9) != []


async def test_restoring_leaves_alone_what_is_there(tier: HotTier) -> None:
    partition, epoch = await tier.group("g", {"ann": "owner"})
    store = tier.conversations
    many = [request("g", "ann", f"m{n}", message_id(100 + n)) for n in (1, 2, 3)]
    before = await store.commit(partition, epoch, many)
    await store.confirm(partition, epoch, Confirmed([before[0].message_id], 50))
    assert await store.restore(partition, epoch, [lost("g", 2)], Covered(40, 9)) == 0
    assert await store.covered(partition, epoch) == (50, epoch)
    again = await store.commit(partition, epoch, many)
    assert [r.conversation_seq for r in again] == [1, 2, 3]
    # The second one is in the Outbox, so it is settled: the relay must not append it again.
    assert [r.status for r in again] == [S.REPEAT_COMMITTED, S.REPEAT_COMMITTED, S.REPEAT_RESERVED]


async def test_a_conversation_that_was_lost_itself_goes_on_counting(tier: HotTier) -> None:
    partition, epoch = await tier.own("g")
    store = tier.conversations
    assert await store.restore(partition, epoch, [lost("g", 7)], Covered(3, 0)) == 1
    (early,) = await store.commit(partition, epoch, [request("g", "ann", "n", message_id(900))])
    assert early.status is S.NO_CONVERSATION
    assert await tier.membership.conversation(TENANT, "g") is None
    await tier.group("g", {"ann": "owner"})
    (new,) = await store.commit(partition, epoch, [request("g", "ann", "n", message_id(901))])
    assert (new.status, new.conversation_seq) == (S.NEW, 8)


async def test_an_old_owner_restores_nothing(tier: HotTier) -> None:
    partition, epoch = await tier.group("g", {"ann": "owner"})
    await tier.own("g", boot=2)
    with pytest.raises(FencedError):
        await tier.conversations.restore(partition, epoch, [lost("g", 1)], Covered(3, 0))
    with pytest.raises(FencedError):
        await tier.conversations.covered(partition, epoch)


# -- what only the Redis adapter can get wrong


async def test_all_keys_of_a_partition_share_its_hash_tag(hot_client: RedisClient) -> None:
    tier = redis_tier(hot_client)
    partition, epoch = await tier.group("g", {"ann": "owner"})
    await tier.conversations.commit(partition, epoch, [request("g", "ann", "m", message_id(5))])
    keys = [key.decode() async for key in hot_client.scan_iter()]
    ours = [key for key in keys if not key.startswith("{o:")]
    assert len(ours) >= 10
    assert all(key.startswith(base(partition)) for key in ours)


async def test_dedup_rows_expire_after_the_retention(hot_client: RedisClient) -> None:
    tier = redis_tier(hot_client)
    partition, epoch = await tier.group("g", {"ann": "owner"})
    await tier.conversations.commit(partition, epoch, [request("g", "ann", "m", message_id(5))])
    left_ms = await hot_client.pttl(f"{base(partition)}d:{TENANT}:g:ann:m")
    assert RETENTION_S * 1_000 - 60_000 < left_ms <= RETENTION_S * 1_000


async def test_a_call_that_was_given_up_and_comes_late_is_refused(hot_client: RedisClient) -> None:
    """A message must not slip in behind the writer's back after a repeat of its call was answered."""
    tier = redis_tier(hot_client)
    partition, epoch = await tier.group("g", {"ann": "owner"})
    late = RedisConversationStore(PartitionCalls(ScriptPipe(hot_client)), RETENTION_S, partition_of)
    await tier.conversations.commit(partition, epoch, [request("g", "ann", "m1", message_id(5))])
    with pytest.raises(InvariantViolation, match="overlap"):
        await late.commit(partition, epoch, [request("g", "ann", "m2", message_id(6))])
    head = await tier.membership.conversation(TENANT, "g")
    assert head is not None
    assert head.seq == 1


async def test_a_store_that_lost_an_acknowledged_call_says_so(hot_client: RedisClient) -> None:
    """§14.4: a restart that lost its last second must not lead to a used number."""
    tier = redis_tier(hot_client)
    partition, epoch = await tier.group("g", {"ann": "owner"})
    before = await hot_client.get(base(partition) + "call")
    await tier.conversations.commit(partition, epoch, [request("g", "ann", "m1", message_id(5))])
    assert before is not None
    await hot_client.set(base(partition) + "call", before)  # as of before the commit
    with pytest.raises(InvariantViolation, match="lost writes"):
        await tier.conversations.commit(partition, epoch, [request("g", "ann", "m2", message_id(6))])


async def test_D7_a_record_at_the_next_number_does_not_stick(hot_client: RedisClient) -> None:
    """D7: somebody's bytes lie where the next two messages belong: both are committed and found again."""
    tier = redis_tier(hot_client)
    partition, epoch = await tier.group("g", {"ann": "owner"})
    await tier.conversations.commit(partition, epoch, [request("g", "ann", "m1", message_id(5))])
    for seq in (2, 3):
        await hot_client.hset(base(partition) + f"r:{TENANT}:g", str(seq), "of a writer that is gone")
    pair = [request("g", "ann", name, message_id(at)) for name, at in (("m2", 6), ("m3", 7))]
    results = await tier.conversations.commit(partition, epoch, pair)
    assert [(one.status, one.conversation_seq) for one in results] == [(S.NEW, 2), (S.NEW, 3)]
    again = await tier.conversations.commit(partition, epoch, pair)
    assert [(one.status, one.conversation_seq) for one in again] == [
        (S.REPEAT_RESERVED, 2),
        (S.REPEAT_RESERVED, 3),
    ]


async def test_scripts_are_sent_again_after_the_server_forgot_them(hot_client: RedisClient) -> None:
    tier = redis_tier(hot_client)
    chats = [f"chat{n}" for n in range(8)]
    owned = [(chat, *await tier.group(chat, {"ann": "owner"})) for chat in chats]
    await hot_client.script_flush()
    results = await asyncio.gather(
        *(
            tier.conversations.commit(partition, epoch, [request(chat, "ann", "m", message_id(5))])
            for chat, partition, epoch in owned
        )
    )
    assert [r.status for (r,) in results] == [S.NEW] * 8


async def test_a_script_that_breaks_has_an_unknown_outcome(hot_client: RedisClient) -> None:
    tier = redis_tier(hot_client)
    partition, epoch = await tier.group("g", {"ann": "owner"})
    await hot_client.set(base(partition) + f"r:{TENANT}:g", "not a hash")
    with pytest.raises(StoreError) as caught:
        await tier.conversations.commit(partition, epoch, [request("g", "ann", "m", message_id(5))])
    assert caught.value.outcome.value == "unknown"
