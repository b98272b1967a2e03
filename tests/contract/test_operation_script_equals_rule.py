"""T-M7 for edits and recalls: the script and the Python rule decide the same and write the same bytes.

Bodies and revisions lie around every length at which msgpack changes its form; targets are in the hot
tier, only in the archive, or nowhere, and some records are damaged.
"""

import random
from collections import Counter

import pytest

from qim_streams.commit.keys import base
from qim_streams.commit.ports import (
    NOTHING_CONFIRMED,
    Change,
    CommitRequest,
    CommitStatus,
    Confirmed,
    Covered,
)
from qim_streams.commit.rules import Head, PartitionState, commit_group, payload_digest, restore
from qim_streams.membership.ports import Member
from qim_streams.membership.rows import encode_member
from qim_streams.mentions import mentions
from qim_streams.operations.rules import EDITS_MAX, STATE_OF, Operation, operation_tail, readable, revise
from qim_streams.records import KIND_EDIT, KIND_MESSAGE, KIND_RECALL, MessageRecord, decode_message
from qim_streams.redis_tier import RedisClient
from tests.support.hot_tier import TENANT, redis_tier

SEED, WORLDS, CALLS, PARTITION, EPOCH = 20_260_707, 100, 12, 0, 1
CHAT, OTHER = "team", "quiet"
ROLES = {"ann": "owner", "bob": "admin", "cat": "member", "dan": "member"}
SIZES = (0, 1, 31, 32, 255, 256, 65_535, 65_536)
REVISIONS = (0, 0, 1, 126, 127, 128, 254, 255, 256, EDITS_MAX - 1, EDITS_MAX)
S = CommitStatus


def message(
    seq: int, rng: random.Random, *, recalled: bool = False, kind: int = KIND_MESSAGE
) -> MessageRecord:
    """A message as the hot tier may have it, in any revision."""
    revision = rng.choice(REVISIONS)
    identity = (seq + 1).to_bytes(16, "big")
    extra: tuple[object, ...] = (revision,) if revision else rng.choice(((), (0,)))
    if rng.random() < 0.3:
        users = ("ann", "x" * rng.choice(SIZES[2:6]))[: rng.randrange(1, 3)]
        extra = (revision, mentions(users, True).encode())
    return MessageRecord(
        seq, 2**40, TENANT, CHAT, identity, identity, rng.choice(tuple(ROLES)), rng.randrange(2**32), "phone",
        f"x{seq}", rng.choice((1, 300, 2**33)), rng.choice((0, 990, 1_000_000, 2**41)), kind,
        2 if recalled else int(revision > 0), b"" if recalled else b"y" * rng.choice(SIZES[:6]), extra,
    )  # fmt: skip


def new_world(rng: random.Random) -> PartitionState:
    state = PartitionState(epoch=EPOCH)
    for chat in (CHAT, OTHER):
        state.heads[TENANT, chat] = Head("group", 12, (2**100).to_bytes(16, "big"), 3, "members", False, 4)
        state.members[TENANT, chat] = {
            user: Member(user, 64, role, user != "dan", ((0, None if user != "dan" else 5),))
            for user, role in ROLES.items()
        }
    state.heads[TENANT, CHAT].send_policy = rng.choice(("members", "members", "admins"))
    rows = state.records[TENANT, CHAT] = {}
    for seq in range(1, 13):
        made = message(seq, rng, recalled=rng.random() < 0.1, kind=rng.choice((0, 0, 0, 0, 1, 2)))
        where = rng.random()
        if where < 0.7:
            rows[seq] = made.encode()
        elif where < 0.8:
            rows[seq] = rng.randbytes(rng.choice((1, 18, 40)))
        if where < 0.1:
            state.pending[made.message_id] = (TENANT, CHAT, seq)
    return state


async def put(client: RedisClient, state: PartitionState) -> None:
    """The state, as the stores would have written it."""
    await client.flushdb()
    pipe, at = client.pipeline(transaction=False), base(PARTITION)
    pipe.set(at + "epoch", state.epoch)
    for (tenant, chat), head in state.heads.items():
        fields = {"kind": head.kind, "seq": head.seq, "mv": head.version, "send_policy": head.send_policy}
        more = {"dismissed": int(head.dismissed), "active": head.active, "last_id": head.last_id}
        pipe.hset(f"{at}c:{tenant}:{chat}", mapping=fields | more)
        rows = {user: encode_member(member) for user, member in state.members[tenant, chat].items()}
        pipe.hset(f"{at}gm:{tenant}:{chat}", mapping=rows)
    for (tenant, chat), records in state.records.items():
        if records:
            pipe.hset(f"{at}r:{tenant}:{chat}", mapping=records)
    for identity, (tenant, chat, seq) in state.pending.items():
        pipe.hset(at + "pend", identity, f"{tenant}\0{chat}\0{seq}")
    await pipe.execute()


async def assert_equal(client: RedisClient, state: PartitionState) -> None:
    for (tenant, chat), records in state.records.items():
        rows = await client.hgetall(f"{base(PARTITION)}r:{tenant}:{chat}")
        assert {int(seq): row for seq, row in rows.items()} == records
    assert set(await client.hkeys(base(PARTITION) + "pend")) == set(state.pending)


