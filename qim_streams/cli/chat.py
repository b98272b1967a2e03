"""``qim chat``: two people, or a group, talk in terminals.

Typed lines are kept in the store and sent as soon as that is possible, also by the next ``qim chat``;
each shows when it is durable. Incoming lines show sender, time and seq. The store is a file per stack,
user and device; with ``--store memory`` the device is forgotten at the end.
"""

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import click
from blake3 import blake3

from qim_streams.cli.chat_beside import HELP as BESIDE
from qim_streams.cli.chat_beside import Beside
from qim_streams.cli.connect import client_of, connected, stack_options, token_option
from qim_streams.cli.connect import run as run_command
from qim_streams.cli.tail import message_text, printable
from qim_streams.client import (
    Delivery,
    Disconnected,
    LocalStore,
    MemoryStore,
    MessageEdited,
    MessageRecalled,
    QimClient,
    RebuildFinished,
    RebuildRequired,
    SendFailed,
    SqliteStore,
    SyncFinished,
    SyncStarted,
)
from qim_streams.client.discovery import StackAddress
from qim_streams.errors import AdmissionRefused, ConfigError
from qim_streams.ids import direct_conversation_id, is_text_id
from qim_streams.records import KIND_MESSAGE
from qim_streams.wire.frames import Event

HELP = (
    "/edit N TEXT, /recall N change message N  /who members  /quit end (also Ctrl-D)  /help this",
    *BESIDE,
    "everything else is sent",
)
ONLINE = "/help lists what can be typed beside messages"
CHANGE_S = 15.0
LINE_BYTES_MAX = 65_536
FINISH_S = 5.0
FINISH_STEP_S = 0.02
EARLIER = 10  # kept messages that are shown at the start
IN_MEMORY = "memory"


@click.command()
@click.option("--user", required=True, help="who you are")
@click.option("--to", "to_user", help="the user to talk to")
@click.option("--group", "conversation", help="or the group")
@click.option("--device", default="terminal", show_default=True, help="device id")
@click.option(
    "--store",
    metavar="FILE",
    help="what remembers this device: a file, or memory; default: a file beside the stack's state",
)
@token_option
@stack_options
def chat(
    user: str,
    to_user: str | None,
    conversation: str | None,
    device: str,
    store: str | None,
    token: str | None,
    address: StackAddress,
) -> None:
    """Talk to a user (--to) or in a group (--group). What is typed is sent, but for these:

    \b
    /edit N TEXT      change message N of yours
    /recall N         take it back
    /who              members
    /open-room ROOM   make a chat room and enter it; its lines begin with [ROOM]
    /join-room ROOM   enter one
    /say-room TEXT    say it there
    /leave-room
    /seen             who of this conversation is online, and from then on who comes and goes
    /hide, /show      be offline to everybody; be seen again
    /help, /quit      (or Ctrl-D)
    """
    if (to_user is None) == (conversation is None):
        raise ConfigError("give either --to USER or --group CONVERSATION")
    for name, value in (("--user", user), ("--to", to_user), ("--group", conversation)):
        if value is not None and not is_text_id(value):
            raise ConfigError(f"{name} {value!r} is not an id; use letters, digits and . _ @ ~ -")
    kept = open_store(store, address, user, device)
    client = client_of(address, user, device, token=token, first_sync="mailbox", store=kept)
    place = conversation or direct_conversation_id(address.require_tenant(), user, to_user or "")
    run_command(Chat(client, kept, user, place, to_user).run())


def open_store(wanted: str | None, address: StackAddress, user: str, device: str) -> LocalStore:
    """The store that --store names, or the usual file. ConfigError names the file that cannot be used.

    The usual file belongs to one stack: a new stack begins its numbers anew, and what is kept of an old
    one would hide the new messages.
    """
    if wanted == IN_MEMORY:
        return MemoryStore()
    if wanted is not None:
        return SqliteStore(Path(wanted))
    if address.home:
        directory = Path(address.home) / "chat"
    else:
        directory = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "qim" / "chat"
    identity = "\0".join((address.gateway_url, address.tenant, user, device))
    name = f"{user[:40]}.{device[:40]}.{blake3(identity.encode()).hexdigest(8)}.db"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"{directory}: {error}; give --store FILE, or --store memory") from None
    return SqliteStore(directory / name)


