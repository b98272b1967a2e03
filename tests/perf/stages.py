"""The two pairs of stages that a backlog is given to: ours and the baseline's, behind one face."""

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

from confluent_kafka.admin import AdminClient, NewTopic

from qim_streams.mailbox import watermark as rule
from qim_streams.mailbox.redis_store import RedisMailboxStore
from qim_streams.redis_tier import RedisClient
from tests.perf.baseline import app as base
from tests.perf.checking import count_entries, count_pushed
from tests.perf.draining import SAMPLE_S, Drain, LogEnds, Progress, watch
from tests.perf.filling import Tally
from tests.perf.processes import MeasurementError, Servers

FANOUT, MAILBOX = "fanout", "mailbox"
DISPATCH_TOPIC, PUSH_TOPIC = "qim.dispatch.v1", "qim.push.v1"
ENTRIES = "{s:*}:mb:*"
SETTLE_S, CREATE_S = 20.0, 30.0


class Pair(Protocol):
    """Fan-out and mailbox stage."""

    name: str

    def start(self, stage: str) -> None:
        """Start the workers of a stage."""

    def processes(self, stage: str) -> list[str]:
        """The processes of a stage."""

    def progress(self, stage: str) -> Progress:
        """How far a stage is: dispatches written (fan-out) or done (mailbox)."""

    def totals(self, tally: Tally) -> dict[str, int]:
        """What `progress` says at the end."""

    async def check(self, tally: Tally) -> None:
        """MeasurementError unless exactly what had to come out came out."""


class Ours:
    """The product's stages."""

    name = "ours"

    def __init__(self, servers: Servers, client: RedisClient, workers: int = 1) -> None:
        self._servers, self._client, self._workers = servers, client, workers
        settings = servers.settings
        self._shards = settings.mailbox_shards
        self._push_partitions = settings.connection_shards
        self._store = RedisMailboxStore(client, mailbox_entries_max=settings.mailbox_entries_max)
        self._ends = LogEnds(settings.brokers)

    def start(self, stage: str) -> None:
        """See `Pair`."""
        self._servers.start_role(stage, self._workers)

    def processes(self, stage: str) -> list[str]:
        """See `Pair`."""
        return [worker.name for worker in self._servers.workers if worker.role == stage]

    def progress(self, stage: str) -> Progress:
        """See `Pair`."""
        return self._dispatched if stage == FANOUT else self._mailboxed

    def totals(self, tally: Tally) -> dict[str, int]:
        """See `Pair`."""
        return {FANOUT: tally.dispatches, MAILBOX: tally.dispatches}

    async def check(self, tally: Tally) -> None:
        """See `Pair`."""
        _expect("entries", tally.entries, await count_entries(self._client, ENTRIES, then_drop=True))
        # A batch is pushed after W has covered it.
        _expect("devices pushed to", tally.pushes, await settled(self._pushed, tally.pushes))

    async def _pushed(self) -> int:
        brokers = self._servers.settings.brokers
        return await asyncio.to_thread(count_pushed, brokers, PUSH_TOPIC, self._push_partitions)

    async def _dispatched(self) -> int:
        return await self._ends.count(DISPATCH_TOPIC, self._shards)

    async def _mailboxed(self) -> int:
        states = await self._store.watermarks(range(self._shards))
        return sum(rule.coverage(state.lanes) + 1 for state in states)


class Baseline:
    """The stock stages of ``baseline/``. Members must be inside the records."""

    name = "baseline"

    def __init__(self, servers: Servers, client: RedisClient) -> None:
        self._servers, self._client = servers, client
        self._ends = LogEnds(servers.settings.brokers)
        settings = servers.settings
        self._counts = {
            base.OUTBOX: settings.outbox_partitions,
            base.DISPATCH: settings.mailbox_shards,
            base.PUSH: settings.connection_shards,
        }
        self._make_topics()

    def start(self, stage: str) -> None:
        """See `Pair`."""
        settings, name = self._servers.settings, f"baseline-{stage}"
        data = self._servers.state_dir / "roles" / name
        data.mkdir(parents=True, exist_ok=True)
        env = {
            base.BROKERS: settings.brokers,
            base.REDIS_URL: settings.redis_url.get_secret_value(),
            base.DATA_DIR: str(data),
            base.OUTBOX_PARTITIONS: str(self._counts[base.OUTBOX]),
            base.SHARDS: str(self._counts[base.DISPATCH]),
            base.PUSH_PARTITIONS: str(self._counts[base.PUSH]),
        }
        self._servers.start_module(name, f"tests.perf.baseline.{stage}", env)

    def processes(self, stage: str) -> list[str]:
        """See `Pair`."""
        return [f"baseline-{stage}"]

    def progress(self, stage: str) -> Progress:
        """See `Pair`."""
        topic = base.DISPATCH if stage == FANOUT else base.PUSH
        return lambda: self._ends.count(topic, self._counts[topic])

    def totals(self, tally: Tally) -> dict[str, int]:
        """See `Pair`. A direct message has one dispatch with somebody to tell, so one push record."""
        return {FANOUT: tally.dispatches, MAILBOX: tally.pushes}

    async def check(self, tally: Tally) -> None:
        """See `Pair`. Entries of the sender alone may still be under way when the last push was told."""
        found = await settled(lambda: count_entries(self._client, f"{base.ENTRY_KEYS}*"), tally.entries)
        _expect("entries of the baseline", tally.entries, found)
        await count_entries(self._client, f"{base.ENTRY_KEYS}*", then_drop=True)

    def _make_topics(self) -> None:
        """Changelogs too: a stock worker that starts before its new changelog is known loses its first event
        to an exception."""
        counts = self._counts | {
            base.PINNED_CHANGELOG: self._counts[base.OUTBOX],
            base.WATERMARKS_CHANGELOG: self._counts[base.DISPATCH],
        }
        admin = AdminClient({"bootstrap.servers": self._servers.settings.brokers, "log_level": 0})
        wanted = [
            NewTopic(name, num_partitions=count, replication_factor=1) for name, count in counts.items()
        ]
        for future in admin.create_topics(wanted).values():
            future.result(CREATE_S)


async def drain(servers: Servers, pair: Pair, tally: Tally, stages: Sequence[str]) -> Drain:
    """Start `stages` of a pair at once and watch them until nothing is left."""
    started_s = time.monotonic()
    for stage in stages:
        pair.start(stage)
    totals = pair.totals(tally)
    return await watch(
        servers,
        {stage: pair.progress(stage) for stage in stages},
        {stage: totals[stage] for stage in stages},
        started_s,
    )


async def settled(count: Progress, wanted: int) -> int:
    """What `count` says once it says `wanted`, or at the end of a grace."""
    deadline_s = time.monotonic() + SETTLE_S
    while True:
        found = await count()
        if found == wanted or time.monotonic() > deadline_s:
            return found
        await asyncio.sleep(SAMPLE_S)


def _expect(what: str, wanted: int, found: int) -> None:
    if found != wanted:
        raise MeasurementError(f"{what}: {found:,}, but there must be {wanted:,}")
