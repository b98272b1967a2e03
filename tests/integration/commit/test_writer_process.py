"""Real writer processes on Kafka and Redis: killed at every point (T-K1, C5), replaced, shared, stopped."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from qim_streams.commit.outcome import SendOutcome, SendRequest, SendStatus
from qim_streams.commit.rpc_client import WriterLinks
from qim_streams.ids import direct_conversation_id
from qim_streams.membership.commands import GroupCommand, GroupOp
from qim_streams.ownership.redis_leases import RedisLeaseStore
from qim_streams.records import OUTBOX_RELAYED
from qim_streams.redis_tier import RedisClient, connect
from qim_streams.settings import Settings
from tests.support.waiting import eventually, eventually_sync
from tests.support.writer_process import SECRET, WriterProcess, read_outbox

pytestmark = pytest.mark.integration

POINTS = (
    "writer.admitted",
    "writer.committed_in_redis",
    "writer.produce_sent",
    "writer.produce_acked",
    "writer.ack_sent",
    "relay.pending_read",
    "relay.pending_appended",
)
SEND_S = 40.0
PARTITIONS = Settings().outbox_partitions
HALF = PARTITIONS // 2


@pytest.fixture
async def redis(servers: Settings) -> AsyncIterator[RedisClient]:
    client = connect(servers)
    yield client
    await client.aclose()


@pytest.fixture
async def links(servers: Settings, redis: RedisClient) -> AsyncIterator[WriterLinks]:
    links = WriterLinks(RedisLeaseStore(redis), SECRET.encode(), "gw-1", servers.outbox_partitions)
    await links.start()
    yield links
    await links.close()


@pytest.fixture
def writer(servers: Settings, tmp_path: Path) -> Iterator[WriterProcess]:
    process = WriterProcess(servers, tmp_path)
    yield process
    process.kill()


def direct(sender: str, peer: str, client_message_id: str, body: bytes) -> SendRequest:
    chat = direct_conversation_id("t", sender, peer)
    ordinal = int.from_bytes(sender.encode()[-2:], "big") << 6
    return SendRequest("t", chat, sender, ordinal, "phone", client_message_id, body, peer)


async def all_pending(redis: RedisClient) -> int:
    return sum([await redis.hlen(f"{{ob:{p}}}:pend") for p in range(PARTITIONS)])


def check_outbox(servers: Settings, acked: dict[str, SendOutcome]) -> None:
    """I1, I3, I4, I5 for what was acknowledged here."""
    first: dict[str, int] = {}
    by_client_id: dict[str, bytes] = {}
    for _, message in read_outbox(servers):
        seen = first.get(message.conversation_id, 0)
        assert message.conversation_seq <= seen + 1, "a seq overtook another"
        first[message.conversation_id] = max(seen, message.conversation_seq)
        key = message.client_message_id
        assert by_client_id.setdefault(key, message.message_id) == message.message_id
    for client_message_id, outcome in acked.items():
        assert by_client_id[client_message_id] == outcome.message_id


async def answered(links: WriterLinks, request: SendRequest) -> SendOutcome:
    """The answer to a client that repeats: a hot tier that is not proved yet says "later" to new users."""
    end_s = time.monotonic() + SEND_S
    while True:
        outcome = await links.send(request, SEND_S)
        is_open = outcome.status is SendStatus.UNKNOWN or outcome.retry_after_ms
        if not is_open or time.monotonic() > end_s:
            return outcome
        await asyncio.sleep((outcome.retry_after_ms or 20) / 1_000)


async def kill_and_repeat(
    writer: WriterProcess, links: WriterLinks, point: str, kills: int, tag: str
) -> tuple[dict[str, SendOutcome], list[float]]:
    """Every boot dies at `point`; one client sends on and on; returns its answers and times to answer."""
    acked: dict[str, SendOutcome] = {}
    waits: list[float] = []
    number = 0
    for kill in range(kills):
        # The relay has something to do only when the boot before left something behind.
        relay = point.startswith("relay.")
        writer.start("writer.committed_in_redis:1:kill" if relay else f"{point}:{1 + kill % 3}:kill")
        while writer.exit_code is None:
            number += 1
            request = direct(f"{tag}a", f"{tag}b{number % 3}", f"{tag}m{number}", b"%d" % number)
            sending = asyncio.create_task(answered(links, request))
            await eventually(lambda: sending.done() or writer.exit_code is not None, SEND_S)  # noqa: B023
            if writer.exit_code is not None and not sending.done():
                if relay:
                    writer.start(f"{point}:1:kill")
                    await eventually(lambda: writer.exit_code is not None, SEND_S, "it dies in the relay")
                started = time.monotonic()
                writer.start()
                outcome = await sending
                waits.append(time.monotonic() - started)
                acked[request.client_message_id] = outcome
                again = await answered(links, request)
                assert again == outcome
                writer.stop()
                break
            acked[request.client_message_id] = await sending
    return acked, waits


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("point", POINTS)
async def test_killed_at_every_point(
    servers: Settings, redis: RedisClient, links: WriterLinks, writer: WriterProcess, point: str, kills: int
) -> None:
    """T-K1, C5: nothing lost, nothing doubled, no hole, and the retry is answered soon after the restart."""
    acked, waits = await kill_and_repeat(writer, links, point, kills, f"{point}-{kills}".replace(".", "-"))
    assert acked
    assert all(outcome.status is SendStatus.COMMITTED for outcome in acked.values()), acked
    print(f"{point}: {len(acked)} acknowledged, answered after restart in {[round(w, 2) for w in waits]} s")
    check_outbox(servers, acked)
    assert await all_pending(redis) == 0


@pytest.mark.slow
async def test_two_hundred_kills_in_the_dual_write_gap(
    servers: Settings, redis: RedisClient, links: WriterLinks, writer: WriterProcess
) -> None:
    acked, waits = await kill_and_repeat(writer, links, "writer.committed_in_redis", 200, "gap")
    check_outbox(servers, acked)
    assert await all_pending(redis) == 0
    print(f"{len(waits)} answers after a restart, slowest {max(waits):.2f} s")


async def test_two_writers_share_and_one_takes_over(
    servers: Settings, redis: RedisClient, links: WriterLinks, tmp_path: Path
) -> None:
    """A second writer gets half of the partitions; when one is killed the other serves all of them."""
    one = WriterProcess(servers, tmp_path / "one", "node-1")
    two = WriterProcess(servers, tmp_path / "two", "node-2")
    leases = RedisLeaseStore(redis)
    resources = [f"ob:{partition}" for partition in range(PARTITIONS)]

    async def holders() -> list[str]:
        return sorted(holder.node if holder else "-" for holder in await leases.holders(resources))

    async def are(expected: list[str]) -> bool:
        return await holders() == expected

    try:
        one.start()
        await eventually(lambda: are(["writer.node-1.0"] * PARTITIONS), 30)
        two.start()
        await eventually(lambda: are(["writer.node-1.0"] * HALF + ["writer.node-2.0"] * HALF), 30)
        requests = [direct("sa", f"sb{n}", f"share{n}", b"x") for n in range(40)]
        outcomes = await asyncio.gather(*(links.send(request, SEND_S) for request in requests))
        assert all(outcome.status is SendStatus.COMMITTED for outcome in outcomes)
        one.kill()
        again = await asyncio.gather(*(links.send(request, SEND_S) for request in requests))
        assert again == outcomes
        await eventually(lambda: are(["writer.node-2.0"] * PARTITIONS), 30)
        assert two.stop() == 0
        await eventually(lambda: are(["-"] * PARTITIONS), 10, "a clean stop gives the leases up at once")
    finally:
        one.kill()
        two.kill()
    check_outbox(servers, {r.client_message_id: o for r, o in zip(requests, outcomes, strict=True)})


async def test_groups_through_a_real_writer(
    servers: Settings, redis: RedisClient, links: WriterLinks, writer: WriterProcess
) -> None:
    writer.start()
    created = GroupCommand(GroupOp.CREATE, "t", "ga", "grp", ("gb",), fields={"name": "G"})
    state = await links.group(created, SEND_S)
    assert state.conversation.members_active == 2
    assert (await links.group(created, SEND_S)) == state
    members = await links.group(GroupCommand(GroupOp.GET, "t", "gb", "grp", limit=10), SEND_S)
    assert [member.user_id for member in members.members] == ["ga", "gb"]
    sender = members.members[1]
    sent = SendRequest("t", "grp", "gb", sender.ordinal, "phone", "g1", b"hello")
    assert (await links.send(sent, SEND_S)).conversation_seq == 1
    await links.group(GroupCommand(GroupOp.REMOVE, "t", "ga", "grp", ("gb",)), SEND_S)
    refused = await links.send(sent._replace(client_message_id="g2"), SEND_S)
    assert refused.code == "NOT_MEMBER"
    records = [(o, m) for o, m in read_outbox(servers) if m.conversation_id == "grp"]
    assert [(o.flags & OUTBOX_RELAYED, m.membership_version) for o, m in records] == [(0, 1)]
    assert records[0][0].members is not None
    assert writer.stop() == 0
    assert "stopped" in writer.log()


def test_a_second_writer_of_the_same_name_is_refused(servers: Settings, writer: WriterProcess) -> None:
    writer.start()
    twin = WriterProcess(servers, writer.directory)
    try:
        eventually_sync(lambda: "serving" in writer.log(), 30)
        twin.start()
        eventually_sync(lambda: twin.exit_code is not None, 30)
        assert twin.exit_code == 1
        assert "already running" in twin.log()
    finally:
        twin.kill()
