"""Options that every client command shares, and the client that they lead to."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from qim_streams.client import ClientOptions, LocalStore, QimClient
from qim_streams.client.discovery import StackAddress, discover
from qim_streams.errors import ClientStopped, ConfigError

T = TypeVar("T")
CONNECT_S = 20.0
Decorated = Callable[..., Any]


def stack_options(command: Decorated) -> Decorated:
    """Adds --state-dir, --url, --tenant and --jwt-secret-file; the command gets a `StackAddress`."""

    @wraps(command)
    def call(
        *args: Any,
        state_dir: Path | None,
        url: str | None,
        tenant: str | None,
        jwt_secret_file: Path | None,
        jwt_secret: str | None,
        **options: Any,
    ) -> Any:
        secret = read_secret(jwt_secret_file) if jwt_secret_file is not None else jwt_secret
        address = discover(state_dir, gateway_url=url, tenant=tenant, jwt_secret=secret)
        return command(*args, address=address, **options)

    decorated: Decorated = call
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


_OPTIONS = (
    click.option(
        "--state-dir",
        type=click.Path(path_type=Path),
        envvar="QIM_STATE_DIR",
        help="state directory of the running stack; default: .qim/up, then .qim/demo",
    ),
    click.option("--url", envvar="QIM_GATEWAY_URL", help="gateway, ws://HOST:PORT/PATH"),
    click.option("--tenant", envvar="QIM_TENANT", help="tenant; default: the stack's"),
    click.option(
        "--jwt-secret-file", type=click.Path(path_type=Path), help="file with the secret that mints tokens"
    ),
    # From the environment only: a secret on a command line is in every process list.
    click.option("--jwt-secret", envvar="QIM_JWT_SECRET", hidden=True, expose_value=True),
)


# Hidden: a token on a command line is in every process list, so the environment is its place.
token_option = click.option("--token", envvar="QIM_TOKEN", hidden=True)


def read_secret(path: Path) -> str:
    """The secret of a file; ConfigError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--jwt-secret-file {path}: {error}") from None


def client_of(
    address: StackAddress,
    user: str,
    device: str,
    *,
    token: str | None = None,
    first_sync: str = "now",
    store: LocalStore | None = None,
) -> QimClient:
    """A client of a user, not connected yet."""
    return QimClient(
        address.require_url(),
        token or address.token(user),
        device,
        options=ClientOptions(first_sync=first_sync),
        store=store,
    )


async def connected(client: QimClient) -> None:
    """Connect; ConfigError instead of waiting for ever when there is nobody."""
    try:
        await client.connect(CONNECT_S)
    except TimeoutError:
        raise ConfigError(
            f"{client.keeper.url} does not answer within {CONNECT_S:.0f} s: is the stack up? (qim status)"
        ) from None


def run(main: Awaitable[T]) -> T:
    """Run a command's coroutine; Ctrl-C is a quiet end with exit code 130, a lost session one line."""

    async def body() -> T:
        return await main

    try:
        return asyncio.run(body())
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None
    except ClientStopped as error:
        raise ConfigError(f"the server ended the session: {error}") from None
    except TimeoutError:
        raise ConfigError("no answer in time: the outcome is unknown; repeat the command") from None
