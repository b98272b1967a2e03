"""qsession as a real worker on a real log: killed at each point, robbed of its store, fed everything twice.

The judge knows what was fed: every member of every conversation must have a row with the newest message's
time, and every conversation must have been registered for him, once; of a wide one (in the store of this
test: over 20 members in a shard) that he has it.

T-K2 (qsession points), T-G3, F5's projection: monotonic and complete. Spec: §9.
"""

import asyncio
from random import Random

import pytest

from qim_streams.mailbox.redis_store import RedisMailboxStore
from qim_streams.placement import mailbox_shard, outbox_partition
from qim_streams.redis_tier import connect
from qim_streams.sessions.projection_records import activity_of, decode_registration
from qim_streams.sessions.redis_activity import RedisKnownActivity
from qim_streams.sessions.redis_projection import RedisProjection, user_key
from qim_streams.sessions.session_rebuild import SessionRebuild
from qim_streams.streaming.doubt import EXIT_DOUBT
from tests.integration.pipeline.stages import COMMITTED_AT, DISPATCH, TENANT, Conversation, Stages
from tests.integration.pipeline.test_stages import (
    MAILBOX_POINTS,
    conversations,
    feed,
    kill_at,
    wait_mailboxed,
)
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.integration

POINTS = ("dispatch_polled", "rows_partial", "rows_written", "checkpoint_moved", "wide_partial")
KILLS = kill_at("qsession", POINTS)
TAIL_KILLS = (
    f"{kill_at('mailbox', MAILBOX_POINTS)},{kill_at('qsession', POINTS[1:])}"  # it polls nothing itself
)
WITHIN_S = 120


def expected(stages: Stages) -> dict[tuple[str, str], int]:
    """What was fed, folded plainly."""
    found: dict[tuple[str, str], int] = {}
    for one in stages.sent:
        for user in one.conversation.members:
            key = (user, one.conversation.conversation_id)
            found[key] = max(found.get(key, 0), activity_of(one.message_id))
    return found


def held(stages: Stages) -> dict[tuple[str, str], int]:
    """What the store holds."""
    found = {}
    for user in {user for one in stages.sent for user in one.conversation.members}:
        key = user_key(TENANT, stages.ordinal(user), "convs")
        for name, score in stages.redis.zrange(key, 0, -1, withscores=True):  # type: ignore[union-attr]
            found[user, name.decode()] = int(score)
    return found


def wide_of(stages: Stages) -> set[tuple[str, str]]:
    """Which rows leave their activity to the head."""
    found = set()
    for user in {user for one in stages.sent for user in one.conversation.members}:
        key = user_key(TENANT, stages.ordinal(user), "wide")
        found |= {(user, name.decode()) for name in stages.redis.smembers(key)}  # type: ignore[union-attr]
    return found


def differences(stages: Stages) -> list[object]:
    """How the lists differ from what they must be; a wide row may be behind its head, and never missing."""
    wanted, rows, wide = expected(stages), held(stages), wide_of(stages)
    return [
        (key, rows.get(key), wanted.get(key))
        for key in wanted.keys() | rows.keys()
        if rows.get(key) != wanted.get(key)
        and not (key in wide and 0 < rows.get(key, 0) <= wanted.get(key, 0))
    ]


def judge(stages: Stages) -> None:
    """All lists, all registrations, and that only the large group is wide."""
    assert differences(stages) == []
    assert {conversation for _, conversation in wide_of(stages)} <= {"large"}
    lanes = {stages.ordinal(user) % 64 for user, _ in expected(stages)}
    registered = {
        (one.ordinal, one.conversation_id)
        for lane in lanes
        for field, value in stages.redis.hgetall(f"{{q:{TENANT}:{lane}}}:reg").items()  # type: ignore[union-attr]
        if (one := decode_registration(TENANT, field, value))
    }
    assert registered == {(stages.ordinal(user), name) for user, name in expected(stages)}


def caught_up(stages: Stages) -> bool:
    """Whether everything fed is in the dispatch log, and every checkpoint at its end."""
    ends = stages.ends(DISPATCH, stages.settings.mailbox_shards)
    dispatches = sum(len({stages.shard(user) for user in one.conversation.members}) for one in stages.sent)
    at = offsets(stages)
    return sum(ends.values()) >= dispatches and all(at[shard] == end - 1 for shard, end in ends.items())


def wait_projected(stages: Stages, armed: str = "") -> None:
    """Until everything in the dispatch log is projected, starting killed workers again."""

    def done() -> bool:
        stages.supervise({"qsession": armed})
        return caught_up(stages)

    eventually_sync(done, WITHIN_S, "everything to be projected")


