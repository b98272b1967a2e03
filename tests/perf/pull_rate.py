"""What offline sync costs: entries per second of one core of a gateway, through PULL_MAILBOX.

    python -m tests.perf.pull_rate [--users N] [--entries N] [--body BYTES] [--batch N] [--json FILE]

Devices sign on with an old cursor, pull their mailboxes with 4 pulls in flight, complete the sync; some
devices at a time. Once with a conversation of its own for each user (every body is read for one reader),
once with one group for all (bodies are read and encoded for many). The session, the sync service and the
stores are the real ones, on a private Redis; there is no socket, and what the client does is not in the
figures. Frames are msgpack. Exit codes: 0 measured, 1 an answer was wrong, 2 wrong usage.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
from pydantic import SecretStr

from qim_streams import limits
from qim_streams.archive.memory_archive import MemoryArchive
from qim_streams.commit import keys
from qim_streams.embedded.redis_server import EmbeddedRedis
from qim_streams.gateway.outbound import Cork, Outbound
from qim_streams.gateway.services import Services
from qim_streams.gateway.session import ClientSession
from qim_streams.gateway.tokens import mint_token
from qim_streams.mailbox.ports import EntryGroup
from qim_streams.mailbox.redis_store import RedisMailboxStore
from qim_streams.placement import lane_of_ordinal, mailbox_shard, outbox_partition
from qim_streams.records import RECIPIENT_FLAGS, MessageRecord, UserMailboxEntry
from qim_streams.redis_tier import RedisClient, connect
from qim_streams.roles.gateway import compose
from qim_streams.settings import Settings
from qim_streams.sync.cursor import CursorSigner
from qim_streams.sync.ports import MailboxAddress
from qim_streams.wire import MSGPACK
from qim_streams.wire.frames import Auth, AuthOk, MailboxBatch, OnlineReady, PullMailbox, SyncComplete
from tests.perf import reporting
from tests.perf.processes import MeasurementError
from tests.support.gateway_world import FakeWriters, PresenceRecords

TENANT, DEVICE, EPOCH = "acme", "phone", 1
AT_ONCE = 16
SECRET = "p" * 40
ENTRY_FILL = 50  # records in one call while the mailboxes are filled


class Asked(NamedTuple):
    """What the command line says."""

    users: int
    entries: int
    body: int
    batch: int


class Rate(NamedTuple):
    """CPU µs per entry of the gateway and of Redis, and entries per second of a gateway's core."""

    name: str
    gateway_us: float
    redis_us: float
    per_core_s: float
    wall_per_s: float


