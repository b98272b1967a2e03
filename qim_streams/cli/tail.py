"""``qim tail``: a user's messages as they arrive."""

import json
from datetime import datetime

import click

from qim_streams.cli.connect import client_of, connected, run, stack_options, token_option
from qim_streams.client import (
    Delivery,
    MessageEdited,
    MessageRecalled,
    QimClient,
    RebuildRequired,
    SyncFinished,
)
from qim_streams.client.discovery import StackAddress
from qim_streams.records import KIND_MESSAGE, STATE_EDITED, STATE_RECALLED
from qim_streams.wire.frames import Event, Message
from qim_streams.wire.schema import Schema

_EVENT = Schema(Event)


@click.command()
@click.option("--user", required=True, help="whose messages")
@click.option("--device", default="cli-tail", show_default=True, help="device id")
@click.option("--from-start", is_flag=True, help="first everything that the mailbox still holds")
@click.option("--count", type=click.IntRange(0), default=0, help="stop after so many messages; 0 = never")
@click.option("--json", "as_json", is_flag=True, help="one JSON object per message")
@token_option
@stack_options
def tail(
    user: str,
    device: str,
    from_start: bool,
    count: int,
    as_json: bool,
    token: str | None,
    address: StackAddress,
) -> None:
    """Print the messages of a user, each once, in order per conversation, until Ctrl-C."""
    first_sync = "mailbox" if from_start else "now"
    client = client_of(address, user, device, token=token, first_sync=first_sync)
    run(_tail(client, count, as_json))


async def _tail(client: QimClient, count: int, as_json: bool) -> None:
    shown = 0
    try:
        await connected(client)
        async for one in client.events():
            line = _line(one, as_json)
            if line is not None:
                click.echo(line)
            shown += isinstance(one, Event | MessageEdited | MessageRecalled)
            if count and shown >= count:
                return
    finally:
        await client.close()


def _line(one: Delivery, as_json: bool) -> str | None:
    if type(one) is Event:
        return json.dumps(_EVENT.plain_text(one), ensure_ascii=False) if as_json else event_line(one)
    if isinstance(one, MessageEdited | MessageRecalled):
        return _line(one.event, as_json)
    if as_json:
        return None
    if type(one) is SyncFinished:
        return "-- online"
    if type(one) is RebuildRequired:
        return "-- older messages may be missing here: the mailbox no longer reaches back far enough"
    return None


def event_line(event: Event) -> str:
    """One line of a terminal: local time, sender, text, conversation and seq."""
    return message_line(event.message)


def message_line(message: Message) -> str:
    """See `event_line`."""
    at = datetime.fromtimestamp(message.committed_at / 1_000).strftime("%H:%M:%S")
    place = f"{message.conversation_id} #{message.conversation_seq}"
    return f"{at} {message.sender_id}: {message_text(message)}  [{place}]"


def message_text(message: Message) -> str:
    """What a line says of a message: its body and state; of an edit or recall, what it changes."""
    body = printable(message.body)
    if message.kind == KIND_MESSAGE:
        return {STATE_EDITED: f"{body} (edited)", STATE_RECALLED: "(recalled)"}.get(message.state, body)
    if message.state == STATE_RECALLED:
        return f"(recalled #{message.target_seq})"
    return f"(edited #{message.target_seq}: {body})"


def printable(body: bytes) -> str:
    """The body as text that cannot move the cursor, ring or recolour a terminal."""
    text = body.decode("utf-8", "replace")
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
