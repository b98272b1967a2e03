"""What a commit costs: CPU µs per message in the writer and in Redis, for groups of 1, 32 and 256.

    python -m tests.perf.commit_cost [--messages N] [--body BYTES]

The writer is the real service on a real Redis (a private one, append-only file on); the Outbox acknowledges
at once, so that the broker's client is not in the figures. `append` adds what encoding the Outbox records
costs; `rpc` adds gateway, socket and server in the same process.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import uvloop
from pydantic import SecretStr

from qim_streams.commit.lane_services import LaneLimits, SendJob
from qim_streams.commit.outcome import SendOutcome, SendRequest, SendStatus
from qim_streams.commit.rpc_client import WriterLinks
from qim_streams.commit.rpc_server import RpcServer
from qim_streams.embedded.redis_server import EmbeddedRedis
from qim_streams.ownership.ports import Grant
from qim_streams.redis_tier import RedisClient, connect
from qim_streams.settings import Settings
from qim_streams.testing.memory_tier import MemoryHotTier
from qim_streams.testing.memory_writer import WriterRig
from tests.support.hot_tier import SHARDS, TENANT, redis_tier

CHATS = 200
SECRET = b"p" * 32
GROUPS = (1, 32, 256)
Work = Callable[[list[SendRequest], int], Awaitable[None]]


def one_partition(_tenant: str, _chat: str) -> int:
    return 0


async def redis_cpu_s(client: RedisClient) -> float:
    info = await client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


async def measured(
    client: RedisClient, name: str, work: Work, requests: list[SendRequest], size: int
) -> None:
    """Do `work` on `requests` in groups of `size` and print its figures, per message."""
    before, cpu, wall = await redis_cpu_s(client), time.process_time(), time.perf_counter()
    await work(requests, size)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    server = await redis_cpu_s(client) - before
    count = len(requests)
    figures = (name, cpu / count * 1e6, server / count * 1e6, count / wall)
    print("{:32} writer {:7.1f} µs   redis {:6.1f} µs   {:9,.0f} msg/s".format(*figures))


async def make_rig(client: RedisClient) -> WriterRig:
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
        queue_max=100_000,
        lane=LaneLimits(),
    )
    for store in (tier.conversations, tier.membership, tier.reader):
        store._partition_of = one_partition  # type: ignore[union-attr, attr-defined]
    return rig


async def requests_of(rig: WriterRig, count: int, body: int, tag: str) -> list[SendRequest]:
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
    for start in range(0, len(requests), size):
        part = requests[start : start + size]
        outcomes = await asyncio.gather(*(links.send(request, 30) for request in part))
        assert all(outcome.status is SendStatus.COMMITTED for outcome in outcomes)


async def run(client: RedisClient, messages: int, body: int) -> None:
    rig = await make_rig(client)
    server = RpcServer(rig.writer, rig.groups, SECRET, rig.die)
    port = await server.start("127.0.0.1", 0)
    grant = await rig.leases.acquire("ob:0", "w1", 1, f"127.0.0.1:{port}", 10**9)
    assert isinstance(grant, Grant)
    await rig.writer.grant(grant).ready.wait()
    links = WriterLinks(rig.leases, SECRET, "gw", 1)
    await links.start()
    direct, rpc = partial(in_groups, rig), partial(through_rpc, links)
    await measured(client, "new direct chats, 200", direct, await requests_of(rig, CHATS, body, "f"), 200)
    for size in GROUPS:
        count = max(messages // 20, 500) if size == 1 else messages
        plain = await requests_of(rig, count, body, f"s{size}-")
        await measured(client, f"groups of {size}", direct, plain, size)
        await measured(
            client, f"groups of {size}, with rpc", rpc, await requests_of(rig, count, body, f"r{size}-"), size
        )
    again = await requests_of(rig, messages, body, "s256-")
    await measured(client, "repeats, groups of 256", direct, again, 256)
    await links.close()
    await rig.writer.close(5)
    await server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--body", type=int, default=128)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="commit-cost-") as folder:
        server = EmbeddedRedis(Path(folder) / "redis", progress=lambda _: None)
        server.start()
        try:

            async def body() -> None:
                client = connect(Settings(redis_url=SecretStr(server.url)))
                await run(client, options.messages, options.body)
                await client.aclose()

            uvloop.run(body())
        finally:
            server.stop()


if __name__ == "__main__":
    main()
