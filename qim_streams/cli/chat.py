"""``qim chat``: two people, or a group, talk in terminals.

Typed lines are sent at once; each shows when it is durable. Incoming lines show sender, time and seq.
What the mailbox holds of the conversation comes first; with --store only what was missed since last time.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import click

from qim_streams.cli.connect import client_of, connected, stack_options
from qim_streams.cli.connect import run as run_command
from qim_streams.cli.tail import printable
from qim_streams.client import QimClient, RebuildRequired, SendReceipt, SqliteStore, SyncFinished, SyncStarted
from qim_streams.client.discovery import StackAddress
from qim_streams.errors import AdmissionRefused, ConfigError, QimError
from qim_streams.ids import direct_conversation_id, is_text_id
from qim_streams.wire.frames import Event

HELP = "/who members  /quit end (also Ctrl-D)  /help this; everything else is sent"
LINE_BYTES_MAX = 65_536
FINISH_S = 5.0


@click.command()
@click.option("--user", required=True, help="who you are")
@click.option("--to", "to_user", help="the user to talk to")
@click.option("--group", "conversation", help="or the group")
@click.option("--device", default="terminal", show_default=True, help="device id")
@click.option(
    "--store", "store_path", type=click.Path(path_type=Path), help="file that remembers this device"
)
@click.option("--token", envvar="QIM_TOKEN", hidden=True)
@stack_options
def chat(
    user: str,
    to_user: str | None,
    conversation: str | None,
    device: str,
    store_path: Path | None,
    token: str | None,
    address: StackAddress,
) -> None:
    """Talk to a user (--to) or in a group (--group). /help shows what can be typed."""
    if (to_user is None) == (conversation is None):
        raise ConfigError("give either --to USER or --group CONVERSATION")
    for name, value in (("--user", user), ("--to", to_user), ("--group", conversation)):
        if value is not None and not is_text_id(value):
            raise ConfigError(f"{name} {value!r} is not an id; use letters, digits and . _ @ ~ -")
    store = SqliteStore(store_path) if store_path is not None else None
    client = client_of(address, user, device, token=token, first_sync="mailbox", store=store)
    place = conversation or direct_conversation_id(address.require_tenant(), user, to_user or "")
    run_command(Chat(client, user, place, to_user).run())


class Chat:
    """One terminal in one conversation; messages of others are announced with their conversation."""

    def __init__(self, client: QimClient, user: str, place: str, to_user: str | None) -> None:
        self._client, self._user, self._place, self._to_user = client, user, place, to_user
        self._syncing = True
        self._unsettled = 0
        self._settled = asyncio.Event()

    async def run(self) -> None:
        """Until /quit, the end of the input, or the end of the session."""
        listener: asyncio.Task[None] | None = None
        try:
            click.echo(f"-- connecting as {self._user} ...")
            await connected(self._client)
            listener = asyncio.create_task(self._listen())
            typing = asyncio.create_task(self._type())
            done, _ = await asyncio.wait({listener, typing}, return_when=asyncio.FIRST_COMPLETED)
            typing.cancel()
            for task in done:
                task.result()
            await self._finish()
        finally:
            if listener is not None:
                listener.cancel()
            await self._client.close()

    async def _listen(self) -> None:
        async for one in self._client.events():
            if type(one) is Event:
                self._show(one)
            elif type(one) is SyncStarted:
                self._syncing = True
            elif type(one) is SyncFinished:
                self._syncing = False
                click.echo(f"-- online. {HELP}")
            elif type(one) is RebuildRequired:
                click.echo("-- older messages may be missing here")

    def _show(self, event: Event) -> None:
        message = event.message
        here = message.conversation_id == self._place
        typed_here = message.sender_id == self._user and event.mailbox_seq < 0  # its receipt shows it
        if typed_here or (self._syncing and not here):
            return
        at = datetime.fromtimestamp(message.committed_at / 1_000).strftime("%H:%M:%S")
        where = "" if here else f" in {message.conversation_id}"
        click.echo(f"{at} #{message.conversation_seq} {message.sender_id}{where}: {printable(message.body)}")

    async def _type(self) -> None:
        async for line in _lines():
            text = line.strip()
            if text == "/quit":
                return
            if text == "/help":
                click.echo(f"-- {HELP}")
            elif text == "/who":
                await self._who()
            elif text.startswith("/"):
                click.echo(f"-- unknown command {printable(text.encode())}; {HELP}")
            elif text:
                self._send(text)

    def _send(self, text: str) -> None:
        def settled(result: SendReceipt | QimError) -> None:
            self._unsettled -= 1
            self._settled.set()
            if isinstance(result, SendReceipt):
                at = datetime.fromtimestamp(result.committed_at / 1_000).strftime("%H:%M:%S")
                click.echo(f"{at} #{result.conversation_seq} you: {printable(text.encode())}  [sent]")
            else:
                click.echo(f"-- not sent: {result}")

        to_user, place = (self._to_user, None) if self._to_user is not None else (None, self._place)
        try:
            self._client.submit(text.encode(), settled, conversation_id=place, to_user_id=to_user)
            self._unsettled += 1
        except AdmissionRefused as refusal:
            click.echo(f"-- not sent: {refusal}")

    async def _who(self) -> None:
        if self._to_user is not None:
            click.echo(f"-- {self._user} and {self._to_user}")
            return
        try:
            members = await self._client.groups.members(self._place)
        except AdmissionRefused as refusal:
            click.echo(f"-- {refusal}")
            return
        click.echo("-- " + ", ".join(f"{one.user_id} ({one.role})" for one in members))

    async def _finish(self) -> None:
        """Give what was typed last a moment to be acknowledged."""
        try:
            async with asyncio.timeout(FINISH_S):
                while self._unsettled:
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            click.echo(f"-- {self._unsettled} messages have no receipt: they may or may not have been sent")


async def _lines() -> AsyncIterator[str]:
    """Lines of standard input until its end, without a thread: Ctrl-C works at any time."""
    try:
        descriptor = sys.stdin.fileno()
        blocking = os.get_blocking(descriptor)
        source = os.fdopen(os.dup(descriptor), "rb", buffering=0)  # the transport closes what it is given
        reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, source)
    except (ValueError, OSError):  # a plain file or no file at all: read it at once
        for line in sys.stdin:
            yield line
        return
    try:
        while line_bytes := await reader.readline():
            yield line_bytes.decode("utf-8", "replace")
    except ValueError:
        raise ConfigError(f"a line is longer than {LINE_BYTES_MAX} bytes; type shorter ones") from None
    finally:
        transport.close()
        os.set_blocking(descriptor, blocking)  # the shell shares this terminal
