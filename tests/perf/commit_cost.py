"""What a commit costs: CPU µs per message in the writer and in Redis.

    python -m tests.perf.commit_cost [--messages N] [--body BYTES] [--members 10,1000,100000] [--json FILE]

First by the size of the batch that is committed in one call (1, 32, 256), direct chats; then by the size of
the conversation: one group of each size, made by the real membership service, and batches of 256. Those are
measured in turns, several rounds, and compared by the best: a commit must not cost more in a large group
(goal: within 1.2 times).

The writer is the real service on a real Redis (a private one, append-only file on); the Outbox acknowledges
at once, so that the broker's client is not in the figures. `rpc` adds gateway, socket and server in the same
process. Exit codes: 0 measured, 1 an answer was wrong, 2 wrong usage.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import uvloop
from pydantic import SecretStr

from qim_streams.commit.lane_services import LaneLimits, SendJob
from qim_streams.commit.outcome import SendOutcome, SendRequest, SendStatus
from qim_streams.commit.rpc_client import WriterLinks
from qim_streams.commit.rpc_server import RpcServer
from qim_streams.embedded.redis_server import EmbeddedRedis
from qim_streams.limits import GROUP_MEMBERS_PER_CHANGE_MAX
from qim_streams.membership.commands import GroupCommand, GroupOp
from qim_streams.ownership.ports import Grant
from qim_streams.redis_tier import RedisClient, connect
from qim_streams.settings import Settings
from qim_streams.testing.memory_tier import MemoryHotTier
from qim_streams.testing.memory_writer import WriterRig
from tests.perf import reporting
from tests.perf.processes import MeasurementError
from tests.support.hot_tier import SHARDS, TENANT, redis_tier

CHATS = 200
SECRET = b"p" * 32
BATCHES = (1, 32, 256)
BATCH = BATCHES[-1]
ROUNDS = 5
MEMBERS_MAX = 100_000
GOAL = 1.2
Work = Callable[[list[SendRequest], int], Awaitable[None]]


class Asked(NamedTuple):
    """What the command line says. `members`: sizes of groups."""

    messages: int
    body: int
    members: list[int]


class Cost(NamedTuple):
    """CPU µs per message, and messages per second of one caller that waits for each batch."""

    name: str
    writer_us: float
    redis_us: float
    per_s: float

    @property
    def both_us(self) -> float:
        """Writer and Redis."""
        return self.writer_us + self.redis_us


def one_partition(_tenant: str, _chat: str) -> int:
    """Everything is in partition 0."""
    return 0


async def redis_cpu_s(client: RedisClient) -> float:
    """Processor time of Redis so far."""
    info = await client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


async def measured(
    client: RedisClient, name: str, work: Work, requests: list[SendRequest], size: int
) -> Cost:
    """Do `work` on `requests` in batches of `size`; what it cost per message."""
    before, cpu, wall = await redis_cpu_s(client), time.process_time(), time.perf_counter()
    await work(requests, size)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    server = await redis_cpu_s(client) - before
    count = len(requests)
    return Cost(name, cpu / count * 1e6, server / count * 1e6, count / wall)


async def make_rig(client: RedisClient) -> WriterRig:
    """The real services on `client`, everything in one partition."""
    tier = redis_tier(client)
    rig = WriterRig(
        MemoryHotTier(one_partition),
        [],
        conversations=tier.conversations,
        membership=tier.membership,
        reader=tier.reader,
        directory=tier.directory,
        leases=tier.leases,
        mailbox_shards=SHARDS,
        members_max=MEMBERS_MAX,
        queue_max=100_000,
        lane=LaneLimits(),
    )
    for store in (tier.conversations, tier.membership, tier.reader):
        store._partition_of = one_partition  # type: ignore[union-attr]
    return rig


async def requests_of(rig: WriterRig, count: int, body: int, tag: str) -> list[SendRequest]:
    """Sends to direct chats, in turn."""
    pairs = [(f"a{n}", f"b{n}") for n in range(CHATS)]
    chats = [await rig.direct(*pair, "x") for pair in pairs]
    payload = bytes(n % 251 for n in range(body))
    return [
        chats[n % CHATS]._replace(client_message_id=f"{tag}{n}", body=payload, tenant_id=TENANT)
        for n in range(count)
    ]


async def in_groups(rig: WriterRig, requests: list[SendRequest], size: int) -> None:
    """Submit groups one after the other, each when the one before is answered."""
    for start in range(0, len(requests), size):
        part = requests[start : start + size]
        left, done = len(part), asyncio.Event()

        def reply(outcome: SendOutcome) -> None:
            nonlocal left
            assert outcome.status is SendStatus.COMMITTED, outcome
            left -= 1
            if left == 0:
                done.set()  # noqa: B023 - called before the next round

        rig.writer.submit([SendJob(request, reply, 1e18) for request in part])
        await done.wait()


async def through_rpc(links: WriterLinks, requests: list[SendRequest], size: int) -> None:
    """As `in_groups`, through socket and server."""
    for start in range(0, len(requests), size):
        part = requests[start : start + size]
        outcomes = await asyncio.gather(*(links.send(request, 30) for request in part))
        assert all(outcome.status is SendStatus.COMMITTED for outcome in outcomes)


async def make_group(rig: WriterRig, epoch: int, members: int) -> str:
    """A group of so many, made as a client would: created, then added to in steps."""
    chat, users = f"g.{members}", [f"m{number}" for number in range(members)]
    first, step = users[0], GROUP_MEMBERS_PER_CHANGE_MAX
    state = await rig.groups.execute(0, epoch, GroupCommand(GroupOp.CREATE, TENANT, first, chat))
    for start in range(1, members, step):
        part = tuple(users[start : start + step])
        state = await rig.groups.execute(0, epoch, GroupCommand(GroupOp.ADD, TENANT, first, chat, part))
    if state.conversation.members_active != members:
        raise MeasurementError(f"{chat} has {state.conversation.members_active} members")
    return chat


async def by_batch(client: RedisClient, rig: WriterRig, links: WriterLinks, asked: Asked) -> list[Cost]:
    """Direct chats, by the size of the batch."""
    direct, rpc = partial(in_groups, rig), partial(through_rpc, links)
    first = await requests_of(rig, CHATS, asked.body, "f")
    found = [await measured(client, "new direct chats, batches of 200", direct, first, CHATS)]
    for size in BATCHES:
        count = max(asked.messages // 20, 500) if size == 1 else asked.messages
        for name, work in ((f"direct, batches of {size}", direct), (f"the same with rpc, {size}", rpc)):
            requests = await requests_of(rig, count, asked.body, f"{name[0]}{size}-")
            found.append(await measured(client, name, work, requests, size))
    again = await requests_of(rig, asked.messages, asked.body, f"d{BATCH}-")
    return [*found, await measured(client, f"repeats, batches of {BATCH}", direct, again, BATCH)]


async def by_members(client: RedisClient, rig: WriterRig, epoch: int, asked: Asked) -> list[Cost]:
    """One group of each size, in turns; the best round of each."""
    best: dict[int, Cost] = {}
    chats = {}
    for members in asked.members:
        began_s = time.monotonic()
        chats[members] = await make_group(rig, epoch, members)
        print(f"group of {members:,} made in {time.monotonic() - began_s:.1f} s", file=sys.stderr, flush=True)
    payload = bytes(asked.body)
    for number in range(ROUNDS):
        for members, chat in chats.items():
            requests = [
                await rig.request(chat, "m0", f"{members}-{number}-{n}", payload)
                for n in range(max(asked.messages // ROUNDS, BATCH))
            ]
            cost = await measured(client, f"group of {members:,}", partial(in_groups, rig), requests, BATCH)
            if members not in best or cost.both_us < best[members].both_us:
                best[members] = cost
    return list(best.values())


async def run(client: RedisClient, asked: Asked) -> tuple[list[Cost], list[Cost]]:
    """Both tables."""
    rig = await make_rig(client)
    server = RpcServer(rig.writer, rig.groups, SECRET, rig.die)
    port = await server.start("127.0.0.1", 0)
    grant = await rig.leases.acquire("ob:0", "w1", 1, f"127.0.0.1:{port}", 10**9)
    assert isinstance(grant, Grant)
    await rig.writer.grant(grant).ready.wait()
    links = WriterLinks(rig.leases, SECRET, "gw", 1)
    await links.start()
    try:
        batches = await by_batch(client, rig, links, asked)
        return batches, await by_members(client, rig, grant.epoch, asked)
    finally:
        await links.close()
        await rig.writer.close(5)
        await server.close()


def report(costs: Sequence[Cost], against: Cost | None = None) -> str:
    """The figures for people; with `against` how many times as much as that one."""
    head = ["per message", "writer µs", "redis µs", "both µs", "msg/s"] + (["x"] if against else [])
    rows: list[list[reporting.Cell]] = []
    for one in costs:
        rows.append([one.name, one.writer_us, one.redis_us, one.both_us, one.per_s])
        if against:
            rows[-1].append(one.both_us / against.both_us)
    return reporting.table(head, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what `argv` asks for; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.perf.commit_cost",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--messages", type=int, default=20_000, metavar="N")
    parser.add_argument("--body", type=int, default=128, metavar="BYTES")
    parser.add_argument("--members", type=sizes_of, default="10,1000,100000", help="sizes of groups")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    options = parser.parse_args(argv)
    if options.messages < 1_000 or options.body < 1:
        parser.error("--messages: at least 1,000; --body: at least 1")
    asked = Asked(options.messages, options.body, options.members)
    reporting.begin("commit cost", None)
    try:
        with tempfile.TemporaryDirectory(prefix="commit-cost-") as folder:
            server = EmbeddedRedis(Path(folder) / "redis", progress=lambda _: None)
            server.start()
            try:
                batches, groups = uvloop.run(on_redis(server.url, asked))
            finally:
                server.stop()
    except MeasurementError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    worst = max(one.both_us for one in groups) / groups[0].both_us
    print(report(batches), report(groups, groups[0]), sep="\n\n")
    print(f"the dearest group costs {worst:.2f} times the smallest one (goal: at most {GOAL})")
    results = {"batches": [one._asdict() for one in batches], "members": [one._asdict() for one in groups]}
    reporting.save(options.json, "commit_cost", None, {**results, "ratio": worst, "goal": GOAL})
    return 0


async def on_redis(url: str, asked: Asked) -> tuple[list[Cost], list[Cost]]:
    """`run` with a client of its own."""
    client = connect(Settings(redis_url=SecretStr(url)))
    try:
        return await run(client, asked)
    finally:
        await client.aclose()


def sizes_of(text: str) -> list[int]:
    """10,1000 as numbers of 2 and more; ValueError for anything else."""
    found = [int(part) for part in text.split(",")]
    if not all(2 <= one <= MEMBERS_MAX for one in found):
        raise ValueError(text)
    return found


if __name__ == "__main__":
    sys.exit(main())
