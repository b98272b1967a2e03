"""What the session list costs: pages per second of a gateway's core, and marks of reading.

    python -m tests.perf.session_list [--conversations N] [--page N] [--unread N] [--readers N] [--seconds S]

One user with many conversations (half of them direct chats) on a private Redis; `readers` ask for the first
page again and again, from heads in the hot tier to the bytes of the frame in the binary subprotocol: once
with what a gateway keeps from the page before (messages at the ends of conversations, rows that were made of
the same), once ("cold") with nothing of it. There is no socket, and what a client does is not in the figures.
MARK_READ is measured with the signals that it sends, a badge with all but twenty conversations read. Exit
codes: 0 measured, 2 wrong usage.
"""

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
from pydantic import SecretStr

from qim_streams.archive.memory_archive import MemoryArchive
from qim_streams.commit import keys
from qim_streams.embedded.redis_server import EmbeddedRedis
from qim_streams.gateway.session_rows import list_bytes
from qim_streams.ids import direct_conversation_id
from qim_streams.membership.ports import Member
from qim_streams.membership.redis_directory import RedisOrdinalDirectory
from qim_streams.membership.rows import encode_member
from qim_streams.placement import lane, mailbox_shard, ordinal_of, outbox_partition
from qim_streams.records import MessageRecord
from qim_streams.redis_tier import RedisClient, connect
from qim_streams.roles.session_lists import ListServices, compose_badges, compose_lists
from qim_streams.script_pipe import ScriptPipe
from qim_streams.sessions.actions import Actor
from qim_streams.sessions.badge_ports import BadgeQuery
from qim_streams.sessions.ports import SessionUser, StateChange
from qim_streams.sessions.projection_records import Checkpoint, SessionRow, slot_of
from qim_streams.sessions.reading import ListQuery
from qim_streams.sessions.redis_projection import RedisProjection
from qim_streams.sessions.redis_user_state import RedisUserStates
from qim_streams.sessions.state import UserConversationState
from qim_streams.settings import Settings
from qim_streams.wire import MSGPACK

TENANT, ME, SHARDS, PARTITIONS = "acme", "ann", 8, 4
ANN = SessionUser(TENANT, ME, ordinal_of(0, lane(TENANT, ME)))
SHARD = mailbox_shard(TENANT, ME, SHARDS)
BODY = b"x" * 100


class Load(NamedTuple):
    """What the command line says."""

    conversations: int
    page: int
    unread: int
    readers: int
    seconds: float


class Figures(NamedTuple):
    """Of one kind of request: how many per second of a core, its CPU and Redis's, and its latency."""

    per_core_s: float
    gateway_us: float
    redis_us: float
    p50_ms: float
    p99_ms: float


def partition_of(tenant: str, chat: str) -> int:
    """The Outbox partition of a conversation."""
    return outbox_partition(tenant, chat, PARTITIONS)


def message(chat: str, seq: int, sender: str) -> MessageRecord:
    """A message with an id of its own."""
    identity = (1_760_000_000_000 + seq).to_bytes(6, "big") + bytes(10)
    return MessageRecord(
        seq, 1, TENANT, chat, identity, identity, sender, 7, "phone", f"m{seq}", 1, 1_000, 0, 0, BODY
    )


async def fill(client: RedisClient, load: Load) -> list[str]:
    """The conversations of one user, each with `unread` messages of somebody else; their ids."""
    names, rows = [], []
    for number in range(load.conversations):
        peer = f"user{number:05}"
        direct = number % 2 == 0
        chat = direct_conversation_id(TENANT, ME, peer) if direct else f"group{number:05}"
        base, c = keys.base(partition_of(TENANT, chat)), keys.conversation(TENANT, chat)
        said = [message(chat, seq, peer) for seq in range(1, load.unread + 1)]
        pipe = client.pipeline(transaction=False)
        head = {"kind": "direct" if direct else "group", "seq": load.unread, "name": "A name", "mv": 1}
        pipe.hset(f"{base}c:{c}", mapping=head | {"history_policy": "joined", "last_id": said[-1].message_id})
        members = [Member(ME, ANN.ordinal, "member", True, ((0, None),))]
        members.append(Member(peer, ordinal_of(number + 1, lane(TENANT, peer)), "member", True, ((0, None),)))
        pipe.hset(f"{base}gm:{c}", mapping={one.user_id: encode_member(one) for one in members})
        pipe.hset(f"{base}r:{c}", mapping={str(one.conversation_seq): one.encode() for one in said})
        await pipe.execute()
        names.append(chat)
        rows.append(SessionRow(ANN.ordinal, chat, 1_760_000_000_000 + number, 1))
    projection = RedisProjection(client)
    await projection.write({slot_of(TENANT, ANN.ordinal): rows})
    await projection.begin(SHARD, None, Checkpoint(0, 10, -1))
    run: str = (await client.info("server"))["run_id"]
    for partition in range(PARTITIONS):  # nothing is listed of a hot tier that is not proved whole
        await client.set(f"{keys.base(partition)}whole", run)
    return names


