"""``qim archive init|status``: make the Cassandra archive's schema, and show how far the archive has come."""

import json
from pathlib import Path

import click

from qim_streams.cli.columns import columns
from qim_streams.cli.connect import run
from qim_streams.cli.servers import server_settings, with_partition_counts
from qim_streams.errors import ConfigError
from qim_streams.settings import Settings, load_settings
from qim_streams.trace.progress import ArchiveRow, read_archive_progress

BUCKET_SEQS_DEFAULT, BUCKET_SEQS_MIN, BUCKET_SEQS_MAX = 1_000, 10, 100_000


@click.group()
def archive() -> None:
    """Prepare and inspect the archive."""


@archive.command()
@click.option(
    "--replication-factor", type=click.IntRange(1, 10), default=1, show_default=True,
    help="copies in each data centre",
)  # fmt: skip
@click.option(
    "--replicas", multiple=True, metavar="DC=N", help="copies in one data centre; repeat for each of them"
)
@click.option(
    "--bucket-seqs", type=click.IntRange(BUCKET_SEQS_MIN, BUCKET_SEQS_MAX), default=BUCKET_SEQS_DEFAULT,
    show_default=True, help="messages of a conversation in one partition; fixed once used",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="print the CQL and change nothing; needs no cluster")
def init(replication_factor: int, replicas: tuple[str, ...], bucket_seqs: int, dry_run: bool) -> None:
    """Make keyspace and tables of the Cassandra archive (QIM_CASSANDRA_*). May be repeated.

    What exists is left as it is: change replication or compaction with ALTER.
    """
    from qim_streams.archive.opening import cassandra_options

    settings = load_settings()
    options = cassandra_options(settings)  # first: it says when the driver is missing
    from qim_streams.archive.cassandra_admin import create_archive
    from qim_streams.archive.cassandra_schema import create_statements, layout_statement, replication

    wanted = replication(_by_datacenter(replicas), replication_factor)
    if dry_run:
        layout_row = layout_statement(options.keyspace, bucket_seqs)
        texts = [*create_statements(options.keyspace, wanted), layout_row]
        click.echo("\n\n".join(f"{text};" for text in texts))
        return
    layout = run(create_archive(options, wanted, bucket_seqs))
    click.echo(
        f"keyspace {options.keyspace} on {options.where}: archive layout {layout.version}, "
        f"{layout.bucket_seqs} messages in a bucket"
    )
    if settings.archive != "cassandra":
        click.echo("set QIM_ARCHIVE=cassandra for every role to use it", err=True)


@archive.command()
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="state directory of the running stack; default: .qim/up, then .qim/demo, then QIM_* variables",
)
@click.option("--json", "as_json", is_flag=True, help="as JSON")
def status(state_dir: Path | None, as_json: bool) -> None:
    """Show the archive watermark of each Outbox partition and how far it is behind the end of the log."""
    settings, _ = server_settings(state_dir)
    rows = run(_read(settings))
    if as_json:
        document = [
            {"partition": row.partition, "end": row.end, "watermark": row.watermark, "lag": row.lag}
            for row in rows
        ]
        click.echo(json.dumps({"archive": settings.archive, "partitions": document}, indent=2))
        return
    header = ("OUTBOX", "LOG END", "ARCHIVED TO", "LAG")
    table = [(str(row.partition), str(row.end), str(row.watermark), str(row.lag)) for row in rows]
    click.echo(columns(header, table))
    click.echo(f"\n{settings.archive}: {sum(max(0, row.lag) for row in rows)} records to archive")
    for row in rows:
        if row.lag < 0:
            click.echo(
                f"outbox[{row.partition}]: the archive is ahead of the log by {-row.lag}: it belongs to "
                "another log (a topic that was made anew?); see docs/archive.md, 'Another log'",
                err=True,
            )


async def _read(settings: Settings) -> list[ArchiveRow]:
    from qim_streams.roles.tracing import tracing

    async with tracing(settings) as deps:
        await with_partition_counts(settings, deps.log)
        return await read_archive_progress(deps.log, deps.archive)


def _by_datacenter(replicas: tuple[str, ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for text in replicas:
        name, mark, count = text.partition("=")
        if not mark or not count.isdigit():
            raise ConfigError(f"--replicas {text!r}: must be DC=N, such as dc1=3")
        found[name] = int(count)
    return found