def dies_of_doubt(stages: Stages) -> None:
    """qsession notices that its store fell back, and ends; somebody else would start it again."""
    eventually_sync(lambda: stages.workers["qsession-0"].poll() is not None, 30, "qsession to notice")
    assert stages.workers.pop("qsession-0").poll() == EXIT_DOUBT


def offsets(stages: Stages) -> dict[int, int]:
    """The checkpoint of each shard."""
    shards = range(stages.settings.mailbox_shards)
    return {shard: int(stages.redis.hget(f"{{qp:{shard}}}:at", "offset") or -1) for shard in shards}


def talk(stages: Stages, seed: int, count: int) -> list[Conversation]:
    """Conversations of all kinds and messages in them, every one of them used."""
    random = Random(seed)
    chats = conversations(stages, random)
    for chat in chats:
        stages.send(chat, chat.members[0])
    feed(stages, chats, random, count)
    return chats


def test_killed_between_its_steps(stages: Stages) -> None:
    """T-K2: qsession dies at each of its points; lists and registrations are whole, first messages included.

    No mailbox worker runs: the projection needs none, and holds none.
    """
    stages.start("fanout")
    stages.start("qsession", failpoints=KILLS)
    random = Random(3)
    chats = talk(stages, 3, 100)
    for _ in range(6):
        feed(stages, chats, random, 50)
        wait_projected(stages, KILLS)
    assert {name for name, _ in stages.exits} == {"qsession-0"}
    assert len(stages.exits) == len(POINTS), stages.exits
    judge(stages)


def rebuild_everybody(stages: Stages) -> set[bool]:
    """What a reading does for every user; what it says of each."""

    async def run() -> set[bool]:
        redis, settings = connect(stages.settings), stages.settings
        store = RedisProjection(redis)
        rebuild = SessionRebuild(
            store=store,
            rebuilds=store,
            mailboxes=RedisMailboxStore(redis),
            known=RedisKnownActivity(redis, lambda t, c: outbox_partition(t, c, settings.outbox_partitions)),
            shard_of=lambda tenant, user, _: mailbox_shard(tenant, user, settings.mailbox_shards),
        )
        users = sorted({user for user, _ in expected(stages)})
        said = {await rebuild.ensure(TENANT, user, stages.ordinal(user)) for user in users}
        await redis.aclose()
        return said

    return asyncio.run(run())


def lose_projection(stages: Stages) -> None:
    """Everything that the projection ever wrote is gone."""
    for pattern in ("{q:*", "{qp:*", "{qt:*"):
        for key in stages.redis.scan_iter(match=pattern, count=1_000):
            stages.redis.delete(key)


def test_lost_and_rebuilt(stages: Stages) -> None:
    """The projection is deleted under a running worker: epoch + 1, users are rebuilt when they are asked for.

    Until then their lists are right, too, and said to be not vouched for.
    """
    for role in ("fanout", "mailbox", "qsession"):
        stages.start(role)
    chats = talk(stages, 5, 200)
    wait_mailboxed(stages)
    wait_projected(stages)
    # Where qsession was the last to start, the first messages are in lists once these are asked for.
    assert rebuild_everybody(stages) == {True}
    judge(stages)

    lose_projection(stages)
    dies_of_doubt(stages)
    feed(stages, chats, Random(6), 50)
    wait_mailboxed(stages)
    assert rebuild_everybody(stages) == {False}, "nobody vouches"
    assert differences(stages) == [], "and yet the lists are right"
    lose_projection(stages)
    stages.start("qsession")
    feed(stages, chats, Random(7), 50)
    wait_mailboxed(stages)
    wait_projected(stages)
    epochs = {stages.redis.hget(f"{{qp:{shard}}}:at", "epoch") for shard in offsets(stages)}
    assert all(int(epoch or 0) > COMMITTED_AT for epoch in epochs), epochs
    assert rebuild_everybody(stages) == {True}
    judge(stages)


def test_replayed_twice(stages: Stages) -> None:
    """T-G3: the last dispatches come again, from checkpoints that were put back and as new records."""
    stages.start("fanout")
    stages.start("qsession")
    talk(stages, 5, 200)
    wait_projected(stages)
    before = held(stages)
    for shard, offset in offsets(stages).items():
        stages.redis.hset(f"{{qp:{shard}}}:at", "offset", max(-1, offset - 40))
    dies_of_doubt(stages)
    stages.start("qsession")
    wait_projected(stages)
    assert held(stages) == before
    for partition, _, value in stages.read(DISPATCH, stages.settings.mailbox_shards)[-100:]:
        stages.append(DISPATCH, partition, b"again", value)
    stages.flush()
    wait_projected(stages)
    assert held(stages) == before
    judge(stages)