async def measured(
    client: RedisClient, load: Load, ask: Callable[[random.Random], Awaitable[object]]
) -> Figures:
    """Let `readers` ask for a while."""
    waits: list[float] = []
    before = await redis_cpu_s(client)
    cpu, until = time.process_time(), time.perf_counter() + load.seconds

    async def reader(number: int) -> None:
        rng = random.Random(number)
        while time.perf_counter() < until:
            began = time.perf_counter()
            await ask(rng)
            waits.append(time.perf_counter() - began)

    await asyncio.gather(*(reader(number) for number in range(load.readers)))
    used, redis = time.process_time() - cpu, await redis_cpu_s(client) - before
    waits.sort()
    count = len(waits)
    return Figures(
        count / used,
        used / count * 1e6,
        redis / count * 1e6,
        waits[count // 2] * 1e3,
        waits[min(count - 1, count * 99 // 100)] * 1e3,
    )


async def redis_cpu_s(client: RedisClient) -> float:
    """CPU seconds that the server has used."""
    info: Any = await client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


async def pages(
    lists: ListServices, client: RedisClient, load: Load, *, cold: bool = False
) -> tuple[Figures, int]:
    """First pages, to the bytes of the frame; and the size of one. `cold`: nothing is kept between them."""
    size, rows = 0, lists.frames.lists.rows

    async def ask(_: random.Random) -> None:
        nonlocal size
        if cold:
            rows._made.clear()
            rows._known._kept.clear()
        page = await lists.frames.lists.page(ANN, SHARD, ListQuery(None, load.page))
        size = len(list_bytes(MSGPACK, 1, page))

    await ask(random.Random(0))
    return await measured(client, load, ask), size


async def marks(lists: ListServices, client: RedisClient, load: Load, names: list[str]) -> Figures:
    """MARK_READ of random conversations; each moves the position by one until it is at the end."""
    actor, position = Actor(ANN, SHARD, "phone"), dict.fromkeys(names, 0)

    async def ask(rng: random.Random) -> None:
        chat = rng.choice(names)
        position[chat] = min(position[chat] + 1, load.unread)
        await lists.frames.actions.mark_read(actor, chat, position[chat])

    return await measured(client, load, ask)


async def badges(client: RedisClient, load: Load, names: list[str]) -> Figures:
    """Badges as notifications ask for them, sixteen users in a call; figures are of one user."""
    states = RedisUserStates(client, lambda: 1_000)
    for start in range(20, len(names), 100):
        part = names[start : start + 100]
        _, stored = await states.load(ANN, part)
        read = [UserConversationState(ME, chat, 9, read_seq=load.unread).encode() for chat in part]
        await states.replace(ANN, [StateChange(*one, 9, 0) for one in zip(part, stored, read, strict=True)])
    reader = compose_badges(client, MemoryArchive(), partition_of, SHARDS)
    wanted = [BadgeQuery(ANN, SHARD)] * 16

    async def ask(_: random.Random) -> None:
        await reader.badges(wanted)

    found = await measured(client, load._replace(readers=1), ask)
    return Figures(found.per_core_s * 16, found.gateway_us / 16, found.redis_us / 16, *found[3:])


async def run(load: Load) -> None:
    """Everything, printed."""
    with tempfile.TemporaryDirectory(prefix="qim-perf-") as directory:
        server = EmbeddedRedis(Path(directory), progress=lambda _: None)
        server.start()
        client = connect(Settings(redis_url=SecretStr(server.url)))
        try:
            names = await fill(client, load)
            ordinals = RedisOrdinalDirectory(client, ScriptPipe(client))
            lists = compose_lists(client, MemoryArchive(), ordinals, partition_of, SHARDS)
            found, size = await pages(lists, client, load)
            print(f"page of {load.page} from {load.conversations}: {_text(found)}; {size:,} bytes")
            found, _ = await pages(lists, client, load, cold=True)
            print(f"the same, cold: {_text(found)}")
            print(f"MARK_READ: {_text(await marks(lists, client, load, names))}")
            await lists.frames.close()
            print(f"badge of a user, in calls of 16: {_text(await badges(client, load, names))}")
        finally:
            await client.aclose()
            server.stop()


def _text(found: Figures) -> str:
    return (
        f"{found.per_core_s:,.0f}/s of a gateway's core, {found.gateway_us:,.0f} µs there and "
        f"{found.redis_us:,.0f} µs of Redis each, P50 {found.p50_ms:.1f} ms, P99 {found.p99_ms:.1f} ms"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="What the session list costs.")
    parser.add_argument("--conversations", type=int, default=1_000)
    parser.add_argument("--page", type=int, default=100)
    parser.add_argument("--unread", type=int, default=5)
    parser.add_argument("--readers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    uvloop.run(run(Load(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
