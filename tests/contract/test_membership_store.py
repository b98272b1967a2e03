"""One suite for every MembershipStore and MembershipReader (T-C1), and both driven alike at random (T-M7)."""

import random
from dataclasses import replace

import pytest

from qim_streams.errors import FencedError, InvariantViolation
from qim_streams.membership.bitmaps import Seat, by_shard, changed, decode
from qim_streams.membership.ports import Conversation, Join, Member, MembershipChange, Unsettled
from qim_streams.membership.rules import VERSION_BLOCK
from qim_streams.redis_tier import RedisClient
from tests.support.hot_tier import SHARDS, TENANT, HotTier, memory_tier, message_id, redis_tier, request


@pytest.fixture(params=["memory", "redis"])
async def tier(request: pytest.FixtureRequest, hot_client: RedisClient) -> HotTier:
    return memory_tier() if request.param == "memory" else redis_tier(hot_client)


async def head_of(tier: HotTier, chat: str = "g") -> Conversation:
    head = await tier.membership.conversation(TENANT, chat)
    assert head is not None
    return head


async def members_at(tier: HotTier, version: int, chat: str = "g") -> set[int] | None:
    """Ordinals of a version as the later stages read them."""
    (version_map,) = await tier.reader.versions([(TENANT, chat, version)])
    if version_map is None:
        return None
    wanted = [(TENANT, chat, shard, bitmap) for shard, bitmap in version_map.items()]
    found: set[int] = set()
    for blob in await tier.reader.bitmaps(wanted):
        assert blob
        found |= set(decode(blob))
    return found


async def change(
    tier: HotTier,
    partition: int,
    epoch: int,
    *,
    joins: tuple[str, ...] = (),
    leaves: tuple[str, ...] = (),
    roles: dict[str, str] | None = None,
    head: dict[str, str | int] | None = None,
    at_ms: int = 2_000,
    chat: str = "g",
) -> Conversation | None:
    """Apply a change computed from the current version, as the service does."""
    before = await head_of(tier, chat)
    ordinals = await tier.directory.assign(TENANT, joins)
    coming = [Join(user, ordinal, "member") for user, ordinal in zip(joins, ordinals, strict=True)]
    going = await tier.membership.members(TENANT, chat, leaves)
    in_shards = by_shard(TENANT, [Seat(j.user_id, j.ordinal) for j in coming], SHARDS)
    out_shards = by_shard(TENANT, [Seat(m.user_id, m.ordinal) for m in going], SHARDS)
    (version_map,) = await tier.reader.versions([(TENANT, chat, before.version)])
    assert version_map is not None
    shards = [shard for shard in {*in_shards, *out_shards} if shard in version_map]
    blobs = await tier.reader.bitmaps([(TENANT, chat, shard, version_map[shard]) for shard in shards])
    current = {shard: blob for shard, blob in zip(shards, blobs, strict=True) if blob is not None}
    wanted = MembershipChange(
        TENANT,
        chat,
        before.version,
        tier.token(),
        at_ms,
        joins=coming,
        leaves=leaves,
        roles=roles or {},
        bitmaps=changed(current, in_shards, out_shards),
        head=head or {},
    )
    (made,) = await tier.membership.apply(partition, epoch, [wanted])
    return None if made is None else made.head


async def test_a_group_and_its_members(tier: HotTier) -> None:
    partition, epoch = await tier.group("g", {"ann": "owner", "bob": "admin", "cat": "member"}, name="Ünï")
    head = await head_of(tier)
    assert (head.version, head.seq, head.members_active, head.name) == (1, 0, 3, "Ünï")
    assert (head.kind, head.creator_id, head.dismissed) == ("group", "ann", False)
    rows = await tier.membership.members(TENANT, "g", ["cat", "eve", "bob"])
    assert [(m.user_id, m.role, m.active, m.intervals) for m in rows] == [
        ("cat", "member", True, ((0, None),)),
        ("bob", "admin", True, ((0, None),)),
    ]
    ordinals = await tier.directory.find(TENANT, ["ann", "bob", "cat"])
    assert await members_at(tier, 1) == set(ordinals)
    assert await tier.membership.conversation(TENANT, "other") is None
    assert await tier.membership.unsettled(partition, epoch, 10) == [Unsettled(TENANT, "g", 1)]


