"""PushStage: the promise of PresenceReady, retries, bodies, leases. A4, A5, P8."""

import asyncio
from collections.abc import Sequence
from typing import NoReturn

import pytest

from qim_streams.errors import StoreUnavailable
from qim_streams.log_ports import LogRecord, Outgoing
from qim_streams.mailbox.members import Addressed
from qim_streams.mailbox.shards import Shard
from qim_streams.push import service as service_module
from qim_streams.push.bodies import CommonBodies
from qim_streams.push.ports import OnRecords
from qim_streams.push.service import PushStage
from qim_streams.records import MessageRecord, PresenceReady, decode_push
from qim_streams.spans.rules import Place, Stage, parent_of
from qim_streams.spans.service import MessageSpans
from qim_streams.testing.memory_spans import MemorySpans, every_message
from qim_streams.testing.memory_tier import MemoryHotTier, MemoryLeaseStore
from tests.support.waiting import eventually
from tests.unit.mailbox.dispatches import Record, dispatch
from tests.unit.push.world import connection, presence


class Follower:
    """A `Follower` over a dictionary of what the presence log holds."""

    def __init__(self) -> None:
        self.log: dict[int, list[LogRecord]] = {}
        self.followed: set[int] = set()
        self.broken: BaseException | None = None

    def start(self, on_records: OnRecords) -> None:
        self.deliver = on_records

    async def follow(self, partition: int) -> None:
        self.followed.add(partition)
        if self.log.get(partition):
            await self.deliver(partition, self.log[partition])

    def unfollow(self, partitions: frozenset[int]) -> None:
        self.followed -= partitions

    def failure(self) -> BaseException | None:
        return self.broken

    async def close(self) -> None:
        self.followed.clear()


