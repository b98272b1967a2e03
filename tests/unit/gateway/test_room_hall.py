"""Rooms of a gateway: one encoding, slow readers, events, bounds (Spec: §10; J1, J2, J4)."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from qim_streams import limits
from qim_streams.errors import AdmissionRefused, StoreUnavailable
from qim_streams.gateway import room_seat
from qim_streams.gateway.local_room import WAITING_MAX
from qim_streams.gateway.room_counts import CountExchange
from qim_streams.gateway.room_seat import RoomSeat
from qim_streams.gateway.rooms import TURN, RoomHall
from qim_streams.rooms.commands import RoomJoin
from qim_streams.sync.ports import MailboxAddress
from qim_streams.wire import JSON, MSGPACK
from qim_streams.wire.codec import Codec
from qim_streams.wire.connection import ServerConnection
from qim_streams.wire.frames_rooms import (
    Joined,
    JoinRoom,
    LeaveRoom,
    RoomAck,
    RoomBatch,
    RoomEvent,
    RoomLeft,
    RoomPart,
    SendRoom,
)
from qim_streams.wire.room_batches import batch_of, encode_part
from tests.support.room_world import TENANT, RoomWorld
from tests.support.waiting import eventually


class FakeOutbound:
    """An `Outbound` whose socket takes nothing while `stuck`."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.stuck = False
        self.size = 0
        self.bytes_max = 1_048_576

    @property
    def is_full(self) -> bool:
        """See `Outbound`."""
        return self.size >= self.bytes_max

    def put(self, payload: bytes) -> None:
        """See `Outbound`."""
        self.written.append(payload)
        if self.stuck:
            self.size += len(payload)


class Device:
    """A session, as far as its seat needs one."""

    def __init__(self, hall: RoomHall, user: str, codec: Codec = MSGPACK, tenant: str = TENANT) -> None:
        self.connection = ServerConnection(256)
        self.address = MailboxAddress(tenant, user, "phone", 1, 0, 0)
        self.is_open, self.codec, self.closed_with = True, codec, 0
        self.outbound = FakeOutbound()
        self.answers: list[Any] = []
        self.failures: list[AdmissionRefused] = []
        self.seat: RoomSeat = hall.seat(self, codec, self.outbound)  # type: ignore[arg-type]
        self.rid = 0

    def send(self, frame: Any) -> None:
        """See `RoomSession`."""
        self.answers.append(frame)

    def refuse(self, answer: Any) -> None:
        """See `RoomSession`."""
        self.answers.append(answer)

    def spawn(self, work: Any, rid: int, answered: Any) -> None:
        """See `RoomSession`."""

        async def guarded() -> None:
            try:
                await work()
            except AdmissionRefused as error:
                answered()
                self.failures.append(error)

        self.task = asyncio.create_task(guarded())

    def end(self, code: int) -> None:
        """See `RoomSession`."""
        self.closed_with, self.is_open = code, False

    async def ask(self, frame: Any) -> Any:
        """The answer to a frame; AdmissionRefused."""
        self.connection.requests += 1
        self.seat.handle(frame)
        if type(frame) is not LeaveRoom:
            await self.task
        if self.failures:
            raise self.failures.pop()
        assert self.connection.requests == 0
        return self.answers.pop()

    async def join(self, room: str = "lobby", **fields: int) -> Joined:
        """Enter."""
        answer = await self.ask(JoinRoom(1, room, **fields))
        assert isinstance(answer, Joined)
        return answer

    @property
    def frames(self) -> list[Any]:
        """What was written, decoded."""
        return [self.codec.decode_server(data) for data in self.outbound.written]

    @property
    def said(self) -> list[int]:
        """Numbers of the messages that came, in order."""
        batches = [frame for frame in self.frames if isinstance(frame, RoomBatch)]
        return [one.room_seq for frame in batches for part in frame.rooms for one in part.messages]

    @property
    def events(self) -> list[RoomEvent]:
        """The events that came."""
        return [frame for frame in self.frames if isinstance(frame, RoomEvent)]


async def ready() -> RoomWorld:
    """A world with a room."""
    world = RoomWorld()
    await world.take_over()
    await world.make()
    return world


