"""``qim repair status|run``: the hot tier (Redis) held against the logs, and brought back.

Exit code of both: 0 when everything is whole, 3 when something is left to repair.
"""

import json
import sys
from pathlib import Path
from typing import Any

import click

from qim_streams.cli.columns import columns
from qim_streams.cli.connect import run as run_command
from qim_streams.cli.servers import server_settings, with_partition_counts
from qim_streams.errors import ConfigError
from qim_streams.repair.rules import OutboxStanding, RepairStatus, Standing
from qim_streams.settings import Settings

TO_REPAIR = 3
WAIT_S = 600.0


@click.group()
def repair() -> None:
    """Compare Redis with the logs after it lost data, and bring it back.

    Redis holds numbers, members, messages and mailboxes; the logs hold what was acknowledged. A Redis that
    was emptied, cut back or replaced by an old copy is noticed by the writers and mailbox workers, which
    repair it by themselves before they serve. `status` shows how far that is, `run` does it where no writer
    runs.
    """


_STATE_DIR = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="state directory of the running stack; default: .qim/up, then .qim/demo, then QIM_* variables",
)


@repair.command()
@_STATE_DIR
@click.option("--json", "as_json", is_flag=True, help="as JSON")
def status(state_dir: Path | None, as_json: bool) -> None:
    """Show what is behind what. Exit code 0: whole; 3: something to repair.

    \b
    OUTBOX  whole     its owner has proved that Redis lacks nothing
            unproved  Redis was started anew and nobody has compared it yet
            behind    Redis lacks records that the log has
            lost      the log has them no more and the archive never had them
    SHARD   behind    mailboxes are being written again from the dispatch log
    """
    settings, _ = server_settings(state_dir)
    found = run_command(_status(settings))
    _show(found, as_json)


@repair.command()
@_STATE_DIR
@click.option(
    "--accept", multiple=True, metavar="ob:P",
    help="give up what partition P lost for good; repeat for each. The refusal without it says the cost",
)  # fmt: skip
@click.option(
    "--wait", type=click.FloatRange(0), default=WAIT_S, show_default=True, metavar="SECONDS",
    help="how long to wait for writers and mailbox workers",
)  # fmt: skip
@click.option(
    "--json", "as_json", is_flag=True, help="the status at the end as JSON; progress goes to stderr"
)
def run(state_dir: Path | None, accept: tuple[str, ...], wait: float, as_json: bool) -> None:
    """Repair, show progress, and wait until everything is whole.

    Where writers run, they repair what they own and this waits for them. Where none runs, it takes their
    leases one by one and does the same; a writer that starts meanwhile waits its turn. Mailboxes are
    written again by the mailbox workers. May be killed and repeated at any time.
    """
    settings, _ = server_settings(state_dir)
    partitions = [_partition(text) for text in accept]
    found = run_command(_run(settings, partitions, wait))
    _show(found, as_json)


async def _status(settings: Settings) -> RepairStatus:
    from qim_streams.repair.status import read_status
    from qim_streams.roles.repairing import repairing

    async with repairing(await _counted(settings)) as found:
        return await read_status(found.sources)


async def _run(settings: Settings, accept: list[int], wait_s: float) -> RepairStatus:
    from qim_streams.repair.status import read_status
    from qim_streams.roles.repairing import repairing

    async with repairing(await _counted(settings)) as found:
        before = {one.partition: one for one in (await read_status(found.sources)).outbox}
        for partition in accept:
            one = before.get(partition)
            if one is None or one.standing is not Standing.LOST:
                raise ConfigError(f"--accept ob:{partition}: nothing of it is lost; see `qim repair status`")
            await found.sources.marks.accept(partition, one.begin)
        return await found.run(wait_s, lambda line: click.echo(line, err=True)).run()


async def _counted(settings: Settings) -> Settings:
    from qim_streams.trace.kafka_log import KafkaLogReader

    log = KafkaLogReader(settings.kafka)
    try:
        return await with_partition_counts(settings, log)
    finally:
        await log.close()


def _partition(text: str) -> int:
    name, _, number = text.partition(":")
    if name != "ob" or not number.isdigit():
        raise ConfigError(f"--accept {text!r}: must name an Outbox partition, such as ob:3")
    return int(number)


def _show(found: RepairStatus, as_json: bool) -> None:
    click.echo(json.dumps(document(found), indent=2) if as_json else text_of(found))
    if not found.is_whole:
        sys.exit(TO_REPAIR)


def document(found: RepairStatus) -> dict[str, Any]:
    """The status as JSON values."""
    return {
        "whole": found.is_whole,
        "writers": found.writers,
        "outbox": [
            {
                "partition": one.partition,
                "standing": one.standing.value,
                "log": [one.begin, one.end],
                "known": one.tail,
                "records_behind": 0 if one.proved else one.records_behind,
                "changes_end": one.change_end,
                "changes_known": one.change_tail,
                "changes_behind": 0 if one.proved else one.changes_behind,
                "archived": one.archived,
                "lost_records": 0 if one.proved else one.lost_records,
            }
            for one in found.outbox
        ],
        "shards": [
            {
                "shard": one.shard,
                "standing": one.standing.value,
                "watermark": one.watermark,
                "goal": one.goal,
                "log_end": one.end,
                "owned": one.owned,
            }
            for one in found.shards
        ],
    }


def text_of(found: RepairStatus) -> str:
    """The status for people."""
    outbox = columns(
        ("OUTBOX", "STANDING", "LOG", "REDIS KNOWS TO", "CHANGES END", "REDIS KNOWS TO", "ARCHIVED TO"),
        [_outbox_row(one) for one in found.outbox],
    )
    shards = columns(
        ("SHARD", "STANDING", "MAILBOXES TO", "WERE AT", "LOG END", "OWNED"),
        [
            (one.shard, one.standing.value, one.watermark, one.goal, one.end, "yes" if one.owned else "no")
            for one in found.shards
        ],
    )
    verdict = "everything is whole" if found.is_whole else "something is left to repair: `qim repair run`"
    return f"{outbox}\n\n{shards}\n\n{found.writers} writers alive; {verdict}"


def _outbox_row(one: OutboxStanding) -> tuple[object, ...]:
    return (
        one.partition,
        one.standing.value,
        f"{one.begin} to {one.end - 1}",
        one.tail,
        one.change_end,
        one.change_tail,
        one.archived,
    )
