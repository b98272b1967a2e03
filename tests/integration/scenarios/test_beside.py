"""What demonstration and chat in a terminal show of rooms and presence, on a real stack (Spec: §6, §10)."""

import asyncio
import secrets

import pytest
from click.testing import CliRunner

from qim_streams.cli import main
from qim_streams.client.room_tracker import Said
from qim_streams.demo.people import People
from qim_streams.demo.shows import chat_room, presence
from tests.integration.scenarios.conftest import Cast

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]


async def test_the_scenes_of_the_demonstration(cast: Cast) -> None:
    address = cast.stack.address()
    async with People(address.require_url(), address.token, cast.run) as people:
        played = await asyncio.gather(chat_room(people), presence(people))
    assert [(one.state, one.complaints) for one in played] == [("ok", []), ("ok", [])]
    room, seen = (one.line for one in played)
    # Three were there from the beginning, the fourth was shown the last five and one more.
    assert "4 people, 19 messages, 63 shown, room_seq 1 to 19 without a gap" in room
    assert "came, hid, showed himself and went" in seen


async def test_rooms_and_presence_in_a_chat(cast: Cast) -> None:
    """Typed in a terminal: who is online, a room that is made, entered and left; a refusal is a line."""
    ann, ben = cast.people("ann", "ben")
    friend, room_id = await ben.online(), f"r.{secrets.token_hex(6)}"
    await friend.send(b"hello", to_user_id=ann.user_id)
    await friend.rooms.create(room_id)
    inside = await friend.rooms.join(room_id)
    await inside.send(b"who is there? \x1b[31m")
    typed = (
        "/seen", "/hide", "/show", "/say-room not yet", "/leave-room", "/join-room no/id",
        "/join-room r.nowhere", f"/join-room {room_id}", "/say-room me", "/leave-room",
        f"/open-room {room_id}x", "/say-room alone",
        f"/join-room {room_id}", "/nonsense", "/help", "/quit",
    )  # fmt: skip
    options = ["--user", ann.user_id, "--to", ben.user_id, "--store", "memory"]
    where = ["--state-dir", str(cast.stack.state_dir)]
    done = await asyncio.to_thread(
        CliRunner().invoke, main, ["chat", *options, *where], input="\n".join(typed) + "\n"
    )
    assert done.exit_code == 0, done.output
    for line in (
        f"-- {ben.user_id} is online",
        "-- you are offline to everybody",
        "-- you are seen",
        "-- in no room; /join-room ROOM enters one",
        "-- in no room",
        "-- name a room: ",
        "-- refused: NO_ROOM",
        f"[{room_id}] -- in {room_id}, ",
        f"[{room_id}] 1 {ben.user_id}: who is there? \N{REPLACEMENT CHARACTER}[31m",
        f"[{room_id}x] -- in {room_id}x, ",
        "-- unknown command /nonsense",
        "-- /open-room ROOM make a chat room and enter it",
    ):
        assert line in done.output, (line, done.output)
    async with asyncio.timeout(60):
        async for one in inside.events():
            if isinstance(one, Said) and one.message.body == b"me":
                break
    assert "\x1b" not in done.output
    helped = await asyncio.to_thread(CliRunner().invoke, main, ["chat", "--help"])
    assert all(
        word in helped.output for word in ("/join-room ROOM", "/say-room TEXT", "/leave-room", "/seen")
    )
