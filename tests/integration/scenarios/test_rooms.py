"""Rooms through real processes: SDK, both encodings, admin API, command line, and what is NOT written.

Scenarios J2 J5; Spec: §10.
"""

import asyncio
import secrets
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
import redis
from click.testing import CliRunner

from qim_streams.cli.room import room
from qim_streams.client import QimClient
from qim_streams.client.room_tracker import Ended, Entered, Happened, Lost, RoomDelivery, Said
from qim_streams.client.rooms import ClientRoom
from qim_streams.errors import AdmissionRefused, ClientStopped
from tests.integration.scenarios.conftest import Cast
from tests.support.logs import ends
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
QUIET_TOPICS = ("qim.outbox.v1", "qim.dispatch.v1", "qim.push-task.v1")


class Listener:
    """Takes what a room gives."""

    def __init__(self, room: ClientRoom) -> None:
        self.room, self.got = room, list[RoomDelivery]()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        with suppress(ClientStopped):  # the test has ended
            async for one in self.room.events():
                self.got.append(one)

    @property
    def said(self) -> list[bytes]:
        """The bodies that came."""
        return [one.message.body for one in self.got if isinstance(one, Said)]

    @property
    def happened(self) -> list[str]:
        """The events that came, without counts."""
        return [e.event.event for e in self.got if isinstance(e, Happened) and e.event.event != "members"]


async def in_room(client: QimClient, room_id: str, **options: Any) -> Listener:
    """A client enters."""
    return Listener(await client.rooms.join(room_id, **options))


async def test_a_room_from_its_creation_to_its_end(cast: Cast) -> None:
    """Two users and a third encoding; the past is shown, a mute holds, the close reaches everybody."""
    ann, ben = cast.person("ann"), cast.person("ben")
    owner, guest = await ann.online(), await ben.online()
    room_id = f"r.{secrets.token_hex(6)}"
    state = await owner.rooms.create(room_id, name="Lobby")
    assert (state.owner_id, state.room_seq, state.closed) == (ann.user_id, 0, False)
    with pytest.raises(AdmissionRefused, match="NO_ROOM"):
        await guest.rooms.join("r.nowhere")
    heard = await in_room(owner, room_id)
    for number in range(5):
        ack = await heard.room.send(b"m%d" % number)
    assert ack.room_seq == 5
    await eventually(lambda: len(heard.said) == 5, 60, "the owner's own")
    late = await in_room(guest, room_id, replay=3)
    await eventually(lambda: late.said == [b"m2", b"m3", b"m4"], 60, "what was said before")
    await late.room.send(b"hello")
    await eventually(lambda: heard.said[-1:] == late.said[-1:] == [b"hello"], 60, "the guest")
    await owner.rooms.control(room_id, "mute", user_id=ben.user_id, seconds=600)
    with pytest.raises(AdmissionRefused, match="MUTED"):
        await late.room.send(b"x")
    with pytest.raises(AdmissionRefused, match="NOT_ALLOWED"):
        await guest.rooms.control(room_id, "close")
    await owner.rooms.control(room_id, "announce", text=b"we close")
    await owner.rooms.control(room_id, "close")
    for one in (heard, late):
        await eventually(one.task.done, 60, "the end")
        assert one.happened == ["mute", "announce", "close"]
        assert isinstance(one.got[0], Entered)
        assert isinstance(one.got[-1], Ended)
        assert not [gap for gap in one.got if isinstance(gap, Lost)]
    with pytest.raises(AdmissionRefused, match="ROOM_CLOSED"):
        await guest.rooms.join(room_id)


async def test_j5_a_room_leaves_no_trace(cast: Cast) -> None:
    """J5: no Outbox, dispatch or push record, no mailbox entry, no row, no unread, whatever is said."""
    stack = cast.stack
    brokers, server = stack.client["brokers"], redis.Redis.from_url(stack.client["redis_url"])
    people = [cast.person(f"v{number}") for number in range(3)]
    clients = [await one.online() for one in people]
    room_id = f"r.{secrets.token_hex(6)}"
    await clients[0].rooms.create(room_id)

    def written() -> tuple[dict[str, Any], int, int]:
        mailboxes = [key for tag in ("s", "q") for key in server.scan_iter(f"{{{tag}:*", 1_000)]
        return (
            {topic: ends(brokers, topic) for topic in QUIET_TOPICS},
            sum(server.xlen(key) for key in mailboxes if b":mb:" in key),
            len([key for key in mailboxes if b":convs:" in key or b":uc:" in key]),
        )

    before = await asyncio.to_thread(written)
    heard = [await in_room(one, room_id) for one in clients]
    for number in range(60):
        await heard[number % 3].room.send(b"m%d" % number)
    for one in heard:
        await eventually(lambda one=one: len(one.said) == 60, 60, "all messages")
        assert one.said == [b"m%d" % number for number in range(60)]
    assert await asyncio.to_thread(written) == before
    assert not await clients[1].sessions.load()
    for one in people:
        assert not one.shown
    for one in heard:
        await one.room.leave()
        await eventually(one.task.done, 60, "the end")
    server.close()


async def test_the_operator_governs_rooms_by_http(cast: Cast) -> None:
    """Create, list, count, kick and close; members hear of it."""
    address = cast.stack.address()
    base = f"{address.admin_url}/v1/tenants/{address.require_tenant()}/rooms"
    room_id = f"r.{secrets.token_hex(6)}"
    ben = cast.person("ben")
    guest = await ben.online()
    async with aiohttp.ClientSession(headers={"X-Api-Key": address.admin_api_key}) as http:
        made = await (await http.post(base, json={"room_id": room_id, "name": "n"})).json()
        assert (made["owner"], made["room_seq"]) == (None, 0)
        heard = await in_room(guest, room_id)
        await heard.room.send(b"hi")
        await eventually(lambda: heard.said == [b"hi"], 60, "the message")

        async def count() -> bool:
            return bool((await (await http.get(f"{base}/{room_id}")).json())["member_count"] == 1)

        await eventually(count, 60, "the count")
        before = room_id[:-1]
        listed = await (await http.get(base, params={"after_room_id": before, "limit": 1})).json()
        assert listed["room_ids"] == [room_id]
        said = {"action": "kick", "user_id": ben.user_id, "seconds": 60}
        assert (await http.post(f"{base}/{room_id}/actions", json=said)).status == 200
        await eventually(heard.task.done, 60, "out")
        assert isinstance(heard.got[-1], Ended)
        assert heard.got[-1].code == "BANNED"
        assert (await (await http.delete(f"{base}/{room_id}")).json())["closed"]
        assert (await http.get(f"{base}/nowhere")).status == 404
        listed = await (await http.get(base, params={"after_room_id": before, "limit": 1})).json()
        assert listed["room_ids"] != [room_id]


async def test_rooms_on_the_command_line(cast: Cast) -> None:
    """``qim room create``, ``send``, ``tail``, ``close``."""
    room_id = f"r.{secrets.token_hex(6)}"

    def qim(*words: str) -> str:
        options = ["--user", "cli-ann", "--state-dir", str(cast.stack.state_dir)]
        done = CliRunner().invoke(room, [*words, *options])
        assert done.exit_code == 0, done.output
        return done.output

    assert "owner cli-ann, 0 messages" in await asyncio.to_thread(qim, "create", room_id)
    assert await asyncio.to_thread(qim, "send", room_id, "hi all") == f"{room_id} 1\n"
    assert "1 cli-ann: hi all" in await asyncio.to_thread(qim, "tail", room_id, "--count", "1")
    assert "closed" in await asyncio.to_thread(qim, "close", room_id)
