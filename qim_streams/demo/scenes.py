"""Four short scenes with real sockets: a direct chat, a group, a second device, an absence.

Each scene says what every reader must have, by the acts of its history, and what every reader had; the
oracle compares the two.

Spec: §3 to §7. Scenarios A1 A2 F1.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from qim_streams.client import Delivery, MemoryStore, QimClient, SendReceipt
from qim_streams.demo.people import People
from qim_streams.records import FLAG_COUNTS_UNREAD
from qim_streams.testing.oracle import (
    Act,
    Seen,
    in_order,
    no_lost_ack,
    no_phantom,
    one_per_key,
    only_members,
)
from qim_streams.wire.frames import Event

DELIVER_S = 30.0


@dataclass(slots=True)
class Scene:
    """One scene: its acts and what its readers (users, or devices of a user) saw."""

    name: str
    acts: list[Act] = field(default_factory=list)
    seen: dict[str, list[Event]] = field(default_factory=dict)  # device -> events
    users: dict[str, str] = field(default_factory=dict)  # device -> user
    complaints: list[str] = field(default_factory=list)
    last_seq: dict[str, int] = field(default_factory=dict)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def reader(self, device: str, user: str) -> Callable[[Sequence[Delivery]], None]:
        """A callback that keeps what a device shows; a device that comes back goes on."""
        events = self.seen.setdefault(device, [])
        self.users[device] = user

        def take(deliveries: Sequence[Delivery]) -> None:
            events.extend(one for one in deliveries if type(one) is Event)
            self.arrived.set()

        return take

    def joined(self, conversation_id: str, *users: str) -> None:
        """Users became members after the last message so far."""
        self._change("join", conversation_id, users)

    def left(self, conversation_id: str, *users: str) -> None:
        """Users stopped being members after the last message so far."""
        self._change("leave", conversation_id, users)

    def _change(self, kind: str, conversation_id: str, users: Sequence[str]) -> None:
        at = (conversation_id, self.last_seq.get(conversation_id, 0))
        self.acts.extend(Act(kind, at, user) for user in users)

    def sent(self, user: str, body: bytes, receipt: SendReceipt) -> None:
        """A message was acknowledged."""
        place = (receipt.conversation_id, receipt.conversation_seq)
        self.last_seq[place[0]] = max(place[1], self.last_seq.get(place[0], 0))
        self.acts.append(Act("send", place, user, body.decode(), receipt.message_id))

    async def delivered(self, counts: dict[str, int]) -> None:
        """Wait until devices have shown so many events; what is missing then, the oracle says."""
        try:
            async with asyncio.timeout(DELIVER_S):
                while any(len(self.seen[device]) < count for device, count in counts.items()):
                    self.arrived.clear()
                    await self.arrived.wait()
        except TimeoutError:
            self.complaints.append(f"not delivered within {DELIVER_S:.0f} s")

    def judge(self) -> "Judgement":
        """What the oracle says, by device: each device of a user must have his whole mailbox."""
        result = Judgement(texts=list(self.complaints))
        for device, events in self.seen.items():
            user = self.users[device]
            acts = [act for act in self.acts if act.kind == "send" or act.user_id == user]
            seen = [_seen(user, one) for one in events]
            lost = no_lost_ack(acts, seen, ())
            duplicated = one_per_key(acts, seen, ())
            reordered = in_order(acts, seen, ())
            others = no_phantom(acts, seen, ()) + only_members(acts, seen, ())
            unread = [
                one for one in events if one.message.sender_id == user and one.flags & FLAG_COUNTS_UNREAD
            ]
            others += [f"own message #{one.message.conversation_seq} counts as unread" for one in unread]
            result.lost += len(lost)
            result.duplicated += len(duplicated)
            result.reordered += len(reordered)
            result.texts += [f"{device}: {text}" for text in lost + duplicated + reordered + others]
        return result

    @property
    def messages(self) -> int:
        """How many messages were acknowledged."""
        return sum(act.kind == "send" for act in self.acts)

    @property
    def shown(self) -> int:
        """How many events the devices have shown together."""
        return sum(map(len, self.seen.values()))


@dataclass(slots=True)
class Judgement:
    """Counts of a scene, and a sentence for everything that is wrong."""

    lost: int = 0
    duplicated: int = 0
    reordered: int = 0
    texts: list[str] = field(default_factory=list)


def _seen(reader: str, event: Event) -> Seen:
    """The oracle's form of an event. Order is that of the conversation: own messages are shown by their
    ack, before their place in the mailbox is known."""
    message = event.message
    place = (message.conversation_id, message.conversation_seq)
    at = (message.conversation_seq, event.event_ordinal)
    return Seen(
        reader, at, event.event_id, place, message.message_id, message.sender_id, message.body.decode()
    )


async def _send(scene: Scene, client: QimClient, user: str, body: bytes, **to: Any) -> SendReceipt:
    receipt = await client.send(body, timeout_s=DELIVER_S, **to)
    scene.sent(user, body, receipt)
    return receipt


async def direct_chat(people: People) -> Scene:
    """Two people who are both there talk."""
    scene = Scene("direct chat")
    ann, bob = people.user("ann"), people.user("bob")
    hers = people.client("ann", "ann-phone", scene.reader("ann-phone", ann))
    his = people.client("bob", "bob-phone", scene.reader("bob-phone", bob))
    await asyncio.gather(hers.connect(), his.connect())
    receipt = await hers.send(b"direct 0", to_user_id=bob, timeout_s=DELIVER_S)
    scene.joined(receipt.conversation_id, ann, bob)
    scene.sent(ann, b"direct 0", receipt)
    for number in range(1, 20):
        client, user, other = (his, bob, ann) if number % 2 else (hers, ann, bob)
        await _send(scene, client, user, f"direct {number}".encode(), to_user_id=other)
    await scene.delivered({"ann-phone": 20, "bob-phone": 20})
    await asyncio.gather(people.close(hers), people.close(his))
    return scene


async def group_chat(people: People) -> Scene:
    """A group of five: one leaves, one comes later, each has exactly the messages of his time."""
    scene = Scene("group")
    names = ["g-ann", "g-bob", "g-cid", "g-dee", "g-eve"]
    users = {name: people.user(name) for name in names}
    clients = {name: people.client(name, name, scene.reader(name, users[name])) for name in names}
    await asyncio.gather(*(client.connect() for client in clients.values()))
    host = clients["g-ann"].groups
    room = f"scene.{people.run}"
    await host.create([users[name] for name in names[1:4]], conversation_id=room, name="scene")
    scene.joined(room, *(users[name] for name in names[:4]))

    async def say(what: str, speakers: Sequence[str]) -> None:
        for number in range(8):
            name = speakers[number % len(speakers)]
            body = f"{what} {number}".encode()
            await _send(scene, clients[name], users[name], body, conversation_id=room)

    await say("four of us", names[:4])
    await clients["g-dee"].groups.leave(room)
    scene.left(room, users["g-dee"])
    await say("three of us", names[:3])
    await host.add(room, [users["g-eve"]])
    scene.joined(room, users["g-eve"])
    await say("with eve", [*names[:3], "g-eve"])
    await scene.delivered({"g-ann": 24, "g-bob": 24, "g-cid": 24, "g-dee": 8, "g-eve": 8})
    await asyncio.gather(*(people.close(client) for client in clients.values()))
    return scene


async def second_device(people: People) -> Scene:
    """What is written on one device shows on the other, once, and does not count as unread."""
    scene = Scene("second device")
    fay, gus = people.user("fay"), people.user("gus")
    phone = people.client("fay", "fay-phone", scene.reader("fay-phone", fay))
    desk = people.client("fay", "fay-desk", scene.reader("fay-desk", fay))
    other = people.client("gus", "gus-phone", scene.reader("gus-phone", gus))
    await asyncio.gather(phone.connect(), desk.connect(), other.connect())
    first = await phone.send(b"phone 0", to_user_id=gus, timeout_s=DELIVER_S)
    scene.joined(first.conversation_id, fay, gus)
    scene.sent(fay, b"phone 0", first)
    for number in range(1, 6):
        await _send(scene, phone, fay, f"phone {number}".encode(), to_user_id=gus)
        await _send(scene, other, gus, f"answer {number}".encode(), to_user_id=fay)
        await _send(scene, desk, fay, f"desk {number}".encode(), to_user_id=gus)
    await scene.delivered({"fay-phone": 16, "fay-desk": 16, "gus-phone": 16})
    await asyncio.gather(*(people.close(client) for client in (phone, desk, other)))
    return scene


async def absence(people: People) -> Scene:
    """Somebody goes away, misses fifty messages, comes back with his cursor and has all of them once."""
    scene = Scene("absence")
    hal, ida = people.user("hal"), people.user("ida")
    store = MemoryStore()
    away = people.client("hal", "hal-phone", scene.reader("hal-phone", hal), store=store)
    here = people.client("ida", "ida-phone", scene.reader("ida-phone", ida))
    await asyncio.gather(away.connect(), here.connect())
    first = await here.send(b"here 0", to_user_id=hal, timeout_s=DELIVER_S)
    scene.joined(first.conversation_id, hal, ida)
    scene.sent(ida, b"here 0", first)
    await scene.delivered({"hal-phone": 1})
    await people.close(away)
    for number in range(1, 51):
        await _send(scene, here, ida, f"missed {number}".encode(), to_user_id=hal)
    back = people.client("hal", "hal-phone", scene.reader("hal-phone", hal), store=store)
    await back.connect()
    await _send(scene, here, ida, b"welcome back", to_user_id=hal)
    await scene.delivered({"hal-phone": 52, "ida-phone": 52})
    await asyncio.gather(people.close(back), people.close(here))
    return scene


SCENES: tuple[Callable[[People], Awaitable[Scene]], ...] = (direct_chat, group_chat, second_device, absence)