class Bodies:
    """A `MessageReader` that counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.missing: set[int] = set()
        self.hook: object = None

    async def records(self, wanted: Sequence[tuple[str, str, int]]) -> list[bytes | None]:
        self.asked.append(len(wanted))
        if callable(self.hook):
            await self.hook()
        return [None if seq in self.missing else _message(seq).encode() for _, _, seq in wanted]


def _message(number: int) -> MessageRecord:
    message_id = number.to_bytes(16, "big")
    return MessageRecord(
        number, 1, "acme", "c1", message_id, message_id, "ann", 1, "phone", f"m{number}", 1, 9, 0, 0, b"hello"
    )


class Bench:
    def __init__(self, spans: MessageSpans | None = None) -> None:
        self.tier = MemoryHotTier(lambda *_: 0)
        self.leases, self.follower, self.reader = MemoryLeaseStore(self.tier), Follower(), Bodies()
        self.records: list[Outgoing] = []
        self.fail = 0
        self.deaths: list[str] = []

        def die(why: str) -> NoReturn:
            self.deaths.append(why)
            raise asyncio.CancelledError

        self.stage = PushStage(
            "qim.push.v1",
            connection_shards=4,
            log_appender=self,
            bodies=CommonBodies(self.reader, 16),
            leases=self.leases,
            follower=self.follower,
            die=die,
            spans=spans,
        )
        self.shard = Shard(0, 9, coverage=10, floor=10, pushed_through=10, buried_through=-1)

    async def append(self, records: Sequence[Outgoing]) -> list[int]:
        if self.fail:
            self.fail -= 1
            raise StoreUnavailable("armed")
        self.records += records
        return [0] * len(records)

    async def hold(self, shard: int = 0, boot: int = 1) -> None:
        await self.leases.acquire(f"cs:{shard}", "gw", boot, "gw", 10**9)

    async def arrive(self, *presences: tuple[bytes, bytes | None]) -> None:
        await self.follower.deliver(0, [Record(0, *one) for one in presences])

    def ready(self) -> list[PresenceReady]:
        return [one for record in self.records for one in decode_push(record.value or b"").ready]

    def pushed(self) -> list[tuple[int, int]]:
        return [
            (item.mailbox_seq, one.connection_id)
            for record in self.records
            for item in decode_push(record.value or b"").items
            for one in item.recipients
        ]


@pytest.fixture
async def bench() -> Bench:
    bench = Bench()
    await bench.hold()
    return bench


def to(offset: int) -> Addressed:
    return Addressed(offset, dispatch(offset), [1, 65])


async def test_devices_in_the_log_are_told_where_pushing_resumes(bench: Bench) -> None:
    """A worker that just started promises again, from the position of its tables."""
    bench.follower.log[0] = [
        Record(0, *presence("ben", "phone", 1)),
        Record(1, *presence("eve", "tv", 2, epoch=0)),
    ]
    await bench.stage.attach(bench.shard)
    assert bench.ready() == [PresenceReady(connection(1), 1, 10)], "a dead gateway's device is told nothing"
    await bench.stage.close()


async def test_a_device_that_comes_is_told_and_then_pushed_to(bench: Bench) -> None:
    await bench.stage.attach(bench.shard)
    await bench.stage.push([(bench.shard, [to(11)])])
    await bench.arrive(presence("ben", "phone", 1))
    assert bench.ready() == [PresenceReady(connection(1), 1, 11)]
    await bench.stage.push([(bench.shard, [to(12)])])
    assert bench.pushed() == [(12, connection(1))]
    await bench.arrive(presence("ben", "phone", 1))
    assert [one.from_seq for one in bench.ready()] == [11, 12], "whoever asks again is answered again"
    await bench.stage.close()


async def test_every_entry_above_from_seq_is_pushed_whenever_the_device_comes(bench: Bench) -> None:
    """A4: presence may arrive while bodies are read; the look-up and from_seq are one step."""
    await bench.stage.attach(bench.shard)
    await bench.arrive(presence("ann", "web", 7))

    async def come() -> None:
        await bench.arrive(presence("ben", "phone", 1))

    bench.reader.hook = come
    await bench.stage.push([(bench.shard, [to(11), to(12)])])
    bench.reader.hook = None
    await bench.stage.push([(bench.shard, [to(13)])])
    (told,) = [one for one in bench.ready() if one.connection_id == connection(1)]
    mine = [seq for seq, who in bench.pushed() if who == connection(1)]
    assert mine == [seq for seq in (11, 12, 13) if seq > told.from_seq]
    await bench.stage.close()


async def test_a_failed_push_is_done_again(bench: Bench) -> None:
    """The promise holds over a retry; repeats are the client's to drop (C2)."""
    await bench.stage.attach(bench.shard)
    await bench.arrive(presence("ben", "phone", 1))
    bench.fail = 1
    with pytest.raises(StoreUnavailable):
        await bench.stage.push([(bench.shard, [to(11), to(12)])])
    assert bench.shard.pushed_through == 10
    await bench.stage.push([(bench.shard, [to(11), to(12)])])
    assert bench.pushed() == [(11, connection(1)), (12, connection(1))]
    await bench.stage.push([(bench.shard, [to(11), to(12)])])
    assert len(bench.pushed()) == 2, "what was pushed is not pushed again"
    await bench.stage.close()


async def test_bodies_are_read_once_in_bulk(bench: Bench) -> None:
    await bench.stage.attach(bench.shard)
    await bench.arrive(presence("ben", "phone", 1), presence("ann", "web", 2))
    await bench.stage.push([(bench.shard, [to(11), to(12), to(13)])])
    assert bench.reader.asked == [3]
    other = Shard(0, 9, 13, 13, 10, -1)
    await bench.stage.push([(other, [to(11), to(14)])])
    assert bench.reader.asked == [3, 1]
    await bench.stage.close()


async def test_nobody_online_reads_nothing(bench: Bench) -> None:
    await bench.stage.attach(bench.shard)
    await bench.stage.push([(bench.shard, [to(11), to(12)])])
    assert (bench.reader.asked, bench.records, bench.shard.pushed_through) == ([], [], 12)
    await bench.stage.close()


