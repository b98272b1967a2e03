"""RoomWriter on stores in memory: numbers, windows, takeovers, fences (Spec: §10; J4)."""

import asyncio
import contextlib

import pytest

from qim_streams.errors import AdmissionRefused, StoreUnavailable
from qim_streams.ownership.ports import Grant
from qim_streams.rooms.records import LogFence, RoomKind, RoomRecord, decode_room, owner_mark
from qim_streams.rooms.window import REMEMBERED_MAX, Window
from tests.support.room_world import TENANT, MemoryRoomStore, RoomWorld, partition_of
from tests.support.waiting import eventually


def texts(view_records: tuple[bytes, ...]) -> list[bytes]:
    """The bodies of records."""
    return [decode_room(data).body for data in view_records]


async def refusal(work: object) -> AdmissionRefused:
    """What work is refused with."""
    with pytest.raises(AdmissionRefused) as caught:
        await work  # type: ignore[misc]
    return caught.value


async def test_messages_are_numbered_and_shown() -> None:
    world = RoomWorld()
    await world.take_over()
    await world.make()
    receipts = await asyncio.gather(*(world.say("lobby", f"t{n}") for n in range(50)))
    assert [one.room_seq for one in receipts] == list(range(1, 51))
    view = await world.look(limit=10)
    assert (view.room_seq, texts(view.records)) == (50, [b"t%d" % n for n in range(40, 50)])
    rows = [decode_room(row[2]) for row in world.log.rows[partition_of(TENANT, "lobby")]]
    assert [row.room_seq for row in rows if row.kind == RoomKind.MESSAGE] == list(range(1, 51))
    world.kill()


async def test_a_repeated_send_gets_the_same_receipt_over_a_takeover_too() -> None:
    world = RoomWorld()
    await world.take_over()
    await world.make()
    first = await world.say("lobby", "once", name="m1")
    assert await world.say("lobby", "once", name="m1") == first
    world.log.acks.clear()
    both = [asyncio.create_task(world.say("lobby", "two", name="m2")) for _ in range(2)]
    await asyncio.sleep(0.05)
    world.log.acks.set()
    assert (await both[0]) == (await both[1])
    world.kill()
    await world.take_over()
    assert await world.say("lobby", "once", name="m1") == first
    assert (await world.look()).room_seq == 2
    world.kill()


async def test_numbers_go_on_after_a_kill_whatever_was_noted() -> None:
    """J4: without a checkpoint, with one that is behind, and for a room that was silent."""
    world = RoomWorld()
    writer = await world.take_over()
    await world.make("lobby")
    await world.make("quiet")
    await world.say("quiet", "long ago")
    await world.say("lobby", "a")
    for partition in writer._partitions.values():
        await partition.checkpoint()
    number = partition_of(TENANT, "quiet")
    world.log.first[number] = len(world.log.rows[number])  # the log has forgotten the silent room
    await world.say("lobby", "b")
    epoch = (await world.look()).epoch
    world.kill()
    await world.take_over()
    after = await world.say("lobby", "c")
    assert (after.room_seq, after.epoch) == (3, epoch + 1)
    assert (await world.say("quiet", "again")).room_seq == 2
    if partition_of(TENANT, "lobby") != number:
        assert texts((await world.look()).records) == [b"a", b"b", b"c"]
    world.kill()


async def test_a_former_owner_does_not_get_between() -> None:
    """What a paused owner appends behind the mark of its successor is dropped by every reader."""
    world = RoomWorld()
    old = await world.take_over()
    await world.make()
    await world.say("lobby", "a")
    await world.take_over()
    new, world.writer = world.writer, old
    assert (await world.say("lobby", "zombie", name="z")).room_seq == 2
    world.writer = new
    assert (await world.say("lobby", "b")).room_seq == 2
    fence, seen = LogFence(), []
    for _, _, value in world.log.rows[partition_of(TENANT, "lobby")]:
        record = decode_room(value)
        if fence.passes(record) and record.kind == RoomKind.MESSAGE:
            seen.append(record.body)
    assert seen == [b"a", b"b"]
    world.kill()
    await world.take_over()
    assert texts((await world.look()).records) == [b"a", b"b"]
    world.writer = old
    view = asyncio.create_task(world.do("mute", "eve"))  # the store fences it: no owner any more
    await asyncio.sleep(0.05)
    assert not view.done()
    view.cancel()
    assert "eve" not in world.store.rooms[TENANT, "lobby"].standings