async def test_edges_are_the_seq_at_the_moment_of_the_change(tier: HotTier) -> None:
    """G1: leave at 2, rejoin at 4; what was said in between is not in an interval."""
    partition, epoch = await tier.group("g", {"ann": "owner", "bob": "member"})

    async def say(count: int, start: int) -> None:
        many = [request("g", "ann", f"m{n}", message_id(n + 1)) for n in range(start, start + count)]
        await tier.conversations.commit(partition, epoch, many)

    await say(2, 0)
    left = await change(tier, partition, epoch, leaves=("bob",))
    assert left is not None
    assert (left.version, left.seq, left.members_active) == (2, 2, 1)
    await say(2, 2)
    await change(tier, partition, epoch, joins=("bob",))
    await say(1, 4)
    (bob,) = await tier.membership.members(TENANT, "g", ["bob"])
    assert bob.intervals == ((0, 2), (4, None))
    (ordinal,) = await tier.directory.find(TENANT, ["bob"])
    assert [ordinal in (await members_at(tier, v) or ()) for v in (1, 2, 3)] == [True, False, True]


async def test_joining_and_leaving_without_a_word_leaves_no_interval(tier: HotTier) -> None:
    partition, epoch = await tier.group("g", {"ann": "owner"})
    await tier.conversations.commit(partition, epoch, [request("g", "ann", "m", message_id(1))])
    for _ in range(3):
        await change(tier, partition, epoch, joins=("bob",))
        await change(tier, partition, epoch, leaves=("bob",))
    (bob,) = await tier.membership.members(TENANT, "g", ["bob"])
    assert (bob.active, bob.intervals) == (False, ())
    await change(tier, partition, epoch, joins=("bob",))
    (bob,) = await tier.membership.members(TENANT, "g", ["bob"])
    assert bob.intervals == ((1, None),)


async def test_a_member_who_comes_and_goes_for_ever_keeps_a_small_row(tier: HotTier) -> None:
    partition, epoch = await tier.group("g", {"ann": "owner"})
    said = 0

    async def say() -> None:
        nonlocal said
        said += 1
        await tier.conversations.commit(partition, epoch, [request("g", "ann", f"m{said}", message_id(said))])

    for _ in range(70):
        await change(tier, partition, epoch, joins=("bob",))
        await say()
        await change(tier, partition, epoch, leaves=("bob",))
        await say()
    (bob,) = await tier.membership.members(TENANT, "g", ["bob"])
    assert len(bob.intervals) == 64
    assert bob.intervals[-1] == (138, 139)
    assert bob.intervals[0] == (12, 13)


async def test_a_change_from_an_old_version_is_not_applied(tier: HotTier) -> None:
    partition, epoch = await tier.group("g", {"ann": "owner"})
    stale = MembershipChange(TENANT, "g", 1, tier.token(), 2_000, head={"name": "stale"})
    assert await change(tier, partition, epoch, head={"name": "fresh"}) is not None
    assert await tier.membership.apply(partition, epoch, [stale]) == [None]
    assert (await head_of(tier)).name == "fresh"


async def test_a_change_recognises_itself_when_repeated(tier: HotTier) -> None:
    """UNKNOWN is settled by repeating: applied once, answered the same."""
    partition, epoch = await tier.group("g", {"ann": "owner"})
    wanted = MembershipChange(TENANT, "g", 1, tier.token(), 2_000, head={"name": "new"})
    first = await tier.membership.apply(partition, epoch, [wanted])
    again = await tier.membership.apply(partition, epoch, [wanted])
    assert first == again
    assert (await head_of(tier)).version == 2


async def test_a_change_answers_with_the_rows_that_it_touched(tier: HotTier) -> None:
    """Nobody has to read them afterwards, from a store that may have lost the change by then."""
    partition, epoch = await tier.group("g", {"ann": "owner", "bob": "member", "cat": "member"})
    await tier.conversations.commit(partition, epoch, [request("g", "ann", "m", message_id(1))])
    (dan,) = await tier.directory.assign(TENANT, ["dan"])
    wanted = MembershipChange(
        TENANT, "g", 1, tier.token(), 2_000,
        joins=[Join("dan", dan, "member")], leaves=["bob"], roles={"cat": "admin", "dan": "admin"},
    )  # fmt: skip
    (made,) = await tier.membership.apply(partition, epoch, [wanted])
    assert made is not None
    assert [(m.user_id, m.role, m.active, m.intervals) for m in made.touched] == [
        ("dan", "admin", True, ((1, None),)),
        ("bob", "member", False, ((0, 1),)),
        ("cat", "admin", True, ((0, None),)),
    ]
    assert list(made.touched) == await tier.membership.members(TENANT, "g", ["dan", "bob", "cat"])
    assert await tier.membership.apply(partition, epoch, [wanted]) == [made]


