"""``qim send``: one message to a user or a group, and its receipt."""

import sys

import click

from qim_streams.cli.connect import client_of, connected, run, stack_options, token_option
from qim_streams.client import QimClient, SendReceipt
from qim_streams.client.discovery import StackAddress
from qim_streams.errors import ConfigError

SEND_S = 30.0


@click.command()
@click.argument("text", required=False)
@click.option("--user", required=True, help="who sends")
@click.option("--to", "to_user", help="user to send to")
@click.option("--group", "conversation", help="conversation to send to")
@click.option("--id", "client_message_id", help="client_message_id; sending again with it changes nothing")
@token_option
@stack_options
def send(
    text: str | None,
    user: str,
    to_user: str | None,
    conversation: str | None,
    client_message_id: str | None,
    token: str | None,
    address: StackAddress,
) -> None:
    """Send TEXT (or standard input) and print the receipt: conversation, seq, message id."""
    require_one_place(to_user, conversation)
    body = text.encode() if text is not None else sys.stdin.buffer.read()
    client = client_of(address, user, "cli-send", token=token)
    receipt = run(_send(client, body, to_user, conversation, client_message_id))
    print_receipt(receipt)


def require_one_place(to_user: str | None, conversation: str | None) -> None:
    """ConfigError unless exactly one of the two says where."""
    if (to_user is None) == (conversation is None):
        raise ConfigError("give either --to USER or --group CONVERSATION")


def print_receipt(receipt: SendReceipt) -> None:
    """Conversation, seq and message id of what was sent, edited or recalled."""
    click.echo(f"{receipt.conversation_id} #{receipt.conversation_seq} {receipt.message_id.hex()}")


async def _send(
    client: QimClient, body: bytes, to_user: str | None, conversation: str | None, message_id: str | None
) -> SendReceipt:
    try:
        await connected(client)
        return await client.send(
            body,
            conversation_id=conversation,
            to_user_id=to_user,
            client_message_id=message_id,
            timeout_s=SEND_S,
        )
    finally:
        await client.close()