async def test_a_failed_append_is_a_hole_and_no_repeat() -> None:
    world = RoomWorld()
    await world.take_over()
    await world.make()
    await world.say("lobby", "a")
    world.log.broken = True
    assert (await refusal(world.say("lobby", "lost"))).code == "OUTCOME_UNKNOWN"
    world.log.broken = False
    assert (await world.say("lobby", "b")).room_seq == 3
    world.kill()


async def test_limits_and_permission() -> None:
    world = RoomWorld(msg_per_s=20.0, body_bytes_max=10)
    await world.take_over()
    await world.make()
    assert (await refusal(world.say("lobby", "x" * 11))).code == "BODY_TOO_LARGE"
    assert (await refusal(world.say("nowhere", "x"))).code == "NO_ROOM"
    for _ in range(20):
        await world.say("lobby", "x")
    refused = await refusal(world.say("lobby", "x"))
    assert refused.code == "RATE_LIMITED"
    assert 1 <= (refused.retry_after_ms or 0) <= 51
    world.now_s += 1.0
    await world.do("mute", "eve", seconds=60)
    assert (await refusal(world.say("lobby", "x", "eve"))).code == "MUTED"
    world.now_ms += 60_001
    await world.say("lobby", "x", "eve")
    await world.do("close")
    assert (await refusal(world.say("lobby", "x"))).code == "ROOM_CLOSED"
    assert (await refusal(world.look(user="bob"))).code == "ROOM_CLOSED"
    assert (await refusal(world.make(owner="bob"))).code == "ROOM_EXISTS"
    world.kill()


async def test_events_are_few_and_repeating_is_harmless() -> None:
    world = RoomWorld()
    await world.take_over()
    made = await world.make()
    assert (await world.make()).created_at == made.created_at
    for _ in range(10):
        await world.do("mute", "eve")
    assert (await refusal(world.do("mute", "eve"))).code == "RATE_LIMITED"
    world.kill()


async def test_a_store_that_is_away_costs_new_rooms_only() -> None:
    """Sends to a room that is known go on: nothing of a send is in the store."""
    world = RoomWorld()
    await world.take_over()
    await world.make()
    await world.say("lobby", "a")
    world.store.down = True
    assert (await world.say("lobby", "b")).room_seq == 2
    assert (await refusal(world.look("other"))).code == "STORE_UNAVAILABLE"
    world.store.down = False
    world.kill()


async def test_a_takeover_waits_for_the_store() -> None:
    world = RoomWorld()
    world.store.down = True
    taking = asyncio.create_task(world.take_over())
    await asyncio.sleep(0.05)
    assert not taking.done()
    world.store.down = False
    await taking
    world.kill()
    world.deadline_s = 0.05
    with pytest.raises(StoreUnavailable):
        await world.look()


async def test_old_messages_are_not_shown() -> None:
    """J5: at most thirty minutes."""
    world = RoomWorld()
    await world.take_over()
    await world.make()
    await world.say("lobby", "old")
    world.now_ms += 30 * 60_000
    await world.say("lobby", "new")
    assert texts((await world.look()).records) == [b"old", b"new"]
    world.now_ms += 1
    assert texts((await world.look()).records) == [b"new"]
    world.kill()


async def test_tenants_do_not_meet() -> None:
    world = RoomWorld()
    await world.take_over()
    await world.make()
    await world.say("lobby", "ours")
    from qim_streams.rooms.commands import RoomJoin, RoomSend

    assert (await refusal(world.join(RoomJoin("other", "lobby", "ann", 10)))).code == "NO_ROOM"
    assert (await refusal(world.send(RoomSend("other", "lobby", "ann", "m", b"x")))).code == "NO_ROOM"
    world.kill()