def test_two_workers_share_and_take_over(stages: Stages) -> None:
    """A second worker joins under traffic and the first one is killed: no row is missing."""
    stages.start("fanout")
    stages.start("qsession")
    chats = talk(stages, 9, 100)
    stages.start("qsession", slot=1)
    feed(stages, chats, Random(1), 100)
    stages.wait_ready("qsession", 1)
    stages.workers.pop("qsession-0").kill()
    feed(stages, chats, Random(2), 100)
    wait_projected(stages)
    judge(stages)


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_compactor_killed_robbed_and_fed_twice(stages: Stages) -> None:
    """T-K2, T-G3: the mailbox worker, who keeps the lists, dies at each of its points and of theirs; then all
    rows are deleted under it, and the dispatches come twice more: each time all lists are right.

    A window that was open when it died is a new epoch: users are rebuilt when they are asked for.
    """
    stages.settings = stages.settings.model_copy(update={"session_projection": "mailbox"})
    stages.start("fanout")
    stages.start("mailbox", failpoints=TAIL_KILLS)
    chats = talk(stages, 13, 100)
    random = Random(13)
    deaths = len(TAIL_KILLS.split(","))

    def died_everywhere() -> bool:
        stages.supervise({"mailbox": TAIL_KILLS})
        if stages.everything_is_mailboxed():
            feed(stages, chats, random, 40)
        return len(stages.exits) >= deaths

    eventually_sync(died_everywhere, 240, "every point to kill the worker")
    wait_mailboxed(stages)
    eventually_sync(lambda: caught_up(stages), WITHIN_S, "the compactor to flush")
    assert rebuild_everybody(stages) == {True}
    assert differences(stages) == []

    lose_projection(stages)
    assert rebuild_everybody(stages) == {False}, "nobody vouches"
    assert differences(stages) == [], "and yet the lists are right"
    lose_projection(stages)
    feed(stages, chats, random, 50)
    wait_mailboxed(stages)
    eventually_sync(lambda: caught_up(stages), WITHIN_S, "a new epoch to begin and to catch up")
    assert rebuild_everybody(stages) == {True}
    judge(stages)

    before = held(stages)
    for partition, _, value in stages.read(DISPATCH, stages.settings.mailbox_shards) * 2:
        stages.append(DISPATCH, partition, b"again", value)
    stages.flush()
    eventually_sync(lambda: caught_up(stages), WITHIN_S, "the repeats to be covered")
    assert held(stages) == before
    judge(stages)


def test_the_mailbox_tail_keeps_the_same_lists(stages: Stages) -> None:
    """Both keepers on the same traffic, compared user by user; the mailbox worker is killed in between.

    The compactor's lists are read as users would read them, then everything is deleted and qsession projects
    the same log from its beginning.
    """
    stages.settings = stages.settings.model_copy(update={"session_projection": "mailbox"})
    stages.start("fanout")
    stages.start("mailbox", failpoints="mailbox.pushed:25:kill,qsession.rows_written:3:kill")
    chats = talk(stages, 11, 150)
    for number in range(4):
        feed(stages, chats, Random(number), 50)
        wait_mailboxed(stages, {"mailbox": "qsession.rows_written:3:kill"})
    eventually_sync(lambda: caught_up(stages), WITHIN_S, "the compactor to flush")
    assert {name for name, _ in stages.exits} == {"mailbox-0"}
    assert rebuild_everybody(stages) == {True}
    judge(stages)
    by_tail, wide_by_tail = held(stages), {name for _, name in wide_of(stages)}

    stages.settings = stages.settings.model_copy(update={"session_projection": "qsession"})
    lose_projection(stages)
    for shard in range(stages.settings.mailbox_shards):
        row = {"epoch": 0, "offset": -1, "target": -1}
        stages.redis.hset(f"{{qp:{shard}}}:at", mapping=row)  # type: ignore[arg-type]
    stages.workers.pop("mailbox-0").stop(15)
    stages.start("qsession")
    wait_projected(stages)
    judge(stages)
    by_qsession = held(stages)
    assert by_tail.keys() == by_qsession.keys()
    narrow = [key for key in by_tail if key[1] not in wide_by_tail]
    assert {key: by_tail[key] for key in narrow} == {key: by_qsession[key] for key in narrow}
