"""A device's view of a room's numbers, and the SDK's rooms without a server (Spec: §10; J4)."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from qim_streams.client.options import SessionOptions
from qim_streams.client.room_tracker import (
    Ended,
    Entered,
    Happened,
    Lost,
    NewEpoch,
    RoomTracker,
    Said,
)
from qim_streams.client.rooms import DELIVERIES_MAX, Rooms
from qim_streams.client.session import Session
from qim_streams.errors import AdmissionRefused, ClientStopped
from qim_streams.wire.answers import error
from qim_streams.wire.examples import SERVER_EXAMPLES
from qim_streams.wire.frames import AuthOk
from qim_streams.wire.frames_rooms import (
    Joined,
    JoinRoom,
    RoomBatch,
    RoomEvent,
    RoomMessage,
    RoomPart,
)


def part(epoch: int, seqs: Iterable[int]) -> RoomPart:
    """A part with messages of these numbers."""
    return RoomPart(
        "lobby", epoch, [RoomMessage(n, n.to_bytes(16, "big"), "ann", 1, b"%d" % n, f"m{n}") for n in seqs]
    )


def joined(epoch: int, seq: int, *parts: RoomPart, rid: int = 1, policy: str = "open") -> Joined:
    """A JOINED."""
    return Joined(rid, "lobby", epoch, seq, 3, "", policy, "ann", "", False, 0, list(parts))


def short(deliveries: Iterable[Any]) -> list[Any]:
    """Deliveries in few words."""
    found: list[Any] = []
    for one in deliveries:
        match one:
            case Said(epoch, message):
                found.append((epoch, message.room_seq))
            case Lost(_, first, last, reason):
                found.append(f"lost {first}-{last} {reason}")
            case NewEpoch(epoch, restarted):
                found.append(f"epoch {epoch}{' restarted' if restarted else ''}")
            case Entered(_, again):
                found.append("again" if again else "in")
            case Happened(event):
                found.append(event.event)
            case Ended(code, _):
                found.append(f"ended {code}")
    return found


def test_what_was_before_the_first_join_is_past_and_not_lost() -> None:
    tracker = RoomTracker()
    assert short(tracker.joined(joined(5, 40, part(5, (39, 40))))) == ["in", (5, 39), (5, 40)]
    assert short(tracker.batch(part(5, (41,)))) == [(5, 41)]
    other = RoomTracker()
    assert short(other.joined(joined(5, 40))) == ["in"]
    assert short(other.batch(part(5, (41,)))) == [(5, 41)]


def test_a_hole_is_told_once_and_before_what_follows() -> None:
    tracker = RoomTracker()
    tracker.joined(joined(5, 0))
    assert short(tracker.batch(part(5, (1, 2, 6)))) == [(5, 1), (5, 2), "lost 3-5 gap", (5, 6)]
    assert short(tracker.batch(part(5, (2, 6, 7)))) == [(5, 7)]


def test_a_takeover_is_told_once_and_numbers_go_on() -> None:
    tracker = RoomTracker()
    tracker.joined(joined(5, 0))
    tracker.batch(part(5, (1, 2)))
    event = RoomEvent("lobby", "owner", 6, 0)
    assert short(tracker.event(event)) == ["epoch 6"]
    assert short(tracker.batch(part(5, (3,)))) == [(5, 3)]  # it waited for its tick
    assert short(tracker.batch(part(6, (4,)))) == [(6, 4)]
    assert tracker.event(event) == []
    assert short(tracker.batch(part(7, (6,)))) == ["epoch 7", "lost 5-5 gap", (7, 6)]


def test_a_room_that_was_made_anew_counts_anew() -> None:
    tracker = RoomTracker()
    tracker.joined(joined(5, 40))
    assert short(tracker.batch(part(9, (2,)))) == ["epoch 9 restarted", "lost 1-1 gap", (9, 2)]


def test_coming_back_shows_what_was_missed_or_says_that_it_is_lost() -> None:
    tracker = RoomTracker()
    tracker.joined(joined(5, 10))
    assert short(tracker.joined(joined(5, 12, part(5, (11, 12))))) == ["again", (5, 11), (5, 12)]
    assert short(tracker.joined(joined(5, 20, part(5, (19, 20))))) == [
        "again",
        "lost 13-18 window",
        (5, 19),
        (5, 20),
    ]
    assert short(tracker.joined(joined(5, 30))) == ["again", "lost 21-30 window"]
    assert short(tracker.joined(joined(5, 30))) == ["again"]
    assert short(tracker.joined(joined(6, 31, part(6, (31,))))) == ["again", "epoch 6", (6, 31)]


# -- the SDK


class Asking:
    """`Requests`, as far as rooms need them here."""

    def __init__(self) -> None:
        self.woken = 0
        self.answers: list[Any] = []

    async def ready(self) -> None:
        """Always."""

    def wake(self) -> None:
        """Count."""
        self.woken += 1

    async def ask(self, make: Any, kind: type, timeout_s: float | None = None) -> Any:
        """The next prepared answer."""
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Bench:
    """Rooms on a session without a socket."""

    def __init__(self) -> None:
        self.session = Session("phone", SessionOptions(), lambda: 0.5)
        self.asking = Asking()
        self.rooms = Rooms(self.session, self.asking, lambda: 0.5)  # type: ignore[arg-type]
        self.connect()

    def connect(self) -> None:
        """A new connection signs on."""
        self.session.closed()
        self.session.open("token", 0)
        self.session.receive(SERVER_EXAMPLES["AUTH_OK"], 0)
        assert isinstance(self.session.auth, AuthOk)

    def asked(self) -> list[JoinRoom]:
        """JOIN_ROOM frames since the last call."""
        frames, self.session.frames = self.session.frames, []
        return [frame for frame in frames if isinstance(frame, JoinRoom)]

    async def join(self) -> Any:
        """Enter."""
        joining = asyncio.create_task(self.rooms.join("lobby"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        (frame,) = self.asked()
        self.session.receive(joined(5, 2, part(5, (1, 2)), rid=frame.rid), 0)
        return await joining


async def taken(room: Any, count: int) -> list[Any]:
    """The next deliveries."""
    found = []
    async for one in room.events():
        found.append(one)
        if len(found) == count:
            return short(found)
    return short(found)


async def test_a_room_is_entered_again_with_its_position() -> None:
    bench = Bench()
    room = await bench.join()
    assert await taken(room, 3) == ["in", (5, 1), (5, 2)]
    bench.session.receive(RoomBatch([part(5, (3,))]), 0)
    bench.connect()
    assert room.joined is None
    (frame,) = bench.asked()
    assert (frame.replay_epoch, frame.replay_from) == (5, 3)
    bench.session.receive(RoomBatch([part(5, (9,))]), 0)  # not ours: not entered on this connection
    refusal = error("SHARD_MOVED", "later", frame.rid, retry_after_ms=1)
    bench.session.receive(refusal, 0)
    deadline = asyncio.get_running_loop().time() + 60
    again: list[JoinRoom] = []
    while not again and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.01)
        again = bench.asked()
    bench.session.receive(joined(5, 4, part(5, (4,)), rid=again[0].rid), 0)
    assert await taken(room, 3) == [(5, 3), "again", (5, 4)]
    bench.connect()
    (frame,) = bench.asked()
    bench.session.receive(error("ROOM_CLOSED", "over", frame.rid), 0)
    assert await taken(room, 1) == ["ended ROOM_CLOSED"]
    with pytest.raises(AdmissionRefused, match="ROOM_CLOSED"):
        await room.send(b"x")
    bench.connect()
    assert bench.asked() == []


async def test_refusals_of_a_join_end_it() -> None:
    bench = Bench()
    joining = asyncio.create_task(bench.rooms.join("lobby"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    (frame,) = bench.asked()
    bench.session.receive(error("NO_ROOM", "none", frame.rid), 0)
    with pytest.raises(AdmissionRefused, match="NO_ROOM"):
        await joining
    await bench.join()  # may be tried again


async def test_a_slow_application_loses_the_oldest_and_is_told() -> None:
    bench = Bench()
    room = await bench.join()
    for start in range(3, DELIVERIES_MAX + 103, 100):
        bench.session.receive(RoomBatch([part(5, range(start, start + 100))]), 0)
    bench.session.receive(RoomEvent("lobby", "mute", 5, 3, "ann", "eve"), 0)
    found = await taken(room, DELIVERIES_MAX + 1)
    assert found[0] == f"lost 1-{found[2][1] - 1} application"
    assert found[1] == "in"
    numbers = [one[1] for one in found if isinstance(one, tuple)]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert found[-1] == "mute"


async def test_kicks_and_closes_end_a_room_and_others_kicks_do_not() -> None:
    bench = Bench()
    room = await bench.join()
    me = bench.session.user_id
    bench.session.receive(RoomEvent("lobby", "kick", 5, 3, "ann", "eve"), 0)
    bench.session.receive(RoomEvent("lobby", "kick", 5, 3, "ann", me), 0)
    assert await taken(room, 9) == ["in", (5, 1), (5, 2), "kick", "kick", "ended BANNED"]


async def test_a_send_waits_until_the_room_is_entered_again() -> None:
    bench = Bench()
    room = await bench.join()
    bench.connect()
    bench.asking.answers = [AdmissionRefused("NOT_IN_ROOM", "join first"), "ack"]
    sending = asyncio.create_task(room.send(b"x"))
    await asyncio.sleep(0.01)
    assert len(bench.asking.answers) == 2
    (frame,) = bench.asked()
    bench.session.receive(joined(5, 2, rid=frame.rid), 0)
    assert await sending == "ack"


async def test_the_end_of_the_client_is_the_end_of_its_rooms() -> None:
    bench = Bench()
    room = await bench.join()
    bench.rooms.stop(ClientStopped("CLOSED", "closed"))
    with pytest.raises(ClientStopped):
        await taken(room, 9)