async def test_numbers_that_the_store_lost_with_its_last_second_are_noted_again() -> None:
    """T-R2: a room that said nothing more since then; the log forgets it before the next owner comes."""
    world = RoomWorld()
    writer = await world.take_over()
    await world.make("lobby")
    await world.make("quiet")
    number = partition_of(TENANT, "quiet")
    partition = writer._partitions[number]
    await world.say("quiet", "a")
    await partition.checkpoint()
    before = dict(world.store.rooms), dict(world.store.positions)
    await world.say("quiet", "b")
    await partition.checkpoint()
    world.store.rooms, world.store.positions = dict(before[0]), dict(before[1])
    other = next(f"r{n}" for n in range(100) if partition_of(TENANT, f"r{n}") == number)
    await world.make(other)
    await world.say(other, "c")
    await partition.checkpoint()
    assert world.store.rooms[TENANT, "quiet"].room_seq == 2
    assert world.store.rooms[TENANT, other].room_seq == 1
    world.log.first[number] = len(world.log.rows[number])
    world.kill()
    await world.take_over()
    assert (await world.say("quiet", "d")).room_seq == 3
    world.kill()


async def test_checkpoints_come_by_themselves() -> None:
    world = RoomWorld()
    await world.take_over()
    await world.make()
    await world.say("lobby", "a")
    await eventually(lambda: world.store.rooms[TENANT, "lobby"].room_seq == 1, 60, "the checkpoint")
    world.kill()


def test_windows_are_bounded() -> None:
    window = Window()
    for number in range(1, 1_000):
        record = RoomRecord("t", "r", 1, number, 0, bytes(16), "ann", f"m{number}", number, b"x" * 5_000)
        window.add(record, record.encode())
    assert window.nbytes <= 256 * 1024
    assert window.newest(3, 0)[-1].record.room_seq == 999
    assert window.sent("ann", "m999") is not None
    assert window.sent("ann", f"m{999 - REMEMBERED_MAX}") is None
    assert window.newest(0, 0) == []


def test_records_survive_their_bytes_and_damage_is_told() -> None:
    record = RoomRecord("t", "r", 7, 3, 2, bytes(16), "ann", "m", 99, b"x", "eve", 5)
    assert decode_room(record.encode()) == record
    assert owner_mark(3, 1).key == b""
    from qim_streams.errors import RecordError

    for data in (b"", b"\x01\x90", record.encode()[:-3], record._replace(message_id=b"x").encode()):
        with pytest.raises(RecordError):
            decode_room(data)


class Forgetful(MemoryRoomStore):
    """Drops a cancellation that comes while it answers, as a driver on `asyncio.wait_for` may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answer = asyncio.Event(), asyncio.Event()

    async def position(self, partition: int) -> int:
        """The first caller waits for `answer`."""
        if not self.asked.is_set():
            self.asked.set()
            with contextlib.suppress(asyncio.CancelledError):
                await self.answer.wait()
        return await super().position(partition)


async def test_an_owner_that_lost_its_partition_takes_nothing_from_its_successor() -> None:
    """Frozen in its takeover, woken, replaced by itself under a newer epoch; its cancellation is lost."""
    world = RoomWorld()
    store = world.store = Forgetful()
    number = partition_of(TENANT, "lobby")
    world.writer = writer = world.new_writer()
    store.epochs[number] = 1
    writer.grant(Grant(f"rm:{number}", 1))
    await store.asked.wait()
    (old,) = writer.tasks()
    writer.revoke(number)
    store.epochs[number] = 2
    writer.grant(Grant(f"rm:{number}", 2))
    await eventually(lambda: writer.ready == [number], 60, "the newer epoch to be served")
    await eventually(old.done, 60, "the old owner to end")
    await world.make()
    assert (await world.say("lobby", "still here")).epoch == 2
    marks = [record.epoch for row in world.log.rows[number] if not (record := decode_room(row[2])).room_id]
    assert marks == [1, 2], "the old owner put its mark behind that of its successor"
    world.kill()


async def test_a_late_refusal_of_an_old_epoch_ends_no_newer_one() -> None:
    world = RoomWorld()
    writer = await world.take_over()
    number = partition_of(TENANT, "lobby")
    writer._fenced(number, world.store.epochs[number] - 1)
    assert number in writer.ready
    writer._fenced(number, world.store.epochs[number])
    assert number not in writer.ready
    world.kill()