async def test_joiners_see_the_past_and_all_see_what_comes_in_one_encoding() -> None:
    world = await ready()
    for text in "abc":
        await world.say("lobby", text)
    async with world.hall() as hall:
        ann, bob = Device(hall, "ann"), Device(hall, "bob", JSON)
        joined = await ann.join(replay_limit=2)
        assert [one.body for part in joined.parts for one in part.messages] == [b"b", b"c"]
        assert (joined.room_seq, joined.member_count, joined.role) == (3, 1, "owner")
        cat = Device(hall, "cat")
        await bob.join()
        await cat.join()
        ack = await ann.ask(SendRoom(1, "lobby", "m9", b"d"))
        assert isinstance(ack, RoomAck)
        assert ack.room_seq == 4
        await eventually(lambda: ann.said == bob.said == cat.said == [4], within_s=60, what="the message")
        assert ann.outbound.written[0] is cat.outbound.written[0]  # the same bytes, not equal ones
        assert isinstance(await cat.ask(LeaveRoom(1, "lobby")), RoomLeft)
        await world.say("lobby", "e")
        await eventually(lambda: ann.said == bob.said == [4, 5], within_s=60, what="the next one")
        assert cat.said == [4]
    world.kill()


async def test_a_joiner_in_the_middle_of_a_flood_misses_and_repeats_nothing() -> None:
    world = await ready()
    async with world.hall(frame_rate=100.0) as hall:
        first = Device(hall, "ann")
        await first.join()
        late: list[tuple[Joined, Device]] = []

        async def talk() -> None:
            for number in range(300):
                await world.say("lobby", str(number))

        talking = asyncio.create_task(talk())
        while not talking.done():
            device = Device(hall, f"u{len(late)}")
            late.append((await device.join(replay_limit=200), device))
            await asyncio.sleep(0.001)
        await talking
        await eventually(lambda: first.said[-1:] == [300], within_s=60, what="the end")
        assert first.said == list(range(1, 301))
        for joined, device in late:
            shown = [one.room_seq for part in joined.parts for one in part.messages]
            await eventually(
                lambda d=device, j=joined: (d.said or [j.room_seq])[-1] == 300, within_s=60, what="the end"
            )
            assert [*shown, *device.said] == list(range(300 - len(shown) - len(device.said) + 1, 301))
            assert not shown or shown[-1] == joined.room_seq
    world.kill()


async def test_a_reader_that_stands_still_costs_itself() -> None:
    """J1: others get everything; its own memory is bounded; when it reads again the gap is in the numbers."""
    world = await ready()
    async with world.hall(frame_rate=100.0) as hall:
        slow, fast = Device(hall, "slow"), Device(hall, "fast")
        await slow.join()
        await fast.join()
        slow.outbound.stuck, slow.outbound.size = True, room_seat.SHARE_BYTES + 1
        for number in range(1, 1_001):
            await world.say("lobby", "x" * 1_000 + str(number))
            if number % 100 == 0:  # no faster than somebody reads
                await eventually(lambda n=number: fast.said[-1:] == [n], 60, "the fast one")
        await eventually(lambda: fast.said[-1:] == [1_000], 60, "all at the fast one")
        assert fast.said == list(range(1, 1_001))
        assert slow.said == []
        assert slow.seat._queued_bytes <= room_seat.QUEUE_BYTES_MAX
        assert slow.seat._queued <= room_seat.QUEUE_MESSAGES_MAX
        slow.outbound.stuck, slow.outbound.size = False, 0
        await eventually(lambda: slow.said[-1:] == [1_000], 60, "the newest at the slow one")
        assert slow.said == list(range(slow.said[0], 1_001))
        assert slow.said[0] > 1  # the loss is visible
    world.kill()


async def test_events_come_in_a_flood_and_to_a_full_socket() -> None:
    """J2: a mute and a close arrive although messages are dropped."""
    world = await ready()
    async with world.hall(frame_rate=100.0) as hall:
        slow = Device(hall, "slow")
        await slow.join()
        slow.outbound.stuck, slow.outbound.size = True, slow.outbound.bytes_max
        for number in range(1_200):
            await world.say("lobby", "x" * 500)
            if number == 600:
                await world.do("mute", "eve", seconds=60)
        await world.do("close")
        await eventually(lambda: not hall.counts(), 60, "the room to end here")
        assert slow.outbound.written == []
        slow.outbound.stuck, slow.outbound.size = False, 0
        await eventually(lambda: [e.event for e in slow.events] == ["mute", "close"], 60, "the events")
        assert slow.events[0].user_id == "eve"
        assert not slow.closed_with
    world.kill()


async def test_a_connection_that_would_lose_an_event_is_closed() -> None:
    world = await ready()
    async with world.hall() as hall:
        slow, fast = Device(hall, "slow"), Device(hall, "fast")
        await slow.join()
        await fast.join()
        slow.outbound.stuck, slow.outbound.size = True, slow.outbound.bytes_max
        for number in range(room_seat.EVENTS_MAX + 1):
            world.now_s += 1.0
            await world.do("mute", f"u{number}")
        await eventually(lambda: len(fast.events) == room_seat.EVENTS_MAX + 1, 60, "all at the fast one")
        assert slow.closed_with == 1013
        assert hall.counts() == {(TENANT, "lobby"): 1}
    world.kill()


