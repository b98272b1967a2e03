"""What qsession costs: CPU per recipient, how far lists lag at a steady rate, and a wide conversation.

    python -m tests.perf.session_projection [--rate N] [--seconds S] [--users N] [--wide N]

On a broker and a Redis of its own: dispatches of direct chats (two per message, as with users of different
shards) are appended at `rate` messages per second, committed when they are appended, and a real qsession
worker projects them. CPU is each process's own clock; lag is sampled: from the append of a message to a
chat of the sampler until its row shows it. Then one message to a group of `wide` members (an eighth of them
in each shard) is sent, with more direct messages behind it: how long those wait, and what a second message
to the group costs. Exit codes: 0 measured and right, 1 rows are wrong, 2 wrong usage.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import uvloop
from confluent_kafka import Producer
from pyroaring import BitMap

from qim_streams import hlc, ids
from qim_streams.commit import keys
from qim_streams.membership.bitmaps import encode
from qim_streams.placement import outbox_partition
from qim_streams.records import GroupDispatch, pack_ordinals
from qim_streams.redis_tier import RedisClient, connect
from qim_streams.sessions.projection_records import activity_of
from qim_streams.sessions.redis_projection import user_key
from qim_streams.settings import Settings
from tests.perf.processes import MeasurementError, Servers, cpu_s

TENANT, TOPIC, SHARDS = "acme", "qim.dispatch.v1", 8
TICK_S, SAMPLE_S, SAMPLER = 0.02, 0.1, 2**20
READY_S, DONE_S = 60.0, 120.0


class Load(NamedTuple):
    """What the command line says."""

    rate: int
    seconds: float
    users: int
    wide: int


class Feed:
    """Appends dispatches and remembers what rows they make. A user's shard is his ordinal modulo SHARDS."""

    def __init__(self, brokers: str) -> None:
        self._producer = Producer({"bootstrap.servers": brokers, "linger.ms": 2, "acks": "all"})
        self._clock = hlc.HybridClock(7, bound_ms=hlc.MILLIS_MAX)
        self._seqs: dict[str, int] = {}
        self.rows: dict[tuple[int, str], int] = {}
        self.recipients = 0
        self.dispatched = [0] * SHARDS

    def direct(self, first: int, second: int) -> int:
        """A message of a direct chat; its activity."""
        name = f"d{min(first, second)}-{max(first, second)}"
        message_id, seq = self._next(name)
        for ordinal in (first, second):
            self._append(name, message_id, seq, ordinal % SHARDS, pack_ordinals([ordinal]))
            self.rows[ordinal, name] = activity_of(message_id)
        self.recipients += 2
        return activity_of(message_id)

    def group(self, name: str) -> int:
        """A message to a group whose bitmaps the membership store has; its activity."""
        message_id, seq = self._next(name)
        for shard in range(SHARDS):
            self._append(name, message_id, seq, shard, None)
        return activity_of(message_id)

    def flush(self) -> None:
        """Until everything is in the log."""
        if self._producer.flush(30):
            raise MeasurementError("the broker does not take the load")

    def _next(self, name: str) -> tuple[bytes, int]:
        self._seqs[name] = seq = self._seqs.get(name, 0) + 1
        return self._clock.next(time.time_ns() // 1_000_000), seq

    def _append(self, name: str, message_id: bytes, seq: int, shard: int, members: bytes | None) -> None:
        one = GroupDispatch(
            TENANT, ids.dispatch_id(message_id, shard), message_id, name, seq, message_id, "user-123456", 1,
            1, shard, 0, 0, "phone", "0123456789abcdef", b"digest!!", 0, seq, time.time_ns() // 1_000_000, 1,
            members,
        )  # fmt: skip
        self._producer.produce(TOPIC, one.encode(), f"{TENANT}\0{name}".encode(), shard)
        self._producer.poll(0)
        self.dispatched[shard] += 1


async def shown(redis: RedisClient, ordinal: int, name: str, activity: int) -> float:
    """Seconds until a row shows an activity."""
    began, key = time.monotonic(), user_key(TENANT, ordinal, "convs")
    while time.monotonic() < began + DONE_S:
        score = await redis.zscore(key, name)
        if score is not None and score >= activity:
            return time.monotonic() - began
        await asyncio.sleep(0.004)
    raise MeasurementError(f"{name} of {ordinal} is not shown after {DONE_S} s")


async def sample(redis: RedisClient, feed: Feed, until: float, lags: list[float]) -> None:
    """Lag of the sampler's chat, again and again."""
    while time.monotonic() < until:
        activity = feed.direct(SAMPLER, SAMPLER + 1)
        lags.append(await shown(redis, SAMPLER, f"d{SAMPLER}-{SAMPLER + 1}", activity))
        await asyncio.sleep(SAMPLE_S)


async def offer(feed: Feed, load: Load, until: float) -> None:
    """Messages of random chats, some hundred chats per user, at the rate."""
    chance, sent, began = random.Random(1), 0, time.monotonic()
    while (now := time.monotonic()) < until:
        due = int((now - began) * load.rate)
        for _ in range(due - sent):
            first = chance.randrange(load.users)
            feed.direct(first, (first + chance.randrange(1, 20)) % load.users)
        sent = due
        await asyncio.sleep(TICK_S)


async def caught_up(redis: RedisClient, feed: Feed, servers: Servers) -> None:
    """Until every checkpoint is at the end of what was fed."""
    until = time.monotonic() + DONE_S
    while time.monotonic() < until:
        servers.check_workers()
        at = [int(await redis.hget(f"{{qp:{shard}}}:at", "offset") or -1) for shard in range(SHARDS)]
        if at == [count - 1 for count in feed.dispatched]:
            return
        await asyncio.sleep(0.1)
    raise MeasurementError(f"not caught up after {DONE_S} s")


async def check(redis: RedisClient, feed: Feed) -> None:
    """MeasurementError when a row is not what was fed."""
    for start in range(0, len(feed.rows), 1_000):
        part = list(feed.rows.items())[start : start + 1_000]
        pipe = redis.pipeline(transaction=False)
        for (ordinal, name), _ in part:
            pipe.zscore(user_key(TENANT, ordinal, "convs"), name)
        for (key, wanted), score in zip(part, await pipe.execute(), strict=True):
            if score != wanted:
                raise MeasurementError(f"row {key} is {score}, not {wanted}")


async def steady(servers: Servers, redis: RedisClient, feed: Feed, load: Load) -> None:
    """The steady rate."""
    pids = {name: pid for name, pid in servers.pids.items() if name in ("qsession", "redis")}
    warm = load._replace(seconds=3.0)
    await offer(feed, warm, time.monotonic() + warm.seconds)
    feed.flush()
    await caught_up(redis, feed, servers)
    before, recipients = {name: cpu_s(pid) for name, pid in pids.items()}, feed.recipients
    until, lags = time.monotonic() + load.seconds, list[float]()
    await asyncio.gather(offer(feed, load, until), sample(redis, feed, until, lags))
    feed.flush()
    await caught_up(redis, feed, servers)
    count = feed.recipients - recipients
    lags.sort()
    print(f"{count / 2 / load.seconds:.0f} messages/s, {count} recipients")
    for name, pid in pids.items():
        print(f"  {name}: {(cpu_s(pid) - before[name]) / count * 1e6:.1f} us of CPU per recipient")
    print(f"  lag P50 {lags[len(lags) // 2] * 1e3:.0f} ms, P99 {lags[len(lags) * 99 // 100] * 1e3:.0f} ms, "
          f"worst {lags[-1] * 1e3:.0f} ms of {len(lags)} samples")  # fmt: skip


async def wide(servers: Servers, redis: RedisClient, feed: Feed, load: Load) -> None:
    """One message to a wide conversation, others behind it, and one more."""
    name, settings = "big", servers.settings
    tag = keys.base(outbox_partition(TENANT, name, settings.outbox_partitions))
    for shard in range(SHARDS):
        members = BitMap(range(shard, load.wide, SHARDS))
        await redis.hset(f"{tag}gb:{keys.conversation(TENANT, name)}", f"{shard}:1", encode(members))
    pid, server = servers.pids["qsession"], servers.pids["redis"]
    cpu, redis_cpu, began = cpu_s(pid), cpu_s(server), time.monotonic()
    feed.group(name)
    lags: list[float] = []
    await sample(redis, feed, time.monotonic() + 2.0, lags)
    await caught_up(redis, feed, servers)
    print(f"group of {load.wide}, first message: all rows after {time.monotonic() - began:.1f} s, "
          f"{cpu_s(pid) - cpu:.2f} s of CPU, Redis {cpu_s(server) - redis_cpu:.2f} s; "
          f"messages behind it waited {max(lags) * 1e3:.0f} ms at most")  # fmt: skip
    rows = [await redis.zscore(user_key(TENANT, one, "convs"), name) for one in range(0, load.wide, 997)]
    if None in rows:
        raise MeasurementError("a member has no row of the wide conversation")
    cpu, redis_cpu, count = cpu_s(pid), cpu_s(server), 100
    for _ in range(count):
        feed.group(name)
        await asyncio.sleep(0.02)
    feed.flush()
    await caught_up(redis, feed, servers)
    print(f"  each further message: {(cpu_s(pid) - cpu) / count * 1e3:.2f} ms of CPU, "
          f"Redis {(cpu_s(server) - redis_cpu) / count * 1e3:.2f} ms")  # fmt: skip


async def measure(servers: Servers, load: Load) -> None:
    """Everything on one set of servers."""
    servers.start_role("qsession")
    ready = servers.state_dir / "roles" / "qsession" / "ready"
    until = time.monotonic() + READY_S
    while not ready.exists():
        servers.check_workers()
        if time.monotonic() > until:
            raise MeasurementError("qsession is not ready")
        await asyncio.sleep(0.05)
    redis = connect(Settings(redis_url=servers.settings.redis_url))
    feed = Feed(servers.settings.brokers)
    await steady(servers, redis, feed, load)
    await check(redis, feed)
    await wide(servers, redis, feed, load)
    await check(redis, feed)
    await redis.aclose()


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rate", type=int, default=3_000, help="messages per second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--users", type=int, default=5_000)
    parser.add_argument("--wide", type=int, default=100_000, help="members of the wide conversation")
    load = Load(**vars(parser.parse_args()))
    with tempfile.TemporaryDirectory(prefix="qim-") as directory:
        try:
            with Servers(Path(directory), mailbox_shards=SHARDS) as servers:
                uvloop.run(measure(servers, load))
        except MeasurementError as error:
            print(f"session_projection: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