class Chat:
    """One terminal in one conversation; messages of others are announced with their conversation."""

    def __init__(
        self, client: QimClient, store: LocalStore, user: str, place: str, to_user: str | None
    ) -> None:
        self._client, self._store, self._user, self._place = client, store, user, place
        self._to_user = to_user
        self._syncing = True
        self._printed: set[bytes] = set()  # of the earlier messages
        self._texts: dict[str, str] = {}  # typed here, not settled
        self._beside = Beside(client, place, self._others)

    async def run(self) -> None:
        """Until /quit, the end of the input, or the end of the session."""
        listener: asyncio.Task[None] | None = None
        try:
            self._show_earlier()
            click.echo(f"-- connecting as {self._user} ...")
            self._client.start()
            listener = asyncio.create_task(self._listen())
            await connected(self._client)
            typing = asyncio.create_task(self._type())
            done, _ = await asyncio.wait({listener, typing}, return_when=asyncio.FIRST_COMPLETED)
            typing.cancel()
            for task in done:
                task.result()
            await self._finish()
        finally:
            if listener is not None:
                listener.cancel()
            await self._beside.close()
            await self._client.close()

    def _show_earlier(self) -> None:
        for event in self._store.messages(self._place, EARLIER):
            self._printed.add(event.event_id)
            if event.message.kind == KIND_MESSAGE:
                self._show(event)
        if self._client.unsent:
            click.echo(f"-- {self._client.unsent} messages of last time wait to be sent")

    async def _listen(self) -> None:
        async for one in self._client.events():
            if isinstance(one, MessageEdited | MessageRecalled):
                self._show_change(one)
            elif type(one) is not Event:
                self._mark(one)
            elif one.event_id not in self._printed and one.message.kind == KIND_MESSAGE:
                self._show(one)

    def _mark(self, one: Delivery) -> None:
        if isinstance(one, SyncStarted):
            self._syncing = True
            if one.pending_entry_count_hint:
                click.echo(f"-- syncing: about {one.pending_entry_count_hint} messages came meanwhile")
        elif isinstance(one, SyncFinished):
            self._syncing = False
            click.echo(f"-- online. {ONLINE}")
        elif isinstance(one, Disconnected):
            click.echo(f"-- not connected ({one.reason}); trying again. What you type is kept.")
        elif isinstance(one, RebuildRequired):
            click.echo("-- away for too long: missed messages are read from history")
        elif isinstance(one, RebuildFinished):
            for gap in one.gaps:
                click.echo(
                    f"-- {gap.conversation_id}: messages after #{gap.after_seq} may be missing ({gap.reason})"
                )
        elif isinstance(one, SendFailed):
            text = self._texts.pop(one.client_message_id, one.client_message_id)
            click.echo(f"-- not sent: {printable(text.encode())} ({one.code}: {one.detail})")

    def _show(self, event: Event) -> None:
        message = event.message
        here = message.conversation_id == self._place
        if self._syncing and not here:
            return
        at = datetime.fromtimestamp(message.committed_at / 1_000).strftime("%H:%M:%S")
        mine = message.sender_id == self._user
        who = "you" if mine else message.sender_id
        where = "" if here else f" in {message.conversation_id}"
        sent = "  [sent]" if mine else ""
        self._texts.pop(event.client_message_id or "", None)
        click.echo(f"{at} #{message.conversation_seq} {who}{where}: {message_text(message)}{sent}")

    def _show_change(self, one: MessageEdited | MessageRecalled) -> None:
        here = one.conversation_id == self._place
        if self._syncing and not here:
            return
        who = "you" if one.by_user_id == self._user else one.by_user_id
        where = "" if here else f" in {one.conversation_id}"
        if isinstance(one, MessageEdited):
            click.echo(f"-- {who} edited #{one.conversation_seq}{where}: {printable(one.body)}")
        else:
            click.echo(f"-- {who} recalled #{one.conversation_seq}{where}")

    async def _type(self) -> None:
        async for line in _lines():
            text = line.strip()
            if text == "/quit":
                return
            if text.startswith("/"):
                await self._command(text)
            elif text:
                await self._send(text)

    async def _command(self, text: str) -> None:
        if text == "/help":
            _help()
        elif text == "/who":
            await self._who()
        elif text.startswith(("/edit ", "/recall ")):
            await self._change(text)
        elif not await self._beside.run(text):
            click.echo(f"-- unknown command {printable(text.encode())}; {ONLINE}")

    async def _send(self, text: str) -> None:
        to_user, place = (self._to_user, None) if self._to_user is not None else (None, self._place)
        name = secrets.token_hex(16)
        self._texts[name] = text
        try:
            await self._client.post(
                text.encode(), conversation_id=place, to_user_id=to_user, client_message_id=name
            )
        except AdmissionRefused as refusal:
            del self._texts[name]
            click.echo(f"-- not sent: {refusal}")

    async def _change(self, text: str) -> None:
        command, _, rest = text.partition(" ")
        number, _, body = rest.strip().partition(" ")
        number, body = number.removeprefix("#"), body.strip()
        if not number.isdecimal() or bool(body) != (command == "/edit"):
            click.echo(f"-- {HELP[0]}")
            return
        try:
            if command == "/edit":
                await self._client.edit(self._place, int(number), body.encode(), timeout_s=CHANGE_S)
            else:
                await self._client.recall(self._place, int(number), timeout_s=CHANGE_S)
        except (AdmissionRefused, ConfigError) as refusal:
            click.echo(f"-- not changed: {refusal}")
        except TimeoutError:
            click.echo("-- no answer: the message may or may not have been changed")

    async def _others(self) -> list[str]:
        if self._to_user is not None:
            return [self._to_user]
        members = await self._client.groups.members(self._place)
        return [one.user_id for one in members if one.user_id != self._user]

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
        """Give what came or was typed last a moment to be shown and acknowledged."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FINISH_S
        while self._client.unsent or self._texts or self._syncing:
            if loop.time() >= deadline:
                if left := self._client.unsent:
                    kept = not isinstance(self._store, MemoryStore)
                    rest = "they are sent next time" if kept else "they may or may not have been sent"
                    click.echo(f"-- {left} messages have no receipt: {rest}")
                return
            await asyncio.sleep(FINISH_STEP_S)


def _help() -> None:
    for line in HELP:
        click.echo(f"-- {line}")


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
