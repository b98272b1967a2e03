"""Three scenes that mailboxes know nothing of: a chat room, presence, a device that is told while it is away.

Each says what everybody must have seen and complains about what is not so. They run side by side: waiting is
most of them.

Invariants: a scene leaves nothing behind that another one sees; its clients are closed by `People`. What must
not happen (a second notification) is looked at when everything else has been played (`Show.settle`).

Spec: §6 (presence, offline push), §10 (rooms).
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from qim_streams.client import QimClient
from qim_streams.client.room_tracker import Ended, Happened, Lost, RoomDelivery, Said
from qim_streams.client.rooms import ClientRoom
from qim_streams.demo.people import People
from qim_streams.errors import AdmissionRefused, ClientStopped, QimError
from qim_streams.notification.rules import SIGNING_ON_MS
from qim_streams.wire.frames_rooms import RoomAck

SHOW_S: Final = 60.0
ROOM_MESSAGES: Final = 18  # below the second's worth that a room takes at once
LATE_REPLAY: Final = 5
PROVIDER: Final = "webhook"
AWAY_S: Final = SIGNING_ON_MS / 1_000 + 0.3  # a device that has just signed on counts as one that still syncs
STEP_S: Final = 0.02


@dataclass(slots=True)
class Show:
    """One scene: its figures, and a sentence for everything that is wrong."""

    name: str
    figures: str = ""
    complaints: list[str] = field(default_factory=list)
    late: list[Callable[[], str]] = field(default_factory=list)  # looked at last; "" when all is well

    def expect(self, true: bool, complaint: str) -> None:
        """Note a complaint unless `true`."""
        if not true:
            self.complaints.append(complaint)

    def settle(self) -> None:
        """Look at what must not have happened until now."""
        late, self.late = self.late, []
        self.complaints += [said for look in late if (said := look())]

    @property
    def line(self) -> str:
        """The first line of the summary."""
        return f"scene {self.name}: {self.figures or 'not played to its end'}: {self.state}"

    @property
    def state(self) -> str:
        """How it ended."""
        return "NOT OK" if self.complaints else "ok"


PlayShow = Callable[[People], Awaitable[Show]]


async def played(name: str, play: Callable[[Show], Awaitable[None]]) -> Show:
    """A show, whatever goes wrong in it."""
    show = Show(name)
    try:
        async with asyncio.timeout(SHOW_S):
            await play(show)
    except TimeoutError:
        show.complaints.append(f"not over within {SHOW_S:.0f} s")
    except QimError as error:
        show.complaints.append(f"{type(error).__name__}: {error}")
    return show


async def until(true: Callable[[], bool]) -> float:
    """Wait until something holds; seconds that it took. The scene's time is the bound."""
    began_s = time.monotonic()
    while True:
        if true():
            return time.monotonic() - began_s
        await asyncio.sleep(STEP_S)


# -- a chat room


class Visitor:
    """Somebody in the room, and all that he is given."""

    def __init__(self, name: str, user_id: str, room: ClientRoom) -> None:
        self.name, self.user_id, self.room = name, user_id, room
        self.got: list[RoomDelivery] = []
        self.task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        with contextlib.suppress(ClientStopped):  # the scene has ended
            async for one in self.room.events():
                self.got.append(one)

    def has(self, seq: int) -> bool:
        """Whether he was shown a message of that number, or a later one."""
        return any(isinstance(one, Said) and one.message.room_seq >= seq for one in self.got)


def judge_visitor(name: str, got: Sequence[RoomDelivery], acks: Sequence[RoomAck]) -> list[str]:
    """What is wrong with what somebody was given, who must have seen all of `acks` and the room's end."""
    found = []
    said = [(one.epoch, one.message.room_seq, one.message.message_id) for one in got if isinstance(one, Said)]
    wanted = [(ack.epoch, ack.room_seq, ack.message_id) for ack in acks]
    if said != wanted:
        numbers = [seq for _, seq, _ in said]
        found.append(f"{name} was shown {numbers}, acknowledged were {[ack.room_seq for ack in acks]}")
    gaps = [(one.first_seq, one.last_seq, one.reason) for one in got if isinstance(one, Lost)]
    if gaps:
        found.append(f"{name} was told of gaps {gaps}")
    events = [one.event.event for one in got if isinstance(one, Happened)]
    found += [f"{name} heard no {event}" for event in ("mute", "close") if event not in events]
    if not got or not isinstance(got[-1], Ended) or got[-1].code != "ROOM_CLOSED":
        found.append(f"{name} did not hear that the room has ended")
    return found


async def chat_room(people: People) -> Show:
    """Three talk, a fourth comes late and is shown the last messages; one is muted, the room is closed."""
    return await played("chat room", lambda show: _chat_room(show, people))


