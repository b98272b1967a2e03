"""``qim backup`` and ``qim restore``: what cannot be rebuilt, into a directory and back (`backup`)."""

from pathlib import Path

import click

from qim_streams.cli.connect import run as run_command
from qim_streams.cli.servers import operator_settings
from qim_streams.errors import ConfigError
from qim_streams.settings import load_settings

STATE_DIR = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="state directory of the running stack; default: .qim/up, then .qim/demo, then QIM_* variables",
)


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@STATE_DIR
def backup(directory: Path, state_dir: Path | None) -> None:
    """Write a backup into DIRECTORY (new or empty) while the stack runs.

    It holds messages, members, marks, rooms, rules of tenants and push devices; not secrets: keep those of
    the stack beside it. QIM_REDIS_URL must be of a user that may scan and dump.
    """
    from qim_streams.roles.backing_up import back_up

    run_command(back_up(operator_settings(state_dir), directory, click.echo))


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="restore into the embedded servers of this state directory, which no stack uses",
)
@click.option(
    "--left-out",
    type=click.IntRange(0, 1_000_000),
    default=10_000,
    show_default=True,
    help="numbers that each conversation leaves out: more than were given out after the backup",
)
def restore(directory: Path, state_dir: Path | None, left_out: int) -> None:
    """Restore the backup in DIRECTORY into empty servers. No role may run.

    Without --state-dir into those of QIM_* variables, whose topics exist (`qim topics apply`). Afterwards
    start the roles; every device rebuilds once.
    """
    from qim_streams.roles.backing_up import restore as restore_into

    if state_dir is None:
        run_command(restore_into(load_settings(), directory, click.echo, left_out))
        return
    from qim_streams.backup.files import read_manifest
    from qim_streams.embedded.stack import EmbeddedStack
    from qim_streams.stack.sizes import NAMES, remember_sizes, sizes_to_use
    from qim_streams.streaming import topics

    if (state_dir / "client.json").exists():
        raise ConfigError(f"{state_dir}: a stack runs there; stop it first (`qim down`)")
    manifest = read_manifest(directory)
    of_backup = {name: manifest[name] for name in NAMES if isinstance(manifest.get(name), int)}
    sizes = sizes_to_use(state_dir, of_backup, {})
    with EmbeddedStack(state_dir) as servers:
        remember_sizes(servers.state_dir, sizes)
        settings = load_settings(
            **sizes,
            brokers=servers.brokers,
            redis_url=servers.redis_url,
            redis_url_file=None,
            archive_rocksdb_dir=servers.state_dir / "archive",
        )
        topics.apply(topics.admin_client(settings.kafka), topics.load().resolve_for(settings))
        run_command(restore_into(settings, directory, click.echo, left_out))
