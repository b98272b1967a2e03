"""Acked tables on a real RocksDB and a stand-in log: order of effects, iteration, isolation."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from faust.types import TP

from qim_streams.errors import InvariantViolation, LogAppendError, Outcome, RecordTooLargeError
from qim_streams.streaming.app import StreamApp, build_app
from qim_streams.streaming.producer import OutgoingRecord
from qim_streams.streaming.table import AckedTable
from tests.unit.streaming.fakes import Died, settle, spec


class Log:
    """Takes appends; acknowledges when told."""

    def __init__(self) -> None:
        self.records: list[OutgoingRecord] = []
        self.calls: list[asyncio.Future[list[int]]] = []
        self.refuse: Exception | None = None

    def check(self, records: Sequence[OutgoingRecord]) -> None:
        if self.refuse is not None:
            raise self.refuse

    def append_nowait(self, records: Sequence[OutgoingRecord]) -> "asyncio.Future[list[int]]":
        self.records.extend(records)
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self.calls.append(future)
        return future

    def acknowledge(self) -> None:
        for number, call in enumerate(self.calls):
            if not call.done():
                call.set_result([10 * number])


class World:
    """An application with one table, its partitions 0 and 1 open."""

    def __init__(self, directory: Path) -> None:
        self.log = Log()
        self.app: StreamApp = build_app(spec(datadir=directory))
        self.app.log_producer = self.log  # type: ignore[assignment]
        self.app.finalize()
        self.app._create_directories()
        self.table: AckedTable = self.app.acked_table("t", 4)
        for partition in (0, 1):
            self.table.store._db_for_partition(partition)

    def persisted(self, partition: int = 0) -> int | None:
        offset: int | None = self.table.persisted_offset(TP(self.table.changelog_topic_name, partition))
        return offset


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_changelog_name_is_the_declared_one(tmp_path: Path) -> None:
    app = build_app(spec(role="mailbox-node", datadir=tmp_path))
    assert app.acked_table("lane_watermarks", 4).changelog_topic_name == (
        "qim-mailbox-node-lane_watermarks-changelog"
    )


async def test_writes_are_local_first_and_persisted_after_the_ack(world: World) -> None:
    world.table.write_batch(0, {b"a": b"1", b"b": b"2"})
    assert world.table.read(0, b"a") == b"1"
    assert world.table.read(1, b"a") is None
    assert [record[1:] for record in world.log.records] == [(0, b"a", b"1"), (0, b"b", b"2")]
    assert world.persisted() is None
    barrier = asyncio.ensure_future(world.table.barrier(0))
    await asyncio.sleep(0)
    assert not barrier.done()
    world.log.acknowledge()
    await barrier
    assert world.persisted() == 0


async def test_a_barrier_covers_its_own_partition_only(world: World) -> None:
    world.table.write_batch(0, {b"a": b"1"})
    await asyncio.wait_for(world.table.barrier(1), 1)
    world.log.acknowledge()
    await world.table.barrier(0)
    await world.table.barrier(0)


async def test_a_refused_changelog_raises_at_the_barrier(world: World) -> None:
    world.table.write_batch(0, {b"a": b"1"})
    world.log.calls[0].set_exception(LogAppendError("refused"))
    with pytest.raises(LogAppendError):
        await world.table.barrier(0)
    assert world.persisted() is None


@pytest.mark.parametrize("error", [RecordTooLargeError("big"), LogAppendError("full", Outcome.NOT_APPLIED)])
async def test_a_refusal_comes_before_anything_is_written(world: World, error: Exception) -> None:
    """A record too large must not become a local value that no changelog knows (poison crash loop)."""
    world.log.refuse = error
    with pytest.raises(type(error)):
        world.table.write_batch(0, {b"a": b"1"})
    assert world.table.read(0, b"a") is None


async def test_none_deletes_and_leaves_a_tombstone(world: World) -> None:
    world.table.write_batch(0, {b"a": b"1"})
    world.table.write_batch(0, {b"a": None})
    assert world.table.read(0, b"a") is None
    assert world.log.records[-1].value is None


async def test_iteration_sees_user_keys_only_in_order(world: World) -> None:
    world.table.write_batch(0, {b"b": b"2", b"a": b"1", b"c": b"3"}, local={b"a": b"local"})
    world.log.acknowledge()
    await world.table.barrier(0)  # writes Faust's own key as well
    items = [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    assert list(world.table.iterate(0)) == items
    assert list(world.table.iterate(0, reverse=True)) == items[::-1]
    assert list(world.table.iterate(0, b"b")) == items[1:]
    assert list(world.table.iterate(0, b"bb", reverse=True)) == items[1::-1]
    assert list(world.table.iterate(1)) == []


async def test_local_keys_have_no_changelog(world: World) -> None:
    local = world.table.local(0)
    local.write_batch({b"x": b"1", b"y": b"2", b"\xff\xff": b"3"})
    assert world.log.records == []
    assert local.read(b"x") == b"1"
    assert local.read_many([b"y", b"nope", b"x"]) == [b"2", None, b"1"]
    assert [key for key, _ in local.iterate()] == [b"x", b"y", b"\xff\xff"]
    assert [key for key, _ in local.iterate(reverse=True)] == [b"\xff\xff", b"y", b"x"]
    assert [key for key, _ in local.iterate(b"y")] == [b"y", b"\xff\xff"]
    local.write_batch({b"x": None})
    assert local.read(b"x") is None
    world.table.write_batch(0, {b"user": b"kept"})
    local.clear()
    assert list(local.iterate()) == []
    assert world.table.read(0, b"user") == b"kept"


@pytest.mark.parametrize("key", [b"\x00local\x00x", b"__faust\x00offset__"])
async def test_reserved_keys_are_refused(world: World, key: bytes) -> None:
    with pytest.raises(ValueError, match="reserved"):
        world.table.write_batch(0, {key: b"1"})


async def test_a_partition_that_is_not_owned_is_not_opened(world: World) -> None:
    with pytest.raises(InvariantViolation):
        world.table.read(3, b"a")
    with pytest.raises(InvariantViolation):
        world.table.write_batch(3, {b"a": b"1"})
    assert world.log.records == []


async def test_a_late_ack_does_not_open_a_revoked_database(world: World) -> None:
    world.table.write_batch(0, {b"a": b"1"})
    world.table.store.revoke_partitions(world.table, {TP(world.table.changelog_topic_name, 0)})
    world.log.acknowledge()
    await settle(lambda: world.log.calls[0].done())
    await asyncio.sleep(0)
    assert not world.table.store.is_open(0)
    assert world.table.store.is_open(1)


async def test_dictionary_access_is_refused(world: World) -> None:
    with pytest.raises(TypeError, match="write_batch"):
        world.table[b"a"] = b"1"
    with pytest.raises(TypeError, match="read"):
        world.table[b"a"]


async def test_recovered_records_are_applied_or_the_process_ends(world: World, exits: list[int]) -> None:
    topic = world.table.changelog_topic_name

    class Recovered:
        def __init__(self, partition: int, offset: int, key: bytes, value: bytes | None) -> None:
            self.message = self
            self.tp, self.partition, self.offset = TP(topic, partition), partition, offset
            self.key, self.value = key, value

    batch: list[Any] = [Recovered(0, 5, b"a", b"1"), Recovered(1, 9, b"b", b"2"), Recovered(0, 6, b"a", b"3")]
    world.table.apply_changelog_batch(batch)
    assert (world.table.read(0, b"a"), world.table.read(1, b"b")) == (b"3", b"2")
    assert (world.persisted(0), world.persisted(1)) == (6, 9)
    with pytest.raises(Died):
        world.table.apply_changelog_batch([object()])
    assert exits == [70]


async def test_a_corrupt_database_is_set_aside_and_built_anew(tmp_path: Path) -> None:
    first = World(tmp_path)
    first.table.write_batch(0, {b"a": b"1"})
    await first.table.store.stop()
    path = first.table.store.partition_path(0)
    (path / "CURRENT").write_text("not a manifest\n")
    second = World(tmp_path)
    assert second.table.read(0, b"a") is None
    assert len(list(path.parent.glob(f"{path.name}.corrupt-*"))) == 1
    second.table.write_batch(0, {b"a": b"2"})
    assert second.table.read(0, b"a") == b"2"
