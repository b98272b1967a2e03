"""``qim edit`` and ``qim recall``: change a message that was sent before, and the receipt of the change."""

from collections.abc import Awaitable, Callable

import click

from qim_streams.cli.connect import client_of, connected, run, stack_options
from qim_streams.client import QimClient, SendReceipt
from qim_streams.client.discovery import StackAddress
from qim_streams.errors import ConfigError
from qim_streams.ids import direct_conversation_id

CHANGE_S = 30.0


@click.command()
@click.argument("seq", type=click.IntRange(1))
@click.argument("text")
@click.option("--user", required=True, help="who sent the message")
@click.option("--to", "to_user", help="in the direct chat with this user")
@click.option("--group", "conversation", help="or in this conversation")
@click.option("--id", "client_message_id", help="client_message_id; editing again with it changes nothing")
@click.option("--token", envvar="QIM_TOKEN", hidden=True)
@stack_options
def edit(
    seq: int,
    text: str,
    user: str,
    to_user: str | None,
    conversation: str | None,
    client_message_id: str | None,
    token: str | None,
    address: StackAddress,
) -> None:
    """Give message SEQ the body TEXT and print the receipt: conversation, seq of the edit, its id."""

    async def ask(client: QimClient, place: str) -> SendReceipt:
        body = text.encode()
        return await client.edit(place, seq, body, client_message_id=client_message_id, timeout_s=CHANGE_S)

    _change(client_of(address, user, "cli-send", token=token), to_user, conversation, ask)


@click.command()
@click.argument("seq", type=click.IntRange(1))
@click.option("--user", required=True, help="who recalls: the sender, or an owner or admin of the group")
@click.option("--to", "to_user", help="in the direct chat with this user")
@click.option("--group", "conversation", help="or in this conversation")
@click.option("--id", "client_message_id", help="client_message_id; recalling again with it changes nothing")
@click.option("--token", envvar="QIM_TOKEN", hidden=True)
@stack_options
def recall(
    seq: int,
    user: str,
    to_user: str | None,
    conversation: str | None,
    client_message_id: str | None,
    token: str | None,
    address: StackAddress,
) -> None:
    """Take message SEQ back and print the receipt: conversation, seq of the recall, its id."""

    async def ask(client: QimClient, place: str) -> SendReceipt:
        return await client.recall(place, seq, client_message_id=client_message_id, timeout_s=CHANGE_S)

    _change(client_of(address, user, "cli-send", token=token), to_user, conversation, ask)


def _change(
    client: QimClient,
    to_user: str | None,
    conversation: str | None,
    ask: Callable[[QimClient, str], Awaitable[SendReceipt]],
) -> None:
    if (to_user is None) == (conversation is None):
        raise ConfigError("give either --to USER or --group CONVERSATION")

    async def body() -> SendReceipt:
        try:
            await connected(client)
            tenant = client.session.auth.tenant_id if client.session.auth else ""
            place = conversation or direct_conversation_id(tenant, client.user_id, to_user or "")
            return await ask(client, place)
        finally:
            await client.close()

    receipt = run(body())
    click.echo(f"{receipt.conversation_id} #{receipt.conversation_seq} {receipt.message_id.hex()}")