async def test_no_changes_at_all_prove_that_the_store_lost_nothing(tier: HotTier) -> None:
    partition, epoch = await tier.group("g", {"ann": "owner"})
    assert await tier.membership.apply(partition, epoch, []) == []
    await tier.lose_calls(partition)
    with pytest.raises(InvariantViolation, match="lost"):
        await tier.membership.apply(partition, epoch, [])


async def test_an_old_owner_changes_nothing(tier: HotTier) -> None:
    partition, epoch = await tier.group("g", {"ann": "owner"})
    await tier.own("g", boot=2)
    with pytest.raises(FencedError):
        await tier.membership.apply(
            partition, epoch, [MembershipChange(TENANT, "g", 1, tier.token(), 2_000, head={"name": "late"})]
        )
    with pytest.raises(FencedError):
        await tier.membership.settle(partition, epoch, [Unsettled(TENANT, "g", 1)], 0)
    assert (await head_of(tier)).name == ""


async def test_settling_knows_only_the_version_that_was_logged(tier: HotTier) -> None:
    partition, epoch = await tier.group("g", {"ann": "owner"})
    await change(tier, partition, epoch, head={"name": "two"})
    await tier.membership.settle(partition, epoch, [Unsettled(TENANT, "g", 1)], 0)
    assert await tier.membership.unsettled(partition, epoch, 10) == [Unsettled(TENANT, "g", 2)]
    await tier.membership.settle(partition, epoch, [Unsettled(TENANT, "g", 2)], 1)
    assert await tier.membership.unsettled(partition, epoch, 10) == []


async def test_pages_of_active_members_in_order(tier: HotTier) -> None:
    users = {f"u{n:02}": "member" for n in range(20)} | {"Zed": "owner", "a-b": "member", "~no": "member"}
    users.pop("~no")
    partition, epoch = await tier.group("g", users)
    await change(tier, partition, epoch, leaves=("u03", "u10"))
    seen: list[str] = []
    after = ""
    while page := await tier.membership.page(TENANT, "g", after, 7):
        seen += [member.user_id for member in page]
        after = seen[-1]
    assert seen == sorted(set(users) - {"u03", "u10"})
    everyone = await tier.membership.everyone(TENANT, "g")
    assert {m.user_id for m in everyone} == set(users)


async def test_a_group_of_twelve_thousand_in_steps(tier: HotTier) -> None:
    partition, epoch = await tier.group("g", {"ann": "owner"})
    for start in range(0, 12_000, 4_000):
        joins = tuple(f"user{n}" for n in range(start, start + 4_000))
        head = await change(tier, partition, epoch, joins=joins)
        assert head is not None
    assert (await head_of(tier)).members_active == 12_001
    ordinals = await members_at(tier, 4)
    assert ordinals is not None
    assert len(ordinals) == 12_001
    gone = await change(tier, partition, epoch, leaves=tuple(f"user{n}" for n in range(0, 12_000, 2)))
    assert gone is not None
    assert gone.members_active == 6_001
    assert len(await members_at(tier, 5) or ()) == 6_001


async def test_old_versions_are_forgotten_by_blocks_and_newer_ones_stay_whole(tier: HotTier) -> None:
    partition, epoch = await tier.group("g", {"ann": "owner", "bob": "member", "cat": "member"})
    for turn in range(2, 3 * VERSION_BLOCK + 10):
        step = {"leaves": ("bob",)} if turn % 2 == 0 else {"joins": ("bob",)}
        assert await change(tier, partition, epoch, at_ms=1_000 * turn, **step) is not None
    last = 3 * VERSION_BLOCK + 9
    before = [await members_at(tier, version) for version in range(1, last + 1)]
    assert None not in before
    cutoff_ms = 1_000 * (2 * VERSION_BLOCK) + 1  # the second whole map is older than that, the third not
    assert await tier.membership.collect(partition, epoch, TENANT, "g", cutoff_ms) == 2 * VERSION_BLOCK - 1
    assert await tier.membership.collect(partition, epoch, TENANT, "g", cutoff_ms) == 0
    after = [await members_at(tier, version) for version in range(1, last + 1)]
    assert after[: 2 * VERSION_BLOCK - 1] == [None] * (2 * VERSION_BLOCK - 1)
    assert after[2 * VERSION_BLOCK - 1 :] == before[2 * VERSION_BLOCK - 1 :]


