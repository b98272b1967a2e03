"""``qim audit``: look at the record of admin actions, and check that nobody changed it."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from qim_streams.admin.audit_files import all_files, lines_of, newest
from qim_streams.admin.audit_lines import CONTINUED, LINE_MAX, first_number, problems
from qim_streams.settings import load_settings
from qim_streams.wire.answers import shown

LAST_MAX = 10_000

_FILE = click.argument("file", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False))


@click.group()
def audit() -> None:
    """The record of admin actions (FILE: by default that of the settings), with the older files beside it."""


@audit.command()
@_FILE
def verify(file: Path | None) -> None:
    """Check that every line follows the one before it; exit code 1 when one does not."""
    path = file or load_settings().audit_path
    files, found = all_files(path), 0
    for problem in problems(lines_of(files)):
        found += 1
        click.echo(problem)
    if found:
        sys.exit(1)
    click.echo(f"{path}: every line follows the one before it")
    begins = next((first_number(line) for _, line in lines_of(files[:1])), 1)
    if begins != 1:
        click.echo(f"it begins with number {begins}: what was before is in files that are not here")


@audit.command()
@_FILE
@click.option(
    "--last",
    type=click.IntRange(1, LAST_MAX),
    default=50,
    show_default=True,
    metavar="LINES",
    help="how many",
)
def show(file: Path | None, last: int) -> None:
    """The newest lines, one step each."""
    path = file or load_settings().audit_path
    for line in newest(all_files(path), last):
        click.echo(shown(_shown(line), LINE_MAX))  # a stranger chose the path that he asked for


def _shown(line: bytes) -> str:
    try:
        row = json.loads(line)
        at = datetime.fromtimestamp(row["at_ms"] / 1_000, UTC).isoformat(timespec="milliseconds")
        if row["step"] == CONTINUED:
            return f"{at}  {row['n']:>6}  continued in a new file"
        if row["step"] == "ended":
            return f"{at}  {row['n']:>6}  ended   {row['of']}: {row['outcome']}"
        who = f"{row['who'] or 'somebody'} ({row['role'] or 'no key'}) from {row['origin']}"
        return (
            f"{at}  {row['n']:>6}  {row['step']:<7} {row['what']}  by {who} {row.get('outcome', '')}".rstrip()
        )
    except (ValueError, KeyError, TypeError):
        return "a line that is none of ours"