class Asker:
    """Random requests: messages, edits, recalls, repeats of each."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.clock = rng, 2**100
        self.asked: list[CommitRequest] = []

    def request(self) -> CommitRequest:
        """Every tenth is one that was asked before, as a client repeats it."""
        self.clock += 1
        if self.asked and self.rng.random() < 0.1:
            return self.rng.choice(self.asked)._replace(message_id=self.clock.to_bytes(16, "big"))
        self.asked.append(self._new())
        return self.asked[-1]

    def _new(self) -> CommitRequest:
        rng = self.rng
        identity, kind = self.clock.to_bytes(16, "big"), rng.choice((0, KIND_EDIT, KIND_EDIT, KIND_RECALL))
        sender, client_id = rng.choice((*ROLES, "eve")), f"m{rng.randrange(300)}"
        at, body = rng.choice((1_000, 1_100, 2**41 + 50)), b"z" * rng.choice(SIZES)
        record = MessageRecord(
            0, 0, TENANT, CHAT, identity, identity, sender, 1, "d", client_id, 1, at, kind, 0, body
        )
        if kind == KIND_MESSAGE:
            named = rng.choice((b"", b"", mentions(("bob",), False).encode(), mentions((), True).encode()))
            tail, change = (record._replace(extra=(0, named)) if named else record).tail(), None
            digest = payload_digest(0, body, 0, named)
        else:
            target, body = rng.randrange(-1, 16), body if kind == KIND_EDIT else b""
            windows = rng.choice((-1, 0, 10, 100, 1_000)), rng.choice((-1, 0, 100))
            archived = message(target, rng).encode() if target > 0 and rng.random() < 0.7 else b""
            tail = operation_tail(record._replace(body=body, state=STATE_OF[kind]), max(target, 0))
            change = Change(kind, target, body, *windows, archived)
            digest = payload_digest(kind, body, max(target, 0))
        return CommitRequest(
            TENANT, CHAT, sender, client_id, digest, identity, at, tail, rng.random() < 0.05, change
        )


@pytest.mark.parametrize("seed", [SEED])
async def test_script_and_rule_agree_on_operations(hot_client: RedisClient, seed: int) -> None:
    print(f"seed {seed}")
    rng, seen = random.Random(seed), Counter[str]()
    for _ in range(WORLDS):
        state, asker = new_world(rng), Asker(rng)
        await put(hot_client, state)
        store = redis_tier(hot_client).conversations
        for _ in range(CALLS):
            requests = [asker.request() for _ in range(rng.choice((1, 3, 12)))]
            confirmed = Confirmed(list(state.pending)[::2], 1) if rng.random() < 0.5 else NOTHING_CONFIRMED
            got = await store.commit(PARTITION, EPOCH, requests, confirmed)
            assert got == commit_group(state, requests, confirmed)
            seen.update(one.status.name for one in got)
        await assert_equal(hot_client, state)
    wanted = {status.name for status in S} - {"NO_CONVERSATION", "DISMISSED", "CLOCK_BEHIND", "EXHAUSTED"}
    assert set(seen) == wanted, seen


@pytest.mark.parametrize("seed", [SEED])
async def test_operations_are_restored_with_their_effect(hot_client: RedisClient, seed: int) -> None:
    """T-C7, §14.4: a hot tier that lost its last writes gets the operations back, and their targets too."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(30):
        state, asker = new_world(rng), Asker(rng)
        before = dict(state.records[TENANT, CHAT].items())
        await put(hot_client, state)
        commit_group(state, [asker.request() for _ in range(60)])
        after = state.records[TENANT, CHAT]
        lost = [decode_message(after[seq]) for seq in sorted(after) if seq > 12]
        lost = [one for one in lost if one.kind == KIND_MESSAGE or one.extra]
        fresh = PartitionState(epoch=EPOCH, heads={(TENANT, CHAT): Head("group", 12)})
        fresh.records[TENANT, CHAT] = dict(before)
        asked = [*lost, *rng.sample(lost, len(lost) // 2)]
        expected = restore(fresh, asked, Covered(99, EPOCH))
        assert (
            await redis_tier(hot_client).conversations.restore(PARTITION, EPOCH, asked, Covered(99, EPOCH))
            == expected
        )
        await assert_equal_rows(hot_client, fresh)
        hot = {seq for seq in before if readable(before[seq]) is not None}
        assert {seq: fresh.records[TENANT, CHAT][seq] for seq in hot} == {seq: after[seq] for seq in hot}


async def assert_equal_rows(client: RedisClient, state: PartitionState) -> None:
    rows = await client.hgetall(f"{base(PARTITION)}r:{TENANT}:{CHAT}")
    assert {int(seq): row for seq, row in rows.items()} == state.records[TENANT, CHAT]


def test_a_revision_is_the_same_whoever_makes_it() -> None:
    """The order in which operations are applied does not matter, and neither do repeats."""
    rng = random.Random(SEED)
    target = message(3, rng)._replace(extra=(), state=0, kind=0)
    operations = [Operation(KIND_EDIT, 3, at, b"v%d" % at) for at in range(1, 6)]
    operations.append(Operation(KIND_RECALL, 3, 4_095, b""))
    for _ in range(20):
        order, now = rng.choices(operations, k=30) + operations, target
        rng.shuffle(order)
        for one in order:
            now = revise(now, one) or now
        assert now == target._replace(state=2, body=b"", extra=(4_095,))
