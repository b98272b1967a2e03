"""``qim sessions``: a user's conversations, and what he may change about them."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import click

from qim_streams import limits
from qim_streams.cli.columns import columns, moment
from qim_streams.cli.connect import client_of, connected, run, stack_options, token_option
from qim_streams.client import QimClient
from qim_streams.client.discovery import StackAddress
from qim_streams.wire.frames_sessions import ONLY, SessionList, SessionRow
from qim_streams.wire.schema import Schema

_PAGE, _ROW = Schema(SessionList), Schema(SessionRow)
_HEADER = ("conversation", "kind", "unread", "mentions", "read", "latest", "marks", "newest", "name or peer")
_USER = click.option("--user", required=True, help="whose list")


@click.group()
def sessions() -> None:
    """A user's conversations: list them, mark them as read, mute, pin, hide, clear."""


@sessions.command("list")
@_USER
@click.option("--only", type=click.Choice(ONLY), default="all", show_default=True)
@click.option("--pinned-first", is_flag=True, help="pinned conversations at the top")
@click.option("--cursor", help="go on after a page that said so")
@click.option("--limit", type=click.IntRange(1, limits.SESSION_PAGE_MAX), default=50, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="one JSON object")
@token_option
@stack_options
def list_command(
    user: str,
    only: Any,
    pinned_first: bool,
    cursor: str | None,
    limit: int,
    as_json: bool,
    token: str | None,
    address: StackAddress,
) -> None:
    """Print a page of the list, the newest conversations first."""

    async def body(client: QimClient) -> None:
        page = await client.sessions.page(cursor, limit=limit, only=only, pinned_first=pinned_first)
        if as_json:
            click.echo(json.dumps(_PAGE.plain_text(page), ensure_ascii=False))
            return
        click.echo(columns(_HEADER, [_cells(row) for row in page.rows]))
        if not page.projection_complete:
            click.echo("-- the list is being rebuilt: more may be missing")
        if page.next_cursor is not None:
            click.echo(f"-- more: --cursor {page.next_cursor}")

    _as_user(address, user, token, body)


def _changing(name: str, text: str, *arguments: Any) -> Callable[[Any], click.Command]:
    def made(change: Callable[..., Awaitable[SessionRow]]) -> click.Command:
        def run_it(
            conversation: str, user: str, token: str | None, address: StackAddress, **given: Any
        ) -> None:
            async def body(client: QimClient) -> None:
                row = await change(client, conversation, **given)
                click.echo(json.dumps(_ROW.plain_text(row), ensure_ascii=False))

            _as_user(address, user, token, body)

        command: Any = stack_options(run_it)
        for option in (*reversed(arguments), token_option, _USER, click.argument("conversation")):
            command = option(command)  # the last one applied stands first
        return sessions.command(name, help=text)(command)

    return made


@_changing("read", "Mark CONVERSATION as read up to a number.", click.argument("seq", type=click.IntRange(0)))
def _read(client: QimClient, conversation: str, seq: int) -> Awaitable[SessionRow]:
    return client.sessions.mark_read(conversation, seq)


@_changing("mute", "Mute CONVERSATION.", click.option("--off", is_flag=True, help="unmute"))
def _mute(client: QimClient, conversation: str, off: bool) -> Awaitable[SessionRow]:
    return client.sessions.set_mute(conversation, not off)


@_changing("pin", "Pin CONVERSATION.", click.option("--off", is_flag=True, help="unpin"))
def _pin(client: QimClient, conversation: str, off: bool) -> Awaitable[SessionRow]:
    return client.sessions.set_pin(conversation, not off)


@_changing(
    "hide", "Hide CONVERSATION until the next message.", click.option("--off", is_flag=True, help="show")
)
def _hide(client: QimClient, conversation: str, off: bool) -> Awaitable[SessionRow]:
    return client.sessions.hide(conversation, not off)


@_changing(
    "clear",
    "Delete what is in CONVERSATION, for this user only.",
    click.option("--up-to", type=click.IntRange(0), help="conversation_seq, inclusive; default: everything"),
    click.option("--hide", "hidden", is_flag=True, help="and take it off the list"),
)
def _clear(client: QimClient, conversation: str, up_to: int | None, hidden: bool) -> Awaitable[SessionRow]:
    return client.sessions.clear(conversation, up_to, hidden=hidden)


@_changing(
    "delete",
    "Delete single messages of CONVERSATION, for this user only.",
    click.argument("seqs", type=click.IntRange(1), nargs=-1, required=True),
)
def _delete(client: QimClient, conversation: str, seqs: tuple[int, ...]) -> Awaitable[SessionRow]:
    return client.sessions.delete_messages(conversation, seqs)


def _as_user(
    address: StackAddress, user: str, token: str | None, body: Callable[[QimClient], Awaitable[None]]
) -> None:
    client = client_of(address, user, "cli-sessions", token=token)

    async def session() -> None:
        try:
            await connected(client)
            await body(client)
        finally:
            await client.close()

    run(session())


def _cells(row: SessionRow) -> tuple[object, ...]:
    unread = row.unread if row.unread_exact else f"{row.unread}+"
    flags = {"pinned": row.pinned_at > 0, "muted": row.muted, "left": not row.active, "ended": row.dismissed}
    marks = ",".join(name for name, is_set in flags.items() if is_set)
    newest = None if row.last is None else moment(row.last.committed_at)
    head = (row.conversation_id, row.kind, unread, row.mentions, row.read_seq, row.latest_seq)
    return (*head, marks, newest, row.name or row.peer_user_id)
