"""``qim room``: create, govern and close rooms, talk and listen; each command as one user."""

import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from qim_streams.cli.connect import client_of, connected, run, stack_options, token_option
from qim_streams.cli.tail import printable
from qim_streams.client import QimClient
from qim_streams.client.discovery import StackAddress
from qim_streams.client.room_tracker import Ended, Entered, Happened, Lost, NewEpoch, RoomDelivery, Said
from qim_streams.wire.frames_rooms import ACTIONS, RoomState

DEVICE = "cli-room"
T = TypeVar("T")


@click.group()
def room() -> None:
    """Chat rooms: fast, and kept nowhere. Every command acts as --user."""


def _acts(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command: who acts, and which stack."""
    command = stack_options(command)
    command = token_option(command)
    return click.option("--user", required=True, help="who acts")(command)


def _do(address: StackAddress, user: str, token: str | None, call: Callable[[QimClient], Awaitable[T]]) -> T:
    async def body() -> T:
        client = client_of(address, user, DEVICE, token=token)
        try:
            await connected(client)
            return await call(client)
        finally:
            await client.close()

    return run(body())


def _show(state: RoomState) -> None:
    ended = ", closed" if state.closed else ", muted" if state.muted_all else ""
    click.echo(
        f"{state.room_id} {state.name!r}: {state.join_policy}, owner {state.owner_id or 'the operator'}, "
        f"{state.room_seq} messages{ended}"
    )


@room.command()
@click.argument("room_id", metavar="ROOM")
@click.option("--name", default="", help="for people")
@click.option("--join-policy", type=click.Choice(["open", "members"]), default="open", help="who may enter")
@_acts
def create(
    room_id: str, name: str, join_policy: str, user: str, token: str | None, address: StackAddress
) -> None:
    """Make a room; --user becomes its owner."""
    _show(
        _do(
            address,
            user,
            token,
            lambda client: client.rooms.create(room_id, name=name, join_policy=join_policy),
        )
    )


@room.command()
@click.argument("room_id", metavar="ROOM")
@click.argument("text")
@_acts
def send(room_id: str, text: str, user: str, token: str | None, address: StackAddress) -> None:
    """Say TEXT in a room; prints its number."""

    async def say(client: QimClient) -> int:
        entered = await client.rooms.join(room_id, replay=0)
        return (await entered.send(text.encode())).room_seq

    click.echo(f"{room_id} {_do(address, user, token, say)}")


@room.command()
@click.argument("room_id", metavar="ROOM")
@click.option("--replay", type=click.IntRange(0, 200), default=50, help="messages to show first")
@click.option("--count", type=click.IntRange(1), help="stop after so many messages")
@_acts
def tail(
    room_id: str, replay: int, count: int | None, user: str, token: str | None, address: StackAddress
) -> None:
    """Print what is said in a room, until it ends or Ctrl-C."""

    async def listen(client: QimClient) -> None:
        entered = await client.rooms.join(room_id, replay=replay)
        left = count if count is not None else sys.maxsize
        async for one in entered.events():
            click.echo(line_of(one))
            left -= isinstance(one, Said)
            if left <= 0:
                return

    _do(address, user, token, listen)


@room.command()
@click.argument("room_id", metavar="ROOM")
@click.argument("action", type=click.Choice([action for action in ACTIONS if action != "close"]))
@click.argument("whom", metavar="USER", required=False, default="")
@click.option("--seconds", type=click.IntRange(0), default=0, help="how long; 0: see the protocol")
@click.option("--text", default="", help="of an announcement")
@_acts
def control(
    room_id: str,
    action: str,
    whom: str,
    seconds: int,
    text: str,
    user: str,
    token: str | None,
    address: StackAddress,
) -> None:
    """Govern a room: mute USER, kick USER, announce --text ..., ..."""
    _show(
        _do(
            address,
            user,
            token,
            lambda client: client.rooms.control(
                room_id, action, user_id=whom, seconds=seconds, text=text.encode()
            ),
        )
    )


@room.command()
@click.argument("room_id", metavar="ROOM")
@_acts
def close(room_id: str, user: str, token: str | None, address: StackAddress) -> None:
    """End a room for everybody, for good."""
    _show(_do(address, user, token, lambda client: client.rooms.control(room_id, "close")))


def line_of(one: RoomDelivery) -> str:
    """A line for what happened."""
    match one:
        case Said(_, message):
            return f"{message.room_seq} {message.sender_id}: {printable(message.body)}"
        case Lost(_, first, last, reason):
            return f"-- {first} to {last} are lost ({reason})"
        case NewEpoch(_, restarted):
            return "-- the room was made anew" if restarted else "-- another process writes the room"
        case Entered(joined, again):
            return f"-- {'back in' if again else 'in'} {joined.room_id}, {joined.member_count} here"
        case Happened(event):
            text = f": {printable(event.text)}" if event.text else ""
            about = f" {event.user_id}" if event.user_id else ""
            count = f" {event.member_count}" if event.member_count is not None else ""
            return f"-- {event.event}{about}{count}{text}"
        case Ended(code, detail):
            return f"-- {detail or code or 'left'}"