async def _chat_room(show: Show, people: People) -> None:
    names = ("c-ann", "c-bob", "c-cid", "c-dee")
    clients = [people.client(name, name) for name in names]
    await asyncio.gather(*(client.connect() for client in clients))
    host, room_id = clients[0], f"lobby.{people.run}"
    await host.rooms.create(room_id, name="Lobby")

    async def enter(at: int, replay: int) -> Visitor:
        # Whoever has to connect again is shown as many, too.
        room = await clients[at].rooms.join(room_id, replay=replay)
        return Visitor(names[at], people.user(names[at]), room)

    visitors = [await enter(at, ROOM_MESSAGES) for at in range(3)]
    acks = [await _say(visitors[number % 3].room, number) for number in range(ROOM_MESSAGES)]
    await until(lambda: all(one.has(acks[-1].room_seq) for one in visitors))
    late = await enter(3, LATE_REPLAY)
    acks.append(await _say(late.room, ROOM_MESSAGES))
    everybody = [*visitors, late]
    await until(lambda: all(one.has(acks[-1].room_seq) for one in everybody))
    await _govern(show, host, visitors[1])
    await until(lambda: all(one.task.done() for one in everybody))
    for one in visitors:
        show.complaints += judge_visitor(one.name, one.got, acks)
    show.complaints += judge_visitor(late.name, late.got, acks[-LATE_REPLAY - 1 :])
    shown = sum(isinstance(one, Said) for visitor in everybody for one in visitor.got)
    show.figures = (
        f"{len(everybody)} people, {len(acks)} messages, {shown} shown, room_seq {acks[0].room_seq} to "
        f"{acks[-1].room_seq} without a gap on each; one came late, one was muted, all heard the close"
    )
    for client in clients:
        await people.close(client)


async def _say(room: ClientRoom, number: int) -> RoomAck:
    """One message; a room that is asked too often says when to come again."""
    while True:
        try:
            return await room.send(b"room %d" % number, client_message_id=f"room-{number}")
        except AdmissionRefused as refusal:
            if not refusal.retry_after_ms:
                raise
            await asyncio.sleep(refusal.retry_after_ms / 1_000)


async def _govern(show: Show, host: QimClient, muted: Visitor) -> None:
    room_id = muted.room.room_id
    await host.rooms.control(room_id, "mute", user_id=muted.user_id, seconds=60)
    try:
        await muted.room.send(b"not to be heard")
        show.complaints.append(f"{muted.name} talks though muted")
    except AdmissionRefused as refusal:
        show.expect(refusal.code == "MUTED", f"{muted.name} was refused for {refusal.code}, not for MUTED")
    await host.rooms.control(room_id, "close")


# -- presence


async def presence(people: People) -> Show:
    """Somebody is watched who comes, hides, shows himself again and goes."""
    return await played("presence", lambda show: _presence(show, people))


async def _presence(show: Show, people: People) -> None:
    watched = people.user("p-bob")
    watcher, device = people.client("p-ann", "p-ann"), people.client("p-bob", "p-bob")
    await watcher.connect()
    place = (await watcher.send(b"are you here?", to_user_id=watched)).conversation_id
    states = watcher.presence.states
    (before,) = await watcher.presence.watch(place, [watched])
    show.expect(not before.online, "somebody who never came is seen online")
    took = []

    async def seen(online: bool) -> None:
        took.append(await until(lambda: states[watched].online is online))

    await device.connect()
    await seen(True)
    await device.presence.set_visible(False)
    await seen(False)
    await device.presence.set_visible(True)
    await seen(True)
    await people.close(device)
    await seen(False)
    show.expect(states[watched].last_seen_ms is not None, "nobody knows when he was last seen")
    after = ", ".join(f"{1_000 * one:.0f}" for one in took)
    show.figures = f"came, hid, showed himself and went, seen by his watcher after {after} ms"
    await people.close(watcher)


# -- a device that is away


class Receiver(Protocol):
    """What a provider of notifications and an application's webhook were given, counted."""

    def requests(self, message_id: bytes) -> int:
        """Requests for notifications of a message."""

    def outcomes(self, message_id: bytes) -> list[str]:
        """Results of notifications of a message that the application was told, each event once."""

    @property
    def forged(self) -> int:
        """Requests whose signature is wrong."""


def notification(receiver: Receiver) -> PlayShow:
    """A message to a device that is away, one before it went and one after it came back."""

    async def play(people: People) -> Show:
        return await played("notification", lambda show: _notification(show, people, receiver))

    return play


async def _notification(show: Show, people: People, receiver: Receiver) -> None:
    away = people.user("n-bob")
    here, phone = people.client("n-ann", "n-ann"), people.client("n-bob", "n-bob")
    await asyncio.gather(here.connect(), phone.connect())
    first = await here.send(b"before", to_user_id=away)
    await phone.push.register(PROVIDER, f"token-{people.run}")
    await here.presence.watch(first.conversation_id, [away])
    await until(lambda: here.presence.states[away].online)
    await asyncio.sleep(AWAY_S)
    await people.close(phone)
    await until(lambda: not here.presence.states[away].online)
    began_s = time.monotonic()
    missed = await here.send(b"are you there?", to_user_id=away)
    await until(lambda: receiver.requests(missed.message_id) > 0)
    requested_s = time.monotonic() - began_s
    await until(lambda: bool(receiver.outcomes(missed.message_id)))
    told_s = time.monotonic() - began_s
    back = people.client("n-bob", "n-bob")
    await back.connect()
    again = await here.send(b"welcome back", to_user_id=away)

    def look() -> str:
        counts = [receiver.requests(one.message_id) for one in (first, missed, again)]
        outcomes = receiver.outcomes(missed.message_id)
        if (counts, outcomes, receiver.forged) == ([0, 1, 0], ["sent"], 0):
            return ""
        return (
            f"requests before, while and after he was away: {counts} instead of [0, 1, 0]; "
            f"results {outcomes}; {receiver.forged} wrong signatures"
        )

    show.late.append(look)
    show.figures = (
        f"1 message to a device that was away: 1 request at the provider after {1_000 * requested_s:.0f} ms, "
        f"its result at the application's webhook after {1_000 * told_s:.0f} ms; none for the one before and "
        "the one after"
    )
    await back.push.unregister()
    for client in (here, back):
        await people.close(client)
