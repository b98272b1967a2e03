"""``qim group``: create and change groups, each command as one user."""

from collections.abc import Awaitable, Callable
from typing import Any

import click

from qim_streams.cli.columns import columns
from qim_streams.cli.connect import client_of, connected, run, stack_options, token_option
from qim_streams.client import QimClient
from qim_streams.client.discovery import StackAddress
from qim_streams.wire.frames_group import GroupState, MemberRow

_SEND = click.option("--send-policy", type=click.Choice(["members", "admins"]), help="who may send")
_JOIN = click.option("--join-policy", type=click.Choice(["invite", "open"]), help="whether anybody may join")
_HISTORY = click.option(
    "--history-policy", type=click.Choice(["joined", "all"]), help="what a new member may read of the past"
)
Call = Callable[[QimClient], Awaitable[GroupState]]


@click.group()
def group() -> None:
    """Create and change groups. Every command acts as --user."""


def _acts(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command: who acts, and which stack."""
    command = stack_options(command)
    command = token_option(command)
    return click.option("--user", required=True, help="who acts")(command)


def _do(address: StackAddress, user: str, token: str | None, call: Call) -> None:
    async def body() -> GroupState:
        client = client_of(address, user, "cli-group", token=token)
        try:
            await connected(client)
            return await call(client)
        finally:
            await client.close()

    _show(run(body()))


def _show(state: GroupState) -> None:
    ended = ", dismissed" if state.dismissed else ""
    click.echo(
        f"{state.conversation_id} {state.name!r}: {state.members_active} members, version {state.version}, "
        f"send {state.send_policy}, join {state.join_policy}, history {state.history_policy}{ended}"
    )


@group.command()
@click.argument("conversation", required=False)
@click.option("--name", default="", help="for people")
@click.option("--member", "members", multiple=True, help="a first member; repeatable")
@_SEND
@_JOIN
@_HISTORY
@_acts
def create(
    conversation: str | None,
    name: str,
    members: tuple[str, ...],
    user: str,
    token: str | None,
    address: StackAddress,
    **policies: str | None,
) -> None:
    """Make a group (with the id CONVERSATION, if given); --user becomes its owner."""
    given = {key: value for key, value in policies.items() if value is not None}
    _do(
        address,
        user,
        token,
        lambda client: client.groups.create(members, conversation_id=conversation, name=name, **given),
    )


@group.command()
@click.argument("conversation")
@click.argument("users", nargs=-1, required=True)
@_acts
def add(
    conversation: str, users: tuple[str, ...], user: str, token: str | None, address: StackAddress
) -> None:
    """Add USERS to a group."""
    _do(address, user, token, lambda client: client.groups.add(conversation, users))


@group.command()
@click.argument("conversation")
@click.argument("users", nargs=-1, required=True)
@_acts
def remove(
    conversation: str, users: tuple[str, ...], user: str, token: str | None, address: StackAddress
) -> None:
    """Remove USERS from a group."""
    _do(address, user, token, lambda client: client.groups.remove(conversation, users))


@group.command()
@click.argument("conversation")
@_acts
def join(conversation: str, user: str, token: str | None, address: StackAddress) -> None:
    """Join an open group."""
    _do(address, user, token, lambda client: client.groups.join(conversation))


@group.command()
@click.argument("conversation")
@_acts
def leave(conversation: str, user: str, token: str | None, address: StackAddress) -> None:
    """Leave a group."""
    _do(address, user, token, lambda client: client.groups.leave(conversation))


@group.command()
@click.argument("conversation")
@_acts
def dismiss(conversation: str, user: str, token: str | None, address: StackAddress) -> None:
    """End a group for everybody."""
    _do(address, user, token, lambda client: client.groups.dismiss(conversation))


@group.command()
@click.argument("conversation")
@click.argument("member")
@click.argument("role_name", metavar="ROLE", type=click.Choice(["owner", "admin", "member"]))
@_acts
def role(
    conversation: str, member: str, role_name: str, user: str, token: str | None, address: StackAddress
) -> None:
    """Give MEMBER a ROLE; owner hands the group over."""
    _do(address, user, token, lambda client: client.groups.set_role(conversation, member, role_name))


@group.command()
@click.argument("conversation")
@click.option("--name", help="for people")
@_SEND
@_JOIN
@_HISTORY
@_acts
def update(
    conversation: str,
    name: str | None,
    user: str,
    token: str | None,
    address: StackAddress,
    **policies: str | None,
) -> None:
    """Change name or policies; what is not given stays."""
    _do(address, user, token, lambda client: client.groups.update(conversation, name=name, **policies))


@group.command()
@click.argument("conversation")
@_acts
def show(conversation: str, user: str, token: str | None, address: StackAddress) -> None:
    """Show a group and its members."""
    state, members = run(_show_all(address, user, token, conversation))
    _show(state)
    click.echo(columns(("member", "role"), members))


async def _show_all(
    address: StackAddress, user: str, token: str | None, conversation: str
) -> tuple[GroupState, list[MemberRow]]:
    client = client_of(address, user, "cli-group", token=token)
    try:
        await connected(client)
        return await client.groups.get(conversation, limit=0), await client.groups.members(conversation)
    finally:
        await client.close()
