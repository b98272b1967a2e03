"""``qim gateway|writer|rooms|api``: run one role of the stack in this process. All options are settings."""

import asyncio
import sys
from collections.abc import Awaitable, Callable

import click

from qim_streams.runtime import run_role
from qim_streams.settings import Settings, load_settings

RoleMain = Callable[[Settings, asyncio.Event], Awaitable[None]]


def _run(role: str, main: RoleMain) -> None:
    sys.exit(run_role(role, load_settings(), main))


@click.command()
def gateway() -> None:
    """Run one ConnectionNode: client sockets, sessions, pushes. Configured by QIM_* variables."""
    from qim_streams.roles.gateway import run_gateway

    _run("gateway", run_gateway)


@click.command()
def writer() -> None:
    """Run one ConversationWriter: commits messages of the Outbox partitions it leases."""
    from qim_streams.roles.writer import run_writer

    _run("writer", run_writer)


@click.command()
def rooms() -> None:
    """Run one RoomWriter: messages and events of the room partitions it leases."""
    from qim_streams.roles.rooms import run_rooms

    _run("rooms", run_rooms)


@click.command()
def api() -> None:
    """Run the HTTP admin API (loopback and API key by default)."""
    from qim_streams.roles.api import run_api

    _run("api", run_api)
