"""``qim token``: an access token for a user of a local stack."""

import click

from qim_streams.cli.connect import stack_options
from qim_streams.client.discovery import TTL_DEFAULT_S, StackAddress


@click.command()
@click.option("--user", required=True, help="user id")
@click.option(
    "--ttl", "ttl_s", type=click.IntRange(1), default=TTL_DEFAULT_S, show_default=True, help="seconds"
)
@stack_options
def token(user: str, ttl_s: int, address: StackAddress) -> None:
    """Mint an access token and print it. Whoever has it is that user until it expires."""
    click.echo(address.token(user, ttl_s))
