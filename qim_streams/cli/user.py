"""``qim user``: what the system has of a user, given to him or taken out (``docs/backup.md``)."""

import getpass
import json
import os
import sys
from pathlib import Path
from typing import TextIO

import click

from qim_streams.cli.connect import run as run_command
from qim_streams.cli.servers import server_settings, with_secrets
from qim_streams.errors import ConfigError
from qim_streams.settings import Settings

LEFT_OVER = 3
_STATE_DIR = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="state directory of the running stack; default: .qim/up, then .qim/demo, then QIM_* variables",
)
_TENANT = click.option("--tenant", envvar="QIM_TENANT", help="tenant; default: the stack's")


@click.group()
def user() -> None:
    """What the system has of a user."""


@user.command()
@click.argument("user_id")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--received", is_flag=True, help="also what others sent to him")
@_TENANT
@_STATE_DIR
def export(user_id: str, directory: Path, received: bool, tenant: str | None, state_dir: Path | None) -> None:
    """Write what there is of USER_ID into DIRECTORY (new or empty).

    profile.json: devices and push registrations; conversations.jsonl: his conversations, memberships and
    marks; messages.jsonl: his messages, bodies in base64.
    """
    settings, known = server_settings(state_dir)
    counts = run_command(_export(settings, tenant or known, user_id, directory, received))
    click.echo(f"{directory}: {counts[0]} conversations, {counts[1]} messages")


@user.command()
@click.argument("user_id")
@click.option("--yes", is_flag=True, help="do not ask")
@_TENANT
@_STATE_DIR
def erase(user_id: str, yes: bool, tenant: str | None, state_dir: Path | None) -> None:
    """Take the data of USER_ID out: recall every message of his, end his memberships, forget his devices.

    It may be repeated. Exit code 3: something could not be taken out, and is named. What stays in logs and
    backups, and for how long, is in docs/backup.md. His tokens are his issuer's to take back.
    """
    settings, known = with_secrets(*server_settings(state_dir), state_dir)
    if not yes:
        click.confirm(f"erase what there is of {user_id} in {tenant or known}?", abort=True)
    kept = run_command(_erase(settings, tenant or known, user_id))
    for line in kept:
        click.echo(f"kept: {line}", err=True)
    if kept:
        sys.exit(LEFT_OVER)


async def _export(
    settings: Settings, tenant: str, user_id: str, directory: Path, received: bool
) -> tuple[int, int]:
    from qim_streams.personal.collecting import conversation_row, message_row
    from qim_streams.roles.user_data import noted, user_data

    _make_empty(directory)
    conversations = messages = 0
    async with (
        noted(settings, getpass.getuser(), f"export user {tenant}/{user_id}"),
        user_data(settings, tenant, user_id) as data,
    ):
        with _private(directory / "profile.json") as file:
            json.dump(await data.collector.profile(data.whose), file, indent=1)
        with (
            _private(directory / "conversations.jsonl") as rows,
            _private(directory / "messages.jsonl") as said,
        ):
            async for view in data.collector.conversations(data.whose):
                conversations += 1
                rows.write(json.dumps(conversation_row(view)) + "\n")
                found = data.collector.messages(data.whose, view.conversation_id, received=received)
                async for message in found:
                    messages += 1
                    said.write(json.dumps(message_row(message)) + "\n")
    return conversations, messages


async def _erase(settings: Settings, tenant: str, user_id: str) -> list[str]:
    from qim_streams.roles.user_data import noted, user_data

    async with (
        noted(settings, getpass.getuser(), f"erase user {tenant}/{user_id}"),
        user_data(settings, tenant, user_id, erasing=True) as data,
    ):
        assert data.eraser is not None
        done = await data.eraser.run(data.whose)
    click.echo(
        f"{done.messages} messages recalled, {done.conversations} memberships ended, "
        f"{done.devices} devices and {done.push_devices} push registrations forgotten"
    )
    return done.kept


def _make_empty(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if any(directory.iterdir()):
        raise ConfigError(f"{directory}: is not empty; name a directory for this export alone")


def _private(path: Path) -> TextIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")