async def test_unknown_versions_are_unknown(tier: HotTier) -> None:
    await tier.group("g", {"ann": "owner"})
    wanted = [(TENANT, "g", 2), (TENANT, "nowhere", 1), (TENANT, "g", 64), (TENANT, "g", 1)]
    found = await tier.reader.versions(wanted)
    assert [version is None for version in found] == [True, True, True, False]
    assert await tier.reader.bitmaps([(TENANT, "g", 0, 9), (TENANT, "no", 0, 1)]) == [None, None]
    assert await tier.reader.versions([]) == []
    assert await tier.reader.bitmaps([]) == []


async def test_forgotten_bitmaps_leave_no_field_behind(hot_client: RedisClient) -> None:
    tier = redis_tier(hot_client)
    partition, epoch = await tier.group("g", {"ann": "owner", "bob": "member"})
    for turn in range(2, 2 * VERSION_BLOCK + 1):
        step = {"leaves": ("bob",)} if turn % 2 == 0 else {"joins": ("bob",)}
        await change(tier, partition, epoch, at_ms=turn, **step)
    await tier.membership.collect(partition, epoch, TENANT, "g", 10**9)
    fields = await hot_client.hkeys(f"{{ob:{partition}}}:gb:{TENANT}:g")
    (version_map,) = await tier.reader.versions([(TENANT, "g", 2 * VERSION_BLOCK)])
    assert version_map is not None
    assert {field.decode() for field in fields} == {f"{s}:{v}" for s, v in version_map.items()}


# -- both at random


@pytest.mark.parametrize("seed", [20_260_102])
async def test_redis_and_memory_agree_at_random(hot_client: RedisClient, seed: int) -> None:
    """T-M7 for the change script: same rows, heads, versions and bitmaps after every step."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    users = [f"u{n}" for n in range(12)]
    real, fake = redis_tier(hot_client), memory_tier()
    for tier in (real, fake):
        await tier.group("g", {"u0": "owner"})
        await tier.directory.assign(TENANT, users)
    partition, epoch = await real.own("g")
    clock = 0
    for step in range(400):
        if rng.random() < 0.4:
            clock += 1
            wanted = [request("g", "u0", f"m{clock}", message_id(clock))]
            for tier in (real, fake):
                await tier.conversations.commit(partition, epoch, wanted)
            continue
        rows = {m.user_id: m for m in await fake.membership.everyone(TENANT, "g")}
        active = [user for user, member in rows.items() if member.active and user != "u0"]
        absent = [user for user in users if user not in active and user != "u0"]
        leaves = tuple(rng.sample(active, min(len(active), rng.randrange(3))))
        joins = tuple(rng.sample(absent, min(len(absent), rng.randrange(3))))
        staying = [user for user in active if user not in leaves] + list(joins)
        roles = {user: rng.choice(("admin", "member")) for user in staying if rng.random() < 0.2}
        head: dict[str, str | int] = {"name": f"n{step}"} if rng.random() < 0.3 else {}
        for tier in (real, fake):
            after = await change(
                tier, partition, epoch, joins=joins, leaves=leaves, roles=roles, head=head, at_ms=1 + step
            )
            assert after is not None
        assert await snapshot_of(real) == await snapshot_of(fake)
    version = (await head_of(real)).version
    assert version > 2 * VERSION_BLOCK
    for number in range(1, version + 1):
        key = [(TENANT, "g", number)]
        assert await real.reader.versions(key) == await fake.reader.versions(key)


async def snapshot_of(tier: HotTier) -> tuple[object, ...]:
    head = await head_of(tier)
    everyone = sorted(await tier.membership.everyone(TENANT, "g"), key=lambda m: m.user_id)
    page: list[Member] = await tier.membership.page(TENANT, "g", "", 100)
    return replace(head, created_at=0), everyone, page, await members_at(tier, head.version)
