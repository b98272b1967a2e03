"""T-M7: the commit script and the Python rule, driven by the same random inputs, decide and write the same.

Values lie around the edges of what a double can hold: ids of 128 bits that differ in one bit, sequence
numbers near 2^53, times over 2^53, bodies with every byte value.
"""

import random
import struct
from dataclasses import dataclass

import pytest

from qim_streams.commit.keys import base
from qim_streams.commit.ports import SEQ_MAX, CommitRequest, Confirmed, Covered
from qim_streams.commit.rules import NO_ID, Head, PartitionState, commit_group, restore
from qim_streams.ids import ID_BYTES
from qim_streams.membership.ports import Member
from qim_streams.membership.rows import encode_member
from qim_streams.records import MessageRecord
from qim_streams.redis_tier import RedisClient
from tests.support.hot_tier import TENANT, redis_tier

SEED = 20_260_101
CASES = 10_000
CALLS_PER_WORLD = 25
PARTITION = 0
USERS = ("ann", "bob", "cat")
CHATS = ("g1", "g2", "g3", "g4")
EDGE_SEQS = (0, 1, 254, 2**32 - 1, 2**48, SEQ_MAX - 2, SEQ_MAX - 1, SEQ_MAX)


@dataclass
class World:
    """The same data under the script and under the rule."""

    rng: random.Random
    state: PartitionState
    clock: int

    def next_id(self) -> bytes:
        """Mostly above all before; sometimes equal, below by one bit, or anywhere."""
        kind = self.rng.random()
        if kind < 0.85:
            self.clock += self.rng.choice((1, 1, 2**63, 2**64))
            return self.clock.to_bytes(16, "big")
        last = self.rng.choice([head.last_id for head in self.state.heads.values()] or [NO_ID])
        if kind < 0.95:
            return max(0, int.from_bytes(last, "big") + self.rng.choice((-1, 0, 1))).to_bytes(16, "big")
        return self.rng.randbytes(ID_BYTES)

    def request(self) -> CommitRequest:
        digest = self.rng.choice((b"\0" * 16, b"\xff" * 16))
        return CommitRequest(
            TENANT,
            self.rng.choice((*CHATS, "nowhere")),
            self.rng.choice((*USERS, "eve")),
            f"m{self.rng.randrange(6)}",
            digest,
            self.next_id(),
            self.rng.choice((0, 2**53 + 1, 2**63 + 1, 2**64 - 1)),
            b"\x01" + self.rng.randbytes(self.rng.randrange(60)),
            self.rng.random() < 0.1,
            to_everybody=self.rng.random() < 0.1,
        )


def new_world(rng: random.Random) -> World:
    state = PartitionState(epoch=1)
    for chat in CHATS:
        state.heads[TENANT, chat] = Head(
            kind=rng.choice(("group", "direct")),
            seq=rng.choice(EDGE_SEQS),
            last_id=rng.choice((NO_ID, (2**120 + rng.randrange(4)).to_bytes(16, "big"))),
            version=rng.choice((1, 2, 2**40)),
            send_policy=rng.choice(("members", "members", "admins")),
            dismissed=rng.random() < 0.1,
            active=rng.choice((1, 3, 2**32 - 1)),
        )
        state.members[TENANT, chat] = {user: _member(rng, user) for user in USERS if rng.random() < 0.9}
    return World(rng, state, 2**120)


def _member(rng: random.Random, user: str) -> Member:
    active = rng.random() < 0.85
    intervals = ((3, None),) if active else ((3, 2**52),)
    return Member(user, rng.randrange(2**32), rng.choice(("owner", "admin", "member")), active, intervals)


