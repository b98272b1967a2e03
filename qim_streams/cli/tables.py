"""``qim tables``: what the stages' tables and stores say about how far each partition has come.

Exit code 0 also when something lags: this shows, it does not judge.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from qim_streams.cli.columns import columns, moment
from qim_streams.cli.connect import run
from qim_streams.cli.servers import server_settings, with_partition_counts
from qim_streams.errors import ConfigError
from qim_streams.settings import Settings
from qim_streams.trace.progress import OutboxRow, PipelineProgress, ShardRow, read_progress

LANES_PER_LINE = 8


@click.command()
@click.option("--shard", type=click.IntRange(0), help="one MailboxShard, with all of its 64 lanes")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="state directory of the running stack; default: .qim/up, then .qim/demo, then QIM_* variables",
)
@click.option("--json", "as_json", is_flag=True, help="as JSON")
def tables(shard: int | None, state_dir: Path | None, as_json: bool) -> None:
    """Show fan-out progress, DispatchProgress, W[lane] and archive watermarks, per partition."""
    settings, _ = server_settings(state_dir)
    progress = run(_read(settings, shard))
    if shard is not None and not progress.shards:
        raise ConfigError(f"--shard: there is no MailboxShard {shard}")
    if as_json:
        click.echo(json.dumps(document(progress), indent=2))
        return
    if progress.outbox:
        click.echo(_outbox(progress.outbox) + "\n")
    click.echo(_shards(progress.shards))
    if shard is not None:
        click.echo("\n" + lanes(progress.shards[0].lanes))


async def _read(settings: Settings, shard: int | None) -> PipelineProgress:
    from qim_streams.roles.tracing import tracing

    async with tracing(settings) as deps:
        await with_partition_counts(settings, deps.log)
        return await read_progress(deps.log, deps.mailboxes, deps.archive, shard)


def document(progress: PipelineProgress) -> dict[str, Any]:
    """The progress as JSON values, lags included."""
    return {
        "outbox": [
            asdict(row) | {"fanout_lag": row.fanout_lag, "archive_lag": row.archive_lag}
            for row in progress.outbox
        ],
        "shards": [asdict(row) | {"lag": row.lag} for row in progress.shards],
    }


def _outbox(rows: list[OutboxRow]) -> str:
    return columns(
        ("OUTBOX", "END", "DISPATCHED THROUGH", "LAG", "AT", "ARCHIVED THROUGH", "LAG"),
        [
            (
                row.partition,
                row.end,
                row.dispatched_through,
                row.fanout_lag,
                moment(row.dispatched_at_ms),
                row.archived_through,
                row.archive_lag,
            )
            for row in rows
        ],
    )


def _shards(rows: list[ShardRow]) -> str:
    return columns(
        ("SHARD", "END", "EPOCH", "W", "LAG", "LAST PAGE", "DISPATCHES", "AT"),
        [
            (
                row.shard,
                row.end,
                row.epoch,
                span(row.lanes),
                row.lag,
                None if row.page_last is None else f"{row.page_first}..{row.page_last}",
                row.page_dispatches,
                moment(row.page_at_ms),
            )
            for row in rows
        ],
    )


def span(values: tuple[int, ...]) -> str:
    """The smallest and the largest of W's lanes, once where they are equal."""
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}..{high}"


def lanes(values: tuple[int, ...]) -> str:
    """W of every lane, a few per line."""
    header = ("LANES", *(f"+{offset}" for offset in range(LANES_PER_LINE)))
    rows = [
        (start, *values[start : start + LANES_PER_LINE]) for start in range(0, len(values), LANES_PER_LINE)
    ]
    return columns(header, rows)
