"""What ``qim chat`` offers beside its conversation: a chat room, one at a time, and who is online.

Lines of the room begin with its name in brackets. Whoever was asked about once is told about from then on.

Spec: §6 (presence), §10 (rooms).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime

import click

from qim_streams import limits
from qim_streams.cli.room import line_of
from qim_streams.client import QimClient
from qim_streams.client.rooms import ClientRoom
from qim_streams.errors import AdmissionRefused, ClientStopped
from qim_streams.ids import is_text_id
from qim_streams.wire.frames_presence import UserPresence

ANSWER_S = 15.0
HELP = (
    "/open-room ROOM make a chat room and enter it  /join-room ROOM enter one  /say-room TEXT say it there  "
    "/leave-room",
    "/seen who of this conversation is online, and from then on who comes and goes  /hide be offline to "
    "everybody  /show be seen again",
)
People = Callable[[], Awaitable[Sequence[str]]]
Command = Callable[[str], Awaitable[None]]


class Beside:
    """Commands of one chat. `others`: the users of its conversation but its own one."""

    def __init__(self, client: QimClient, place: str, others: People) -> None:
        self._client, self._place, self._others = client, place, others
        self._room: ClientRoom | None = None
        self._listener: asyncio.Task[None] | None = None
        self._commands: Mapping[str, Command] = {
            "/open-room": self._open,
            "/join-room": self._join,
            "/say-room": self._say,
            "/leave-room": self._leave,
            "/seen": self._seen,
            "/hide": lambda _: self._be_visible(False),
            "/show": lambda _: self._be_visible(True),
        }

    async def run(self, text: str) -> bool:
        """Carry out a typed line; False when it is none of these commands."""
        word, _, rest = text.partition(" ")
        command = self._commands.get(word)
        if command is None:
            return False
        try:
            async with asyncio.timeout(ANSWER_S):
                await command(rest.strip())
        except AdmissionRefused as refusal:
            click.echo(f"-- refused: {refusal}")
        except TimeoutError:
            click.echo("-- no answer: it may or may not have been done")
        return True

    async def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])

    # -- a chat room

    async def _open(self, room_id: str) -> None:
        if _is_id(room_id):
            await self._client.rooms.create(room_id)
            await self._join(room_id)

    async def _join(self, room_id: str) -> None:
        if not _is_id(room_id):
            return
        if self._room is not None and self._room.room_id != room_id:
            await self._leave("")
        if self._room is None:
            self._room = room = await self._client.rooms.join(room_id, timeout_s=ANSWER_S)
            self._listener = asyncio.create_task(self._listen(room))

    async def _say(self, text: str) -> None:
        if self._room is None:
            click.echo("-- in no room; /join-room ROOM enters one")
        elif text:
            await self._room.send(text.encode(), timeout_s=ANSWER_S)

    async def _leave(self, _: str) -> None:
        room, listener = self._room, self._listener
        if room is None or listener is None:
            click.echo("-- in no room")
            return
        await room.leave()
        await asyncio.wait([listener])  # it shows what came until now

    async def _listen(self, room: ClientRoom) -> None:
        with contextlib.suppress(ClientStopped):  # the chat itself says why
            async for one in room.events():
                click.echo(f"[{room.room_id}] {line_of(one)}")
        if self._room is room:
            self._room = None

    # -- presence

    async def _seen(self, _: str) -> None:
        people = list(await self._others())[: limits.PRESENCE_WATCH_MAX]
        self._client.presence.on_change = _show
        _show(await self._client.presence.watch(self._place, people))

    async def _be_visible(self, visible: bool) -> None:
        await self._client.presence.set_visible(visible)
        click.echo("-- you are seen" if visible else "-- you are offline to everybody")


def _is_id(room_id: str) -> bool:
    if is_text_id(room_id):
        return True
    click.echo("-- name a room: letters, digits and . _ @ ~ -")
    return False


def _show(states: Sequence[UserPresence]) -> None:
    for one in states:
        if one.online:
            said = "is online"
        elif one.last_seen_ms is None:
            said = "was never seen"
        else:
            said = f"was last seen {datetime.fromtimestamp(one.last_seen_ms / 1_000):%d %b %H:%M:%S}"
        click.echo(f"-- {one.user_id} {said}")