async def test_who_is_sent_out_is_out_and_told() -> None:
    world = await ready()
    await world.make("club", policy="members")
    await world.do("add_member", "eve", room="club")
    async with world.hall() as hall:
        ann, eve, two = Device(hall, "ann"), Device(hall, "eve"), Device(hall, "eve")
        for device in (ann, eve, two):
            await device.join()
            await device.join("club")
        await world.do("kick", "eve", seconds=60)
        await eventually(lambda: [e.event for e in eve.events] == ["kick"], within_s=60, what="the event")
        await eventually(
            lambda: hall.counts() == {(TENANT, "lobby"): 1, (TENANT, "club"): 3}, within_s=60, what="out"
        )
        with pytest.raises(AdmissionRefused, match="BANNED"):
            await eve.join()
        with pytest.raises(AdmissionRefused, match="NOT_IN_ROOM"):
            await eve.ask(SendRoom(1, "lobby", "m", b"x"))
        await world.do("remove", "eve", room="club")
        await eventually(lambda: hall.counts()[TENANT, "club"] == 1, within_s=60, what="members only")
        assert two.events[-1].event == "remove"
        assert ann.events[-1].event == "remove"
    world.kill()


async def test_a_takeover_is_told_once_and_numbers_go_on() -> None:
    """J4: members get an event; nothing is lost here because the log has it."""
    world = await ready()
    async with world.hall() as hall:
        ann = Device(hall, "ann")
        await ann.join()
        await world.say("lobby", "a")
        world.kill()
        await world.take_over()
        receipt = await world.say("lobby", "b")
        await eventually(lambda: ann.said == [1, 2], within_s=60, what="both")
        assert [(e.event, e.epoch) for e in ann.events] == [("owner", receipt.epoch)]
        late = Device(hall, "late")
        joined = await late.join()
        assert [(p.epoch, [m.room_seq for m in p.messages]) for p in joined.parts] == [
            (receipt.epoch - 1, [1]),
            (receipt.epoch, [2]),
        ]
        again = await Device(hall, "back").join(replay_epoch=receipt.epoch - 1, replay_from=1)
        assert [m.body for p in again.parts for m in p.messages] == [b"b"]
        assert late.events == []
    world.kill()


async def test_rooms_of_one_connection_share_its_frames_and_are_bounded() -> None:
    world = await ready()
    async with world.hall(frame_rate=0.01) as hall:
        ann = Device(hall, "ann")
        for number in range(limits.ROOMS_PER_CONNECTION_MAX):
            await world.make(f"r{number}")
            await ann.join(f"r{number}")
        await ann.join("r0")  # again: no further seat
        with pytest.raises(AdmissionRefused, match="TOO_MANY_ROOMS"):
            await ann.join("lobby")
        await world.say("r0", "x")
        await eventually(lambda: ann.said == [1], 60, "the first tick")
        for number in range(limits.ROOMS_PER_CONNECTION_MAX):
            await world.say(f"r{number}", "x")
        rooms = list(hall._rooms.values())
        await eventually(lambda: all(room._waiting for room in rooms), 60, "all read")
        await hall.tick()
        assert len(ann.said) == 1 + limits.ROOMS_PER_CONNECTION_MAX
        assert len(ann.frames) == 2
        ann.seat.close()
        assert hall.counts() == {}
    world.kill()


async def test_a_tick_lets_others_on_after_a_few_connections() -> None:
    """The sender's acknowledgement waits for a slice of a room, never for all of it."""
    world = await ready()
    async with world.hall(frame_rate=0.01) as hall:
        devices = [Device(hall, f"u{number}") for number in range(3 * TURN + 1)]
        await asyncio.gather(*(one.join() for one in devices))
        await world.say("lobby", "x")
        await eventually(lambda: all(one.said == [1] for one in devices), 60, "the first tick")
        await world.say("lobby", "x")
        (room,) = hall._rooms.values()
        await eventually(lambda: room._waiting, 60, "the second message")
        written = [len(devices)]
        tick = asyncio.create_task(hall.tick())
        while not tick.done():
            await asyncio.sleep(0)
            written.append(sum(len(one.outbound.written) for one in devices))
        assert written[-1] == 2 * len(devices)
        assert max(after - before for before, after in pairwise(written)) <= TURN
    world.kill()


async def test_tenants_do_not_hear_each_other() -> None:
    world = await ready()
    async with world.hall() as hall:
        ann, stranger = Device(hall, "ann"), Device(hall, "ann", tenant="other")
        await ann.join()
        with pytest.raises(AdmissionRefused, match="NO_ROOM"):
            await stranger.join()
        await world.say("lobby", "ours")
        await eventually(lambda: ann.said == [1], within_s=60, what="the message")
        assert stranger.outbound.written == []
        assert hall.counts() == {(TENANT, "lobby"): 1}
    world.kill()


