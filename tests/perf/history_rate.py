"""Pages of history per second: from the hot tier, from the archive, across both, alone and in a rush.

    python -m tests.perf.history_rate [--messages N] [--body BYTES] [--page N] [--seconds S]

The service is the real one on a real Redis (a private one) and a real RocksDB archive that another instance
writes. Readers page backwards through a conversation, at random places; `rush` is many readers of the newest
page at once, who share their reads. Encoding is that of the binary subprotocol; no socket is in the figures.
"""

import argparse
import asyncio
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop
from pydantic import SecretStr

from qim_streams.embedded.redis_server import EmbeddedRedis
from qim_streams.gateway.history import history_page
from qim_streams.history.service import HistoryService
from qim_streams.redis_tier import RedisClient, connect
from qim_streams.settings import Settings
from qim_streams.sync.ports import MailboxAddress
from qim_streams.wire import MSGPACK
from qim_streams.wire.frames import HistoryPage, PullHistory
from tests.contract.history.history_tiers import Tiers, tiers_of
from tests.support.hot_tier import TENANT

WHO = MailboxAddress(TENANT, "ann", "phone", 0, 0, 0)
HOT, COLD, BOTH = "hot", "cold", "both"


@dataclass
class Load:
    """What a run does."""

    messages: int
    body: int
    page: int
    seconds: float


async def read(service: HistoryService, chat: str, anchor: int | None, load: Load) -> int:
    """One page; how many bytes it has."""
    data = await history_page(service, MSGPACK, WHO, PullHistory(1, chat, "older", anchor, load.page))
    return len(data)


async def measured(name: str, service: HistoryService, chat: str, readers: int, load: Load) -> None:
    """Let `readers` page for a while; print pages per second, CPU and latency."""
    rng, waits, size = random.Random(1), [], 0
    until = time.perf_counter() + load.seconds
    cpu, started = time.process_time(), time.perf_counter()

    async def one() -> None:
        nonlocal size
        while time.perf_counter() < until:
            anchor = None if name.startswith("rush") else rng.randint(load.page + 1, load.messages + 1)
            asked = time.perf_counter()
            got = await read(service, chat, anchor, load)
            size += got
            waits.append(time.perf_counter() - asked)

    await asyncio.gather(*(one() for _ in range(readers)))
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu
    waits.sort()
    p50, p99 = waits[len(waits) // 2] * 1e3, waits[len(waits) * 99 // 100] * 1e3
    each = cpu / len(waits) * 1e6
    print(
        f"{name:24} {readers:4} readers {len(waits) / wall:8,.0f} pages/s {each:7,.0f} µs CPU   "
        f"P50 {p50:6.2f} ms  P99 {p99:6.2f} ms   {size / wall / 2**20:6.1f} MiB/s"
    )


async def prepared(tiers: Tiers, load: Load) -> None:
    """Three conversations: all hot, all archived, half and half."""
    body = bytes(n % 251 for n in range(load.body))
    for chat in (HOT, COLD, BOTH):
        await tiers.hot.group(chat, {"ann": "owner"})
        for start in range(0, load.messages, 500):
            await tiers.say(chat, "ann", min(500, load.messages - start), body)
        await tiers.archive_up_to(chat, load.messages)
    await tiers.trim(COLD, range(1, load.messages + 1))
    await tiers.trim(BOTH, range(1, load.messages // 2))


async def run(client: RedisClient, folder: Path, load: Load) -> None:
    async with tiers_of("real", client, folder) as tiers:
        await prepared(tiers, load)
        service = tiers.service()
        page = MSGPACK.decode_server(
            await history_page(service, MSGPACK, WHO, PullHistory(1, BOTH, "older", None, load.page))
        )
        assert isinstance(page, HistoryPage)
        assert len(page.messages) == load.page
        for readers in (1, 32):
            for chat in (HOT, COLD, BOTH):
                await measured(chat, service, chat, readers, load)
        await measured("rush on the newest page", service, HOT, 500, load)
        await measured("rush, archived", service, COLD, 500, load)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--body", type=int, default=200)
    parser.add_argument("--page", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=3.0)
    load = Load(**vars(parser.parse_args()))
    with tempfile.TemporaryDirectory(prefix="history-rate-") as folder:
        server = EmbeddedRedis(Path(folder) / "redis", progress=lambda _: None)
        server.start()
        try:

            async def body() -> None:
                client = connect(Settings(redis_url=SecretStr(server.url)))
                await run(client, Path(folder), load)
                await client.aclose()

            uvloop.run(body())
        finally:
            server.stop()


if __name__ == "__main__":
    main()
