"""Both stages as real workers on a real log and hot tier: killed, fed repeats and poison, robbed of disks.

T-K2 (fan-out and mailbox points), T-G1, T-A3, T-S3; I1 I2 I3 I5 I6 I7 I11 I15.
"""

import shutil
from random import Random

import pytest

from qim_streams.embedded.ports import free_ports
from qim_streams.ids import event_id
from qim_streams.records import MessageRecord, OutboxRecord, record_key
from tests.integration.pipeline.stages import DEAD_LETTERS, OUTBOX, TENANT, Conversation, Stages
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.integration

USERS = [f"u{number}" for number in range(60)]
FANOUT_POINTS = ("outbox_polled", "membership_pinned", "dispatch_appended_some", "all_appended")
MAILBOX_POINTS = (
    "dispatch_polled",
    "bitmap_loaded",
    "entries_partial",
    "entries_durable",
    "progress_marked",
    "all_chunks_done",
    "watermark_advanced",
    "pushed",
)


def kill_at(stage: str, points: tuple[str, ...]) -> str:
    return ",".join(f"{stage}.{point}:1:kill" for point in points)


def conversations(stages: Stages, random: Random) -> list[Conversation]:
    """Direct chats, a small group inline, one in the membership store, and one that is written in steps."""
    chats = [stages.direct(*random.sample(USERS, 2)) for _ in range(20)]
    groups = [
        stages.group("small", random.sample(USERS, 9), inline=True),
        stages.group("stored", random.sample(USERS, 30)),
        stages.group("large", [f"u{number}" for number in range(200)]),
    ]
    return [*chats, *groups]


def feed(stages: Stages, chats: list[Conversation], random: Random, count: int) -> None:
    for _ in range(count):
        chat = random.choice(chats)
        stages.send(chat, random.choice(chat.members))
    stages.flush()


def wait_mailboxed(stages: Stages, armed: dict[str, str] | None = None, within_s: float = 60) -> None:
    def done() -> bool:
        stages.supervise(armed or {})
        return stages.everything_is_mailboxed()

    eventually_sync(done, within_s, "everything to be mailboxed")


@pytest.mark.parametrize(
    ("fanout", "mailbox", "seed"),
    [
        (
            FANOUT_POINTS[2:],
            ("entries_partial", "progress_marked", "all_chunks_done", "watermark_advanced"),
            11,
        ),
        pytest.param(FANOUT_POINTS, MAILBOX_POINTS, 12, marks=pytest.mark.slow),
    ],
    ids=["some points", "every point"],
)
def test_workers_killed_between_steps(
    stages: Stages, fanout: tuple[str, ...], mailbox: tuple[str, ...], seed: int
) -> None:
    """T-K2: each stage is killed at each of its points while records flow; nothing lost, twice or late."""
    print("seed", seed)
    random = Random(seed)
    chats = conversations(stages, random)
    stages.hold_connection_leases()
    for user in USERS[:30]:
        stages.come_online(user, "phone", random.randrange(2))
        stages.come_online(user, "web", random.randrange(2))
    feed(stages, chats, random, 300)
    armed = {"fanout": kill_at("fanout", fanout), "mailbox": kill_at("mailbox", mailbox)}
    for role, failpoints in armed.items():
        stages.start(role, failpoints=failpoints)
    wanted = {"fanout-0": len(fanout), "mailbox-0": len(mailbox)}

    def died_everywhere() -> bool:
        stages.supervise(armed)
        if stages.everything_is_mailboxed():
            feed(stages, chats, random, 40)
            for sent in random.sample(stages.sent, 5):
                stages.repeat(sent)
        return all(sum(name == who for who, _ in stages.exits) >= count for name, count in wanted.items())

    eventually_sync(died_everywhere, 180, "every failpoint to kill its worker")
    feed(stages, chats, random, 100)
    wait_mailboxed(stages, armed)
    eventually_sync(lambda: _judged(stages), 20, "W to reach the log's end")
    repeats = stages.judge_pushes(since=0)
    assert stages.dead_letters() == []
    print(f"{len(stages.sent)} messages, {len(stages.exits)} kills, {repeats} pushes repeated")


def _judged(stages: Stages) -> bool:
    """Repeats at the end of the log are covered a moment after the last entry."""
    stages.judge_outbox()
    ends = stages.ends("qim.dispatch.v1", stages.settings.mailbox_shards)
    if any(stages.watermark(shard) != {end - 1} for shard, end in ends.items()):
        return False
    return stages.judge_mailboxes() > 0


def test_repeats_forgeries_and_poison(stages: Stages) -> None:
    """T-G1: ten copies make one entry, the same id with other bytes goes to the dead letters.
    T-A3: eight kinds of poison between good records cost themselves and nothing else (I15)."""
    random = Random(5)
    chats = conversations(stages, random)
    for role in ("fanout", "mailbox"):
        stages.start(role)
    good = [stages.send(chat, chat.members[0]) for chat in chats for _ in range(2)]
    stages.repeat(good[0], times=10)
    stages.repeat(good[1], body=b"body forged")
    poison = _poison(stages, chats[0])
    for value in poison:
        stages.append(OUTBOX, stages.partition(chats[0]), *value)
        stages.send(chats[0], chats[0].members[0])
    stages.flush()
    wait_mailboxed(stages)
    stages.repeat(good[2], times=10)
    tail = [stages.send(chat, chat.members[0]) for chat in chats]
    stages.flush()
    wait_mailboxed(stages)
    assert tail
    eventually_sync(lambda: _judged(stages), 20, "W to reach the log's end")
    letters = stages.dead_letters()
    assert len(letters) == len(poison) + 1
    assert {letter.value for letter in letters} >= {value for _, value in poison if value}
    assert sum("message_id was used with other content" in letter.message for letter in letters) == 1


