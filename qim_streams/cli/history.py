"""``qim history``: a conversation as a user may read it, also what lies in the archive only."""

import json
from collections.abc import Iterator

import click

from qim_streams import limits
from qim_streams.cli.connect import client_of, connected, run, stack_options, token_option
from qim_streams.cli.tail import message_line
from qim_streams.client import QimClient
from qim_streams.client.discovery import StackAddress
from qim_streams.client.history import Direction
from qim_streams.errors import ConfigError
from qim_streams.ids import direct_conversation_id
from qim_streams.wire.frames import HistoryBreak, HistoryPage, Message
from qim_streams.wire.schema import Schema

PAGE_S = 30.0
_PAGE = Schema(HistoryPage)
_WORDS = {
    "before_join": "before the first join",
    "not_member": "while not a member",
    "deleted": "deleted by the user",
    "unused": "never used",
    "unreadable": "damaged records",
}


@click.command()
@click.argument("conversation", required=False)
@click.option("--user", required=True, help="who reads")
@click.option("--with", "peer", help="read the direct chat with this user")
@click.option("--newer", "newer", is_flag=True, help="from the beginning on; default: the newest messages")
@click.option("--anchor", type=click.IntRange(0), help="conversation_seq to start from, exclusive")
@click.option(
    "--limit",
    type=click.IntRange(1, limits.HISTORY_MESSAGES_MAX),
    default=50,
    show_default=True,
    help="messages of a page",
)
@click.option("--all", "everything", is_flag=True, help="page after page to the end")
@click.option("--json", "as_json", is_flag=True, help="one JSON object per page")
@token_option
@stack_options
def history(
    conversation: str | None,
    user: str,
    peer: str | None,
    newer: bool,
    anchor: int | None,
    limit: int,
    everything: bool,
    as_json: bool,
    token: str | None,
    address: StackAddress,
) -> None:
    """Print a page of CONVERSATION, or of the direct chat --with a user, as --user may read it."""
    if (conversation is None) == (peer is None):
        raise ConfigError("give either CONVERSATION or --with USER")
    client = client_of(address, user, "cli-history", token=token)
    direction: Direction = "newer" if newer else "older"

    async def body() -> None:
        try:
            await connected(client)
            chat = conversation or direct_conversation_id(_tenant(client), client.user_id, peer or "")
            pages = client.history.pages(
                chat, direction=direction, anchor=anchor, limit=limit, timeout_s=PAGE_S
            )
            async for page in pages:
                _show(page, direction, as_json)
                if not everything:
                    return
        finally:
            await client.close()

    run(body())


def _tenant(client: QimClient) -> str:
    return client.session.auth.tenant_id if client.session.auth else ""


def _show(page: HistoryPage, direction: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_PAGE.plain_text(page), ensure_ascii=False))
        return
    for line in _lines(page):
        click.echo(line)
    if page.has_more:
        flag = "--newer " if direction == "newer" else ""
        click.echo(f"-- more: {flag}--anchor {page.next_anchor}")


def _lines(page: HistoryPage) -> Iterator[str]:
    """Messages and breaks in the order of their numbers."""
    rows: list[tuple[int, Message | HistoryBreak]] = [(one.conversation_seq, one) for one in page.messages]
    rows += [(one.from_seq, one) for one in page.breaks]
    for _, one in sorted(rows, key=lambda row: row[0]):
        if isinstance(one, Message):
            yield message_line(one)
        else:
            yield f"-- #{one.from_seq} to #{one.to_seq}: {_WORDS[one.reason]}"
