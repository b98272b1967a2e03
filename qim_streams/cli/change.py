"""``qim edit`` and ``qim recall``: change a message that was sent before, and the receipt of the change."""

from collections.abc import Awaitable, Callable
from typing import Any

import click

from qim_streams.cli.connect import client_of, connected, run, stack_options, token_option
from qim_streams.cli.send import print_receipt, require_one_place
from qim_streams.client import QimClient, SendReceipt
from qim_streams.client.discovery import StackAddress
from qim_streams.ids import direct_conversation_id

CHANGE_S = 30.0


Decorated = Callable[..., Any]


def _options(who: str, again: str) -> Callable[[Decorated], Decorated]:
    """The options of both commands. `who`: who may; `again`: what a repeat with the same id is."""

    def decorate(command: Decorated) -> Decorated:
        for option in (
            stack_options,
            token_option,
            click.option(
                "--id", "client_message_id", help=f"client_message_id; {again} again with it changes nothing"
            ),
            click.option("--group", "conversation", help="or in this conversation"),
            click.option("--to", "to_user", help="in the direct chat with this user"),
            click.option("--user", required=True, help=who),
        ):
            command = option(command)
        return command

    return decorate


@click.command()
@click.argument("seq", type=click.IntRange(1))
@click.argument("text")
@_options("who sent the message", "editing")
def edit(seq: int, text: str, client_message_id: str | None, **where: Any) -> None:
    """Give message SEQ the body TEXT and print the receipt: conversation, seq of the edit, its id."""
    body, known = text.encode(), {"client_message_id": client_message_id}
    _change(lambda client, place: client.edit(place, seq, body, timeout_s=CHANGE_S, **known), **where)


@click.command()
@click.argument("seq", type=click.IntRange(1))
@_options("who recalls: the sender, or an owner or admin of the group", "recalling")
def recall(seq: int, client_message_id: str | None, **where: Any) -> None:
    """Take message SEQ back and print the receipt: conversation, seq of the recall, its id."""
    known = {"client_message_id": client_message_id}
    _change(lambda client, place: client.recall(place, seq, timeout_s=CHANGE_S, **known), **where)


def _change(
    ask: Callable[[QimClient, str], Awaitable[SendReceipt]],
    *,
    address: StackAddress,
    user: str,
    token: str | None,
    to_user: str | None,
    conversation: str | None,
) -> None:
    client = client_of(address, user, "cli-send", token=token)
    require_one_place(to_user, conversation)

    async def body() -> SendReceipt:
        try:
            await connected(client)
            tenant = client.session.auth.tenant_id if client.session.auth else ""
            place = conversation or direct_conversation_id(tenant, client.user_id, to_user or "")
            return await ask(client, place)
        finally:
            await client.close()

    print_receipt(run(body()))
