"""Who sees whom, what is told of it and when: two gateways on one bus and one book (Spec: §6)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from qim_streams import limits
from qim_streams.errors import AdmissionRefused, StoreUnavailable
from qim_streams.gateway.ports import DeviceKey
from qim_streams.gateway.presence import Notice, Said
from qim_streams.gateway.presence_watch import CHANNEL, PresenceWatches
from qim_streams.membership.ports import Member
from qim_streams.sessions.ports import SessionUser
from qim_streams.sync.ports import MailboxAddress
from qim_streams.testing.memory_presence import MemoryPresenceBook
from qim_streams.wire import MSGPACK
from qim_streams.wire.connection import ServerConnection
from qim_streams.wire.frames import ServerFrame
from qim_streams.wire.frames_presence import (
    PresenceStates,
    SetVisibility,
    UserPresence,
    Visibility,
    WatchPresence,
)
from tests.support.session_world import MemorySignals
from tests.support.waiting import eventually

USERS = {name: 64 + 37 * number for number, name in enumerate(["ann", "ben", "cid", "dan"])}
GROUPS = {"team": ["ann", "ben", "cid"], "pair": ["ann", "dan"]}


class Members:
    async def page(self, tenant_id: str, conversation_id: str, after: str, limit: int) -> list[Member]:
        names = [name for name in GROUPS.get(conversation_id, ()) if name > after][:limit]
        return [Member(name, USERS[name], "member", True, ((0, None),)) for name in names]


class Device:
    """A session, as far as presence needs one."""

    def __init__(self, user: str) -> None:
        self.address = MailboxAddress("t", user, "phone", USERS[user], 0, 0)
        self.connection = ServerConnection(256)
        self.connection.requests = 100
        self.frames: list[ServerFrame] = []
        self.refusals: list[AdmissionRefused] = []
        self.work: list[Awaitable[None]] = []

    def send(self, frame: ServerFrame) -> None:
        self.frames.append(frame)

    def send_encoded(self, encode: Callable[..., bytes]) -> None:
        raise NotImplementedError

    def spawn(self, work: Callable[[], Awaitable[None]], rid: int, answered: Callable[[], None]) -> None:
        self.work.append(work())

    async def ask(self, watches: PresenceWatches, frame: Any) -> Any:
        assert watches.handle(self, frame)
        await self.work.pop()
        return self.frames.pop()

    def news(self) -> dict[str, UserPresence]:
        told: dict[str, UserPresence] = {}
        for frame in self.frames:
            assert isinstance(frame, PresenceStates)
            assert frame.rid is None
            told |= {one.user_id: one for one in frame.users}
        return told


class World:
    """Two gateways. `now` is the clock, ms."""

    def __init__(self) -> None:
        self.now, self.book, self.bus = 1_000_000, MemoryPresenceBook(), MemorySignals()
        self.gateways = [
            PresenceWatches(
                self.book, self.bus, Members(), lambda: self.now,
                hold_ms=1_000, collect_s=0.02, look_again_s=0.05,
            )
            for _ in range(2)
        ]  # fmt: skip
        self.tasks = [asyncio.ensure_future(gateway.run()) for gateway in self.gateways]

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def say(self, gateway: int, user: str, said: Said, device: str = "phone") -> None:
        notice = Notice(said, 1, USERS[user])
        self.gateways[gateway].heard([(DeviceKey("t", user, device), notice)])


@pytest.fixture
async def world() -> Any:
    made = World()
    yield made
    await made.close()


async def test_a_watcher_hears_who_comes_and_goes_on_another_gateway(world: World) -> None:
    ann = Device("ann")
    answer = await ann.ask(world.gateways[0], WatchPresence(1, "team", ["ben", "cid", "dan"]))
    seen = [UserPresence("ben", False), UserPresence("cid", False)]
    assert answer == PresenceStates(seen, 1), "dan is no member of it"
    world.say(1, "ben", Said.ONLINE)
    await eventually(lambda: ann.news() == {"ben": UserPresence("ben", True)})
    world.now += 10
    world.say(1, "ben", Said.GONE)
    await eventually(lambda: ann.news()["ben"] == UserPresence("ben", False, world.now))


async def test_a_gateway_that_dies_takes_its_users_with_it(world: World) -> None:
    ann = Device("ann")
    world.say(1, "ben", Said.ONLINE)
    await eventually(lambda: world.book._pages)
    answer = await ann.ask(world.gateways[0], WatchPresence(1, "team", ["ben"]))
    assert answer.users == [UserPresence("ben", True)]
    until, world.now = world.now + 1_000, world.now + 5_000
    await eventually(lambda: ann.news().get("ben") == UserPresence("ben", False, until))


async def test_a_burst_is_one_frame_and_back_to_where_it_was_none(world: World) -> None:
    ann = Device("ann")
    await ann.ask(world.gateways[0], WatchPresence(1, "team", ["ben", "cid"]))
    for said in (Said.ONLINE, Said.GONE, Said.ONLINE, Said.GONE, Said.ONLINE):
        world.say(1, "ben", said)
        await asyncio.sleep(0)
    world.say(1, "cid", Said.ONLINE)
    await eventually(lambda: set(ann.news()) == {"ben", "cid"})
    assert len(ann.frames) <= 2


async def test_an_invisible_user_is_offline_to_others(world: World) -> None:
    ann, ben = Device("ann"), Device("ben")
    world.say(1, "ben", Said.ONLINE)
    await eventually(lambda: world.book._pages)
    await ann.ask(world.gateways[0], WatchPresence(1, "team", ["ben"]))
    assert await ben.ask(world.gateways[1], SetVisibility(2, False)) == Visibility(2, False)
    await eventually(lambda: ann.news().get("ben") == UserPresence("ben", False, world.now))
    ann.frames.clear()
    world.say(1, "ben", Said.ONLINE, "pad")
    await asyncio.sleep(0.1)
    assert not ann.news()
    await ben.ask(world.gateways[1], SetVisibility(3, True))
    await eventually(lambda: ann.news().get("ben") == UserPresence("ben", True))


async def test_only_members_see_members(world: World) -> None:
    dan = Device("dan")
    with pytest.raises(AdmissionRefused, match="only members"):
        await dan.ask(world.gateways[0], WatchPresence(1, "team", ["ann"]))
    answer = await dan.ask(world.gateways[0], WatchPresence(2, "pair", ["ann", "ben"]))
    assert [one.user_id for one in answer.users] == ["ann"]


async def test_watching_is_replaced_by_conversation_and_ends_with_the_session(world: World) -> None:
    ann = Device("ann")
    gateway = world.gateways[0]
    await ann.ask(gateway, WatchPresence(1, "team", ["ben", "cid"]))
    await ann.ask(gateway, WatchPresence(2, "pair", ["dan"]))
    await ann.ask(gateway, WatchPresence(3, "team", ["cid"]))
    world.say(1, "ben", Said.ONLINE)
    world.say(1, "dan", Said.ONLINE)
    await eventually(lambda: set(ann.news()) == {"dan"})
    await ann.ask(gateway, WatchPresence(4, "pair", []))
    gateway.left(ann)
    gateway.left(ann)
    ann.frames.clear()
    for user in ("cid", "dan"):
        world.say(1, user, Said.GONE)
    await asyncio.sleep(0.1)
    assert not ann.frames
    assert not world.bus._listeners.channels


async def test_a_connection_watches_a_bounded_number(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRESENCE_WATCHED_MAX", 2)
    ann = Device("ann")
    await ann.ask(world.gateways[0], WatchPresence(1, "team", ["ben", "cid"]))
    with pytest.raises(AdmissionRefused, match="watches 2 users at most"):
        await ann.ask(world.gateways[0], WatchPresence(2, "pair", ["dan"]))
    assert (await ann.ask(world.gateways[0], WatchPresence(3, "team", ["ben"]))).users
    assert (await ann.ask(world.gateways[0], WatchPresence(4, "pair", ["dan"]))).users


async def test_a_book_that_is_away_costs_a_moment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ann, note = Device("ann"), world.book.note
    await ann.ask(world.gateways[0], WatchPresence(1, "team", ["ben"]))
    failures = [StoreUnavailable("away")]

    async def sometimes(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await note(*args)

    monkeypatch.setattr(world.book, "note", sometimes)
    monkeypatch.setattr("qim_streams.gateway.presence_watch.AGAIN_S", 0.01)
    world.say(1, "ben", Said.ONLINE)
    await eventually(lambda: ann.news().get("ben") == UserPresence("ben", True))


async def test_a_signal_that_cannot_be_read_ends_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """What is on the bus may be of another version, or nobody's: it is dropped, and the next one heard."""
    ann = Device("ann")
    await ann.ask(world.gateways[0], WatchPresence(1, "team", ["ben"]))
    user = SessionUser("t", "ben", USERS["ben"])
    for data in (b"nonsense", b"", MSGPACK.encode(PresenceStates([UserPresence("ben", True)]))):
        world.bus.tell(user, "", data, CHANNEL)
    await eventually(lambda: ann.news() == {"ben": UserPresence("ben", True)})
    assert caplog.text.count("cannot be read") == 2
