"""``qim shard status|split``: MailboxShards, and growing their number while they serve.

Exit code 0 when it is done, 1 with one line when it cannot be done or a server does not answer; a split that
was interrupted goes on where it was when the command is given again.
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qim_streams.cli.columns import columns
from qim_streams.cli.connect import run as run_command
from qim_streams.cli.servers import server_settings, with_partition_counts
from qim_streams.errors import ConfigError

if TYPE_CHECKING:
    from qim_streams.roles.splitting import Splitting
    from qim_streams.sharding.operation import Standing
    from qim_streams.sharding.rules import Placement

_STATE_DIR = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="state directory of the running stack; default: .qim/up, then .qim/demo, then QIM_* variables",
)


@click.group()
def shard() -> None:
    """Show MailboxShards and split them.

    Users are spread over shards, each with a partition of the dispatch log and an owner of its own. A split
    gives half of a shard's users to a new shard while everything goes on: nobody has to sign on again, what
    was delivered stays where it is, and what comes is delivered by the new shard.
    """


@shard.command()
@_STATE_DIR
@click.option("--json", "as_json", is_flag=True, help="as JSON")
def status(state_dir: Path | None, as_json: bool) -> None:
    """Show the shards: where their users came from, how far W is, how many mailboxes they hold."""
    found = run_command(_status(state_dir))
    click.echo(json.dumps(found, indent=2) if as_json else _text(found))


@shard.command()
@_STATE_DIR
@click.option("--shard", "shards", type=int, multiple=True, help="a shard to split; repeat. Default: all")
@click.option("--dry-run", is_flag=True, help="show what would be done; change nothing")
@click.option(
    "--to-version", type=int, help="the mapping version it makes (`status` says where it stands, +1)"
)
@click.option("--abort", is_flag=True, help="abandon a split that was interrupted before it was prepared")
def split(
    state_dir: Path | None, shards: tuple[int, ...], dry_run: bool, to_version: int | None, abort: bool
) -> None:
    """Split shards: half of the users of each move to a new one. Goes on with a split that was interrupted.

    May be killed and repeated at any time, and given twice at once. Repeated when it was done all the same it
    begins another split, unless --to-version says which one is meant. Users who move hear nothing for about a
    second; all others are not touched. A split that has begun to mark the log is not taken back.
    """
    if abort:
        if shards or dry_run or to_version is not None:
            raise click.UsageError("--abort stands alone: what was planned is abandoned as a whole")
        run_command(_abort(state_dir))
        return
    run_command(_split(state_dir, shards, dry_run=dry_run, to_version=to_version))


@asynccontextmanager
async def _opened(state_dir: Path | None) -> AsyncIterator["Splitting"]:
    from qim_streams.roles.splitting import splitting
    from qim_streams.trace.kafka_log import KafkaLogReader

    settings, _ = server_settings(state_dir)
    if settings.mailbox_shards_max and "mailbox_shards" not in settings.model_fields_set:
        raise ConfigError("mailbox_shards: set QIM_MAILBOX_SHARDS to what the gateways and workers have")
    log = KafkaLogReader(settings.kafka)
    try:
        async with splitting(await with_partition_counts(settings, log), log) as found:
            yield found
    finally:
        await log.close()


async def _status(state_dir: Path | None) -> dict[str, Any]:
    from qim_streams.sharding.standing import standing_of

    async with _opened(state_dir) as found:
        placement = await found.mappings.load()
        standing = await standing_of(placement, found.logs, found.stores)
        unserved = set(await found.stores.unserved([one.shard for one in standing.shards]))
        under_way = placement.mapping.under_way
        return {
            "mapping_version": placement.version,
            "revision": placement.mapping.revision,
            "shards_at_the_beginning": placement.mapping.groups,
            "partitions": standing.partitions,
            "under_way": None
            if under_way is None
            else {"version": under_way.version, "step": under_way.step.name.lower()},
            "shards": [one._asdict() | {"owned": one.shard not in unserved} for one in standing.shards],
        }


def _text(found: dict[str, Any]) -> str:
    rows = [
        (
            one["shard"],
            " <- ".join(map(str, reversed(one["came_from"]))) or "-",
            one["records"],
            one["watermark"],
            one["mailboxes"],
            "yes" if one["owned"] else "no",
        )
        for one in found["shards"]
    ]
    table = columns(("SHARD", "CAME FROM", "RECORDS", "W", "MAILBOXES", "OWNED"), rows)
    under_way = found["under_way"]
    note = "no split is under way"
    if under_way is not None:
        note = f"a split to version {under_way['version']} is {under_way['step']}: `qim shard split` goes on"
    return (
        f"{table}\n\nmapping version {found['mapping_version']}, {len(found['shards'])} shards, room for "
        f"{found['partitions']}; {note}"
    )


def _is_done(placement: "Placement", to_version: int | None) -> bool:
    """Whether the split that was asked for was made before. ConfigError: it cannot be the next one."""
    stands = len(placement.mapping.splits)
    if to_version is not None and not 1 <= to_version <= stands + 1:
        raise ConfigError(
            f"--to-version {to_version}: the mapping is at version {stands}, next is {stands + 1}"
        )
    return to_version is not None and to_version <= placement.version


async def _split(
    state_dir: Path | None, shards: Sequence[int], *, dry_run: bool, to_version: int | None
) -> None:
    async with _opened(state_dir) as found:
        placement = await found.mappings.load()
        if _is_done(placement, to_version):
            click.echo(f"mapping version {to_version} was made before; {placement.shards} shards")
            return
        under_way = placement.mapping.under_way
        if under_way is not None:
            click.echo(f"going on with the split to mapping version {under_way.version}", err=True)
        if dry_run:
            split = under_way or (await found.operation.plan(shards or range(placement.shards))).splits[-1]
            for pair in split.pairs:
                click.echo(f"shard {pair.old}: half of its users to shard {pair.new}, from {pair.first} on")
            click.echo(f"{len(split.begins)} Outbox partitions would be marked; nothing was changed")
            return
        if under_way is None:
            split = await found.operation.begin(shards or range(placement.shards))
            click.echo(f"planned mapping version {split.version}: {len(split.pairs)} new shards", err=True)
        await found.operation.run(_say)
        click.echo(f"{found.mappings.current.shards} shards")


async def _abort(state_dir: Path | None) -> None:
    async with _opened(state_dir) as found:
        split = await found.operation.abort()
        click.echo(f"the split to mapping version {split.version} is abandoned; nobody was moved")


def _say(stands: "Standing") -> None:
    click.echo(f"{stands.step}: {stands.detail}", err=True)