async def put(client: RedisClient, state: PartitionState) -> None:
    """The state, as the stores would have written it."""
    await client.flushdb()
    pipe = client.pipeline(transaction=False)
    pipe.set(base(PARTITION) + "epoch", state.epoch)
    for (tenant, chat), head in state.heads.items():
        fields = {
            "kind": head.kind,
            "seq": head.seq,
            "mv": head.version,
            "send_policy": head.send_policy,
            "dismissed": int(head.dismissed),
            "active": head.active,
        }
        last = {} if head.last_id == NO_ID else {"last_id": head.last_id}
        pipe.hset(f"{base(PARTITION)}c:{tenant}:{chat}", mapping=fields | last)
        for user, member in state.members[tenant, chat].items():
            pipe.hset(f"{base(PARTITION)}gm:{tenant}:{chat}", user, encode_member(member))
    await pipe.execute()


async def assert_equal(client: RedisClient, state: PartitionState) -> None:
    """What the script has written is what the rule has written."""
    for (tenant, chat), head in state.heads.items():
        seq, last = await client.hmget(f"{base(PARTITION)}c:{tenant}:{chat}", ["seq", "last_id"])
        assert (int(seq or 0), last or NO_ID) == (head.seq, head.last_id)
        rows = await client.hgetall(f"{base(PARTITION)}r:{tenant}:{chat}")
        assert {int(seq): row for seq, row in rows.items()} == state.records.get((tenant, chat), {})
    pending = await client.hgetall(base(PARTITION) + "pend")
    expected = {key: "\0".join((t, c, str(seq))).encode() for key, (t, c, seq) in state.pending.items()}
    assert pending == expected
    tail, fence = await client.mget(base(PARTITION) + "tail", base(PARTITION) + "fence")
    assert Covered(int(tail or -1), int(fence or 0)) == state.covered
    for (tenant, chat, sender, client_id), kept in state.reservations.items():
        row = await client.get(f"{base(PARTITION)}d:{tenant}:{chat}:{sender}:{client_id}")
        numbers = struct.pack(">QQQ", kept.seq, kept.version, kept.committed_at)
        assert row == kept.digest + kept.message_id + numbers


def some_confirmed(rng: random.Random, state: PartitionState) -> Confirmed:
    ids = [key for key in state.pending if rng.random() < 0.3] + [rng.randbytes(16)]
    return Confirmed(ids, rng.choice((-1, 0, rng.randrange(2**53))))


def some_lost(rng: random.Random) -> list[MessageRecord]:
    """Messages as the Outbox may have them, known here or not."""
    lost = []
    for _ in range(rng.randrange(4)):
        one, chat, seq = rng.randbytes(16), rng.choice(CHATS), rng.choice((*EDGE_SEQS[1:], 2, 3))
        sender, client_id = rng.choice(USERS), f"m{rng.randrange(9)}"
        lost.append(
            MessageRecord(
                seq, 2**40, TENANT, chat, one, one, sender, 1, "phone", client_id, 1, 2**63 + 1, 0, 0, b"x"
            )
        )
    return lost


@pytest.mark.parametrize("seed", [SEED])
async def test_script_and_rule_agree(hot_client: RedisClient, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    seen: set[str] = set()
    cases = 0
    while cases < CASES:
        world = new_world(rng)
        await put(hot_client, world.state)
        store = redis_tier(hot_client).conversations
        for _ in range(CALLS_PER_WORLD):
            requests = [world.request() for _ in range(rng.choice((1, 2, 8, 30)))]
            confirmed = some_confirmed(rng, world.state)
            got = await store.commit(PARTITION, 1, requests, confirmed)
            assert got == commit_group(world.state, requests, confirmed)
            seen.update(result.status.name for result in got)
            cases += len(requests)
            if rng.random() < 0.1:
                lost, covered = some_lost(rng), Covered(rng.randrange(2**53), rng.randrange(2**53))
                assert await store.restore(PARTITION, 1, lost, covered) == restore(world.state, lost, covered)
        await assert_equal(hot_client, world.state)
    assert len(seen) == 11, f"not every outcome was met: {sorted(seen)}"