class Wire:
    """The transport of a session: keeps what is written and tells its frames apart."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.came = asyncio.Event()

    def write(self, data: bytes) -> None:
        """See `Transport.write`."""
        self.data += data
        self.came.set()

    def get_write_buffer_size(self) -> int:
        """See the port: everything is taken at once."""
        return 0

    def is_closing(self) -> bool:
        """See the port."""
        return False

    def frames(self) -> Iterator[bytes]:
        """The frames that have come, which are forgotten."""
        data, at = bytes(self.data), 0
        self.data.clear()
        while at < len(data):
            size, head = data[at + 1], 2
            if size == 126:
                size, head = int.from_bytes(data[at + 2 : at + 4], "big"), 4
            elif size == 127:
                size, head = int.from_bytes(data[at + 2 : at + 10], "big"), 10
            yield data[at + head : at + head + size]
            at += head + size

    async def next(self) -> list[bytes]:
        """The next frames, at least one."""
        while not self.data:
            self.came.clear()
            await self.came.wait()
        return list(self.frames())


async def _drain() -> None:
    """Nothing ever waits in a `Wire`."""


class Users(NamedTuple):
    """Whose mailboxes are filled, and where they lie."""

    names: list[str]
    ordinals: list[int]
    shards: list[int]


async def fill(
    client: RedisClient, settings: Settings, users: Users, asked: Asked, shared: bool
) -> dict[int, int]:
    """Entries 0, 1, ... of every user, in batches; W of each shard afterwards."""
    store, body = RedisMailboxStore(client), bytes(n % 251 for n in range(asked.body))
    tails: dict[int, int] = {}
    for shard in set(users.shards):
        await client.set(f"{{s:{shard}}}:epoch", EPOCH)
        members = [n for n, at in enumerate(users.shards) if at == shard]
        for first in range(0, asked.entries, ENTRY_FILL):
            groups, last = [], min(first + ENTRY_FILL, asked.entries) - 1
            for seq in range(first, last + 1):
                for chat, readers in _readers(users, members, shared):
                    groups.append(_entry(chat, seq, readers))
                if len(groups) >= 1_000:  # more mailboxes than a call takes
                    await _write(store, shard, groups, tails, seq)
                    groups = []
            if groups:
                await _write(store, shard, groups, tails, last)
    for chat in {"g"} if shared else set(users.names):
        partition = outbox_partition(TENANT, chat, settings.outbox_partitions)
        rows = {str(seq + 1): _record(chat, seq, body).encode() for seq in range(asked.entries)}
        await client.hset(f"{{ob:{partition}}}:r:{TENANT}:{chat}", mapping=rows)
    return tails


def _readers(users: Users, members: list[int], shared: bool) -> Iterator[tuple[str, list[int]]]:
    if shared:
        yield "g", sorted(users.ordinals[n] for n in members)
        return
    for n in members:
        yield users.names[n], [users.ordinals[n]]


async def _write(
    store: RedisMailboxStore, shard: int, groups: list[EntryGroup], tails: dict[int, int], seq: int
) -> None:
    stands = await store.write_and_advance(shard, EPOCH, groups, tails.get(shard, -1), seq)
    if stands != seq:
        raise MeasurementError(f"shard {shard}: W stands at {stands}")
    tails[shard] = seq


def _message_id(chat: str, seq: int) -> bytes:
    return chat.encode()[:8].rjust(8, b"\0") + seq.to_bytes(8, "big")


def _record(chat: str, seq: int, body: bytes) -> MessageRecord:
    identity = _message_id(chat, seq)
    return MessageRecord(
        seq + 1,
        1,
        TENANT,
        chat,
        identity,
        identity,
        "ann",
        7,
        "d",
        f"c{seq}",
        1,
        1_700_000_000_000,
        0,
        0,
        body,
    )


def _entry(chat: str, seq: int, ordinals: list[int]) -> EntryGroup:
    entry = UserMailboxEntry(
        0, _message_id(chat, seq), chat, seq + 1, "ann", RECIPIENT_FLAGS, 1_700_000_000_000, None
    )
    return EntryGroup(TENANT, seq, 0, entry.encode(), ordinals)


class Puller:
    """One device from AUTH to ONLINE_READY. `checked` decodes every batch, and is not for measuring."""

    def __init__(self, services: Services, user: str, cursor: str, asked: Asked, *, checked: bool) -> None:
        self._codec, self._asked, self._checked = MSGPACK, asked, checked
        self._wire = Wire()
        loop = asyncio.get_running_loop()
        outbound = Outbound(self._wire, _drain, Cork(loop), binary=True, bytes_max=2**30)
        self.session = ClientSession(services, self._codec, outbound, self._hang_up)
        token = mint_token(SECRET.encode(), "qim", TENANT, user, 600, int(time.time()))[0]
        self._auth = Auth(1, token, DEVICE, cursor)
        self.hung_up = 0

    def _hang_up(self, code: int) -> None:
        self.hung_up = code

    async def run(self) -> int:
        """Sync; how many entries came."""
        self._send(self._auth)
        (answer,) = await self._wire.next()
        auth = self._codec.decode_server(answer)
        if not isinstance(auth, AuthOk):
            raise MeasurementError(f"AUTH was answered {auth}")
        starts, step = list(range(-1, auth.sync_to_seq, self._asked.batch)), self._asked.batch
        asked = answered = entries = 0
        while answered < len(starts):
            while asked < len(starts) and asked - answered < limits.PULL_WINDOW:
                start = starts[asked]
                up_to = min(start + step, auth.sync_to_seq)
                self._send(PullMailbox(10 + asked, start, up_to))
                asked += 1
            for frame in await self._wire.next():
                answered += 1
                if self._checked:
                    entries += self._count(frame)
        self._send(SyncComplete(2, auth.sync_to_seq))
        (answer,) = await self._wire.next()
        ready = self._codec.decode_server(answer)
        self.session.close()
        if not isinstance(ready, OnlineReady) or self.hung_up:
            raise MeasurementError(f"the sync ended with {ready}")
        return entries

    def _send(self, frame: Any) -> None:
        self.session.receive(self._codec.encode(frame))

    def _count(self, data: bytes) -> int:
        batch = self._codec.decode_server(data)
        if not isinstance(batch, MailboxBatch) or batch.has_more:
            raise MeasurementError(f"a pull was answered {batch}")
        return len(batch.entries)


async def redis_cpu_s(client: RedisClient) -> float:
    """Processor time of Redis so far."""
    info = await client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


async def measured(client: RedisClient, settings: Settings, asked: Asked, shared: bool) -> Rate:
    """Fill the mailboxes, check one device, measure them all."""
    await client.flushdb()
    run: str = (await client.info("server"))["run_id"]
    for partition in range(settings.outbox_partitions):  # a tier that is not proved gives out no ordinals
        await client.set(f"{keys.base(partition)}whole", run)
    mailboxes, writers = RedisMailboxStore(client), FakeWriters()
    services, _ = compose(settings, client, mailboxes, MemoryArchive(), PresenceRecords(), writers)  # type: ignore[arg-type]
    names = [f"u{number}" for number in range(asked.users)]
    ordinals = await services.ordinals.assign(TENANT, names)
    users = Users(names, ordinals, [mailbox_shard(TENANT, name, settings.mailbox_shards) for name in names])
    await fill(client, settings, users, asked, shared)
    signer = CursorSigner(settings.secret("cursor_secret"))
    cursors = [
        signer.issue(MailboxAddress(TENANT, user, DEVICE, number, shard, lane_of_ordinal(number)), EPOCH, -1)
        for user, number, shard in zip(*users, strict=True)
    ]
    found = await Puller(services, names[0], cursors[0], asked, checked=True).run()
    if found != asked.entries:
        raise MeasurementError(f"{found} entries came, {asked.entries} were written")
    mailboxes, writers = RedisMailboxStore(client), FakeWriters()
    services, _ = compose(settings, client, mailboxes, MemoryArchive(), PresenceRecords(), writers)  # type: ignore[arg-type]
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(user: str, cursor: str) -> None:
        async with gate:
            await Puller(services, user, cursor, asked, checked=False).run()

    before, cpu, wall = await redis_cpu_s(client), time.process_time(), time.perf_counter()
    await asyncio.gather(*(one(*pair) for pair in zip(names, cursors, strict=True)))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    server = await redis_cpu_s(client) - before
    count = asked.users * asked.entries
    if services.counters.pulled_events != count:
        raise MeasurementError(f"{services.counters.pulled_events} of {count} entries were sent")
    name = "one group for all" if shared else "a conversation each"
    return Rate(name, cpu / count * 1e6, server / count * 1e6, count / cpu, count / wall)


async def on_redis(url: str, asked: Asked) -> list[Rate]:
    """Both cases, each on an empty store."""
    settings = Settings(
        redis_url=SecretStr(url),
        jwt_secret=SecretStr(SECRET),
        cursor_secret=SecretStr(SECRET),
        internal_secret=SecretStr(SECRET),
    )
    client = connect(settings)
    try:
        return [await measured(client, settings, asked, shared) for shared in (False, True)]
    finally:
        await client.aclose()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what `argv` asks for; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.perf.pull_rate",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--users", type=int, default=64, metavar="N")
    parser.add_argument("--entries", type=int, default=1_000, metavar="N", help="in each mailbox")
    parser.add_argument("--body", type=int, default=128, metavar="BYTES")
    parser.add_argument("--batch", type=int, default=250, metavar="N", help="entries in a MAILBOX_BATCH")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    options = parser.parse_args(argv)
    asked = Asked(options.users, options.entries, options.body, options.batch)
    if min(asked) < 1 or asked.entries > 4_000 or asked.batch > limits.PULL_ENTRIES_MAX:
        parser.error("numbers from 1; --entries: at most 4,000; --batch: at most 1,000")
    if asked.batch * (asked.body + 300) > limits.PULL_BYTES_MAX:
        parser.error(f"--batch times --body: a batch takes at most {limits.PULL_BYTES_MAX} bytes; lower one")
    reporting.begin("pull rate", None)
    try:
        with tempfile.TemporaryDirectory(prefix="pull-rate-") as folder:
            server = EmbeddedRedis(Path(folder) / "redis", progress=lambda _: None)
            server.start()
            try:
                rates = uvloop.run(on_redis(server.url, asked))
            finally:
                server.stop()
    except MeasurementError as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    head = ["per entry", "gateway µs", "redis µs", "entries/s per core", "entries/s as run"]
    print(reporting.table(head, [list(rate) for rate in rates]))
    reporting.save(options.json, "pull_rate", None, {"rates": [rate._asdict() for rate in rates]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