async def test_twenty_thousand_joins_say_nothing_to_anybody() -> None:
    """G10: no frame per join, one count for all; what a room keeps does not grow with its joins."""
    world = await ready()
    async with world.hall() as hall:
        devices = [Device(hall, f"u{number}") for number in range(2_000)]
        for start in range(0, len(devices), 500):
            await asyncio.gather(*(one.join() for one in devices[start : start + 500]))
        assert sum(len(one.outbound.written) for one in devices) == 0
        await hall.counted({(TENANT, "lobby"): 20_000})
        await hall.counted({(TENANT, "lobby"): 20_000})
        assert all([e.member_count for e in one.events] == [20_000] for one in devices)
    world.kill()


async def test_what_waits_for_a_tick_is_bounded() -> None:
    world = await ready()
    async with world.hall(frame_rate=0.01) as hall:
        ann = Device(hall, "ann")
        await ann.join()
        await world.say("lobby", "x")
        await eventually(lambda: ann.said == [1], within_s=60, what="the first tick")
        for _ in range(WAITING_MAX + 100):
            await world.say("lobby", "x")
        (room,) = hall._rooms.values()
        await eventually(lambda: room._heard[1] == WAITING_MAX + 101, within_s=60, what="all read")
        await hall.tick()
        assert ann.said == [1, *range(102, WAITING_MAX + 102)]
    world.kill()


@pytest.mark.parametrize("codec", [MSGPACK, JSON], ids=["msgpack", "json"])
def test_a_batch_of_encoded_parts_is_the_frame(codec: Codec) -> None:
    from qim_streams.wire.examples import SERVER_EXAMPLES

    batch = SERVER_EXAMPLES["ROOM_BATCH"]
    assert isinstance(batch, RoomBatch)
    many: list[RoomPart] = [batch.rooms[0]._replace(room_id=f"r{n}") for n in range(20)]
    for parts in (batch.rooms, many):
        data = batch_of(codec, [encode_part(codec, part) for part in parts])
        assert data == codec.encode(RoomBatch(parts))


async def test_a_room_is_loaded_once_for_all_who_come_together() -> None:
    world = await ready()
    looks: list[RoomJoin] = []
    join = world.join

    async def counted(request: RoomJoin) -> Any:
        looks.append(request)
        return await join(request)

    world.join = counted  # type: ignore[method-assign]
    async with world.hall() as hall:
        await asyncio.gather(*(Device(hall, f"u{number}").join() for number in range(100)))
        assert [one for one in looks if one.limit] == [RoomJoin(TENANT, "lobby", None, 200)]
    world.kill()


async def test_without_a_writer_a_send_says_what_is_known() -> None:
    """J4: no black hole: the answer comes at the deadline, and says that the outcome is not known."""
    world = await ready()
    async with world.hall() as hall:
        ann = Device(hall, "ann")
        await ann.join()
        world.kill()
        world.deadline_s = 0.05
        with pytest.raises(AdmissionRefused, match="OUTCOME_UNKNOWN") as caught:
            await ann.ask(SendRoom(1, "lobby", "m1", b"x"))
        assert caught.value.retry_after_ms
        await world.take_over()
        ack = await ann.ask(SendRoom(1, "lobby", "m1", b"x"))
        await eventually(lambda: ann.said == [ack.room_seq], within_s=60, what="the message, once")
    world.kill()


async def test_joins_cost_the_counts_nothing_and_rooms_that_ended_say_so() -> None:
    """One exchange for all rooms, however many join; a store that is away costs fresh counts only."""
    world = await ready()
    asked: list[dict[tuple[str, str], int]] = []
    away = False

    class Counts:
        """A `RoomCounts` that notes what it is told."""

        async def exchange(self, gateway: str, counts: Any, now_ms: int) -> dict[tuple[str, str], int]:
            """See the port."""
            if away:
                raise StoreUnavailable("down")
            asked.append(dict(counts))
            return {name: 100 + count for name, count in counts.items()}

        async def totals(self, rooms: Any, now_ms: int) -> list[int]:
            """See the port."""
            return []

    async with world.hall() as hall:
        exchange = CountExchange(hall, Counts(), "g1", lambda: 1, lambda: 0.5)
        await exchange.exchange()
        devices = [Device(hall, f"u{number}") for number in range(200)]
        await asyncio.gather(*(one.join() for one in devices))
        assert asked == []
        await exchange.exchange()
        assert asked == [{(TENANT, "lobby"): 200}]
        assert (await devices[0].join()).member_count == 300
        away = True
        await exchange.exchange()
        away = False
        for one in devices:
            one.seat.close()
        await exchange.exchange()
        await exchange.exchange()
        assert asked[1:] == [{(TENANT, "lobby"): 0}]
    world.kill()