async def test_a_body_that_the_hot_tier_lost_is_passed_over(bench: Bench) -> None:
    """P8: losing a push costs latency only."""
    await bench.stage.attach(bench.shard)
    await bench.arrive(presence("ben", "phone", 1))
    bench.reader.missing = {11}
    await bench.stage.push([(bench.shard, [to(11), to(12)])])
    assert bench.pushed() == [(12, connection(1))]
    assert bench.shard.pushed_through == 12
    await bench.stage.close()


async def test_nothing_is_promised_while_the_store_is_behind(bench: Bench) -> None:
    """§11 rule 2: a reader would not find what is below from_seq; the promise waits for W."""
    bench.shard.coverage = 5
    bench.follower.log[0] = [Record(0, *presence("ben", "phone", 1))]
    await bench.stage.attach(bench.shard)
    await bench.arrive(presence("ann", "web", 2))
    assert bench.ready() == []
    bench.shard.coverage = 10
    await bench.stage.push([(bench.shard, [to(9), to(10)])])
    assert {one.connection_id for one in bench.ready()} == {connection(1), connection(2)}
    assert bench.pushed() == [], "what was pushed before the store fell back is not pushed again"
    await bench.stage.close()


async def test_a_dead_gateways_devices_are_not_pushed_to(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "LIVENESS_S", 0.005)
    await bench.stage.attach(bench.shard)
    await bench.arrive(presence("ben", "phone", 1))
    await bench.hold(boot=2)  # the gateway was restarted: its lease has a new epoch
    await eventually(lambda: not bench.stage._online[0].live(), 5)
    await bench.stage.push([(bench.shard, [to(11)])])
    assert bench.pushed() == []
    await bench.stage.close()


async def test_a_follower_that_ended_ends_the_process(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "LIVENESS_S", 0.005)
    await bench.stage.attach(bench.shard)
    bench.follower.broken = RuntimeError("bug")
    assert await eventually(lambda: bench.deaths, 5) == [
        "the presence log is not read any more: RuntimeError: bug"
    ]
    await bench.stage.close()


async def test_a_detached_shard_is_forgotten(bench: Bench) -> None:
    await bench.stage.attach(bench.shard)
    await bench.arrive(presence("ben", "phone", 1))
    await bench.stage.detach(frozenset({0}))
    assert bench.follower.followed == set()
    await bench.arrive(presence("ann", "web", 2))
    await bench.stage.push([(bench.shard, [to(11)])])
    assert bench.pushed() == []
    await bench.stage.close()


async def test_a_connection_shard_of_another_configuration_is_left_out(bench: Bench) -> None:
    await bench.hold(shard=9)
    await bench.stage.attach(bench.shard)
    await bench.arrive(presence("ben", "phone", 1, shard=9))
    await bench.stage.push([(bench.shard, [to(11)])])
    assert bench.records == []
    await bench.stage.close()


async def test_a_push_is_told_to_the_trace_once_it_is_in_the_log() -> None:
    sink = MemorySpans()
    bench = Bench(every_message(sink))
    await bench.hold()
    bench.follower.log[0] = [Record(0, *presence("ben", "phone", 1))]
    await bench.stage.attach(bench.shard)
    bench.reader.missing.add(12)
    bench.fail = 1
    with pytest.raises(StoreUnavailable):
        await bench.stage.push([(bench.shard, [to(11), to(12)])])
    assert sink.spans == [], "not in the log, not told"
    await bench.stage.push([(bench.shard, [to(11), to(12)])])
    (span,) = sink.of(Stage.PUSH)
    message_id = (11).to_bytes(16, "big")
    assert span.attributes["qim.message_id"] == message_id.hex(), (
        "the other one has no body, and was not pushed"
    )
    assert span.parent_id == parent_of(message_id, Stage.PUSH, Place(0))
    await bench.stage.close()