def _poison(stages: Stages, chat: Conversation) -> list[tuple[bytes | None, bytes | None]]:
    """Eight kinds of records that are no Outbox record of this partition, as (key, value)."""
    key = record_key(TENANT, chat.conversation_id)
    message = MessageRecord(
        99,
        1,
        TENANT,
        chat.conversation_id,
        b"p" * 16,
        b"p" * 16,
        chat.members[0],
        1,
        "d",
        "m",
        1,
        1,
        0,
        0,
        b"",
    )
    value = OutboxRecord(message.encode(), 1, 0, {0: (1, b"\x01\0\0\0")}).encode()
    others = (stages.direct("x", f"y{number}") for number in range(100))
    elsewhere = next(one for one in others if stages.partition(one) != stages.partition(chat))
    foreign = message._replace(conversation_id=elsewhere.conversation_id)
    return [
        (key, None),
        (key, b""),
        (key, b"\x07" + value[1:]),
        (key, value[: len(value) // 2]),
        (key, b"\x01\xc1\xff garbage"),
        (b"wrong key", value),
        (
            record_key(TENANT, elsewhere.conversation_id),
            OutboxRecord(foreign.encode(), 1, 0, {0: (1, b"\x01\0\0\0")}).encode(),
        ),
        (key, OutboxRecord(message._replace(tenant_id="other").encode(), 1, 0, None).encode()),
    ]


def test_disks_lost_and_a_second_worker(stages: Stages) -> None:
    """T-S3: RocksDB deleted, the same results; T-B1 in small: a second worker comes and is killed."""
    random = Random(7)
    chats = conversations(stages, random)
    for role in ("fanout", "mailbox"):
        stages.start(role)
    feed(stages, chats, random, 150)
    wait_mailboxed(stages)
    for role in ("fanout", "mailbox"):
        stages.workers[f"{role}-0"].kill()
        shutil.rmtree(stages.directory / f"{role}-0" / "workers")
        del stages.workers[f"{role}-0"]
    for sent in random.sample(stages.sent, 30):
        stages.repeat(sent)  # each must be dropped by what the changelog alone can tell
    for role in ("fanout", "mailbox"):
        stages.start(role)
        stages.start(role, slot=1)
    feed(stages, chats, random, 150)
    wait_mailboxed(stages)
    for role in ("fanout", "mailbox"):
        stages.wait_ready(role, 1)
        stages.workers.pop(f"{role}-1").kill()
    feed(stages, chats, random, 150)
    wait_mailboxed(stages)
    eventually_sync(lambda: _judged(stages), 20, "W to reach the log's end")
    assert stages.read(DEAD_LETTERS, 1) == []


def test_presence_tables_and_a_gateway_that_dies(stages: Stages) -> None:
    """§6: devices in the log and new ones are told and pushed to; a dead gateway's vanish at once."""
    stages.hold_connection_leases()
    chat = stages.direct("ann", "ben")
    early = stages.come_online("ben", "phone", 0)
    stages.flush()
    (port,) = free_ports(1)
    stages.start("fanout")
    stages.start("mailbox", web_port=port)
    stages.wait_ready("mailbox")
    eventually_sync(lambda: stages.ready().get(early) == [-1], 20, "the early device to be told")
    first = stages.send(chat, "ann")
    stages.flush()
    eventually_sync(lambda: stages.pushed_events()["ben", "phone"], 20, "the first push")
    late = stages.come_online("ann", "web", 1)
    stages.flush()
    eventually_sync(lambda: len(stages.ready().get(late, [])) == 1, 20, "the late device to be told")
    second = stages.send(chat, "ann")
    stages.flush()
    wanted = [event_id(second.message_id, "ann")]
    eventually_sync(lambda: stages.pushed_events()["ann", "web"] == wanted, 20, "the push to the late device")
    assert stages.pushed_events()["ben", "phone"] == [
        event_id(one.message_id, "ben") for one in (first, second)
    ]
    _tables_show_it(stages, port)
    stages.redis.incr("{cs:0}:epoch")  # the gateway was restarted: its old connections are gone
    eventually_sync(lambda: "devices of ended gateways" in stages.log_end("mailbox-0"), 20, "the purge")
    third = stages.send(chat, "ann")
    stages.flush()
    wanted.append(event_id(third.message_id, "ann"))
    eventually_sync(lambda: stages.pushed_events()["ann", "web"] == wanted, 20, "the third push")
    assert len(stages.pushed_events()["ben", "phone"]) == 2
    wait_mailboxed(stages)


def _tables_show_it(stages: Stages, port: int) -> None:
    index = stages.fetch(port, "/qim/tables/index/")
    assert [one["name"] for one in index["tables"]] == ["dispatch_progress", "lane_watermarks"]
    shard = stages.shard("ben")

    def covered() -> bool:
        found = stages.fetch(port, f"/qim/tables/lane_watermarks/?partition={shard}")
        return bool(found["rows"]) and {found["rows"][0]["covered"]} == stages.watermark(shard)

    eventually_sync(covered, 10, "the table to show W")
    pages = stages.fetch(port, f"/qim/tables/dispatch_progress/?partition={shard}&offset=0")["rows"]
    assert [page["first"] for page in pages] == sorted(page["first"] for page in pages)
    assert sum(page["dispatches"] for page in pages) == 2
    assert stages.fetch(port, "/qim/tables/") is None, "the page for people is HTML"
