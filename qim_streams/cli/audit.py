"""``qim audit``: look at the record of admin actions, and check that nobody changed it."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from qim_streams.admin.audit import problems
from qim_streams.settings import load_settings

_FILE = click.argument("file", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False))


@click.group()
def audit() -> None:
    """The record of admin actions (FILE: by default that of the settings)."""


@audit.command()
@_FILE
def verify(file: Path | None) -> None:
    """Check that every line follows the one before it; exit code 1 when one does not."""
    path, found = file or load_settings().audit_path, 0
    with path.open("rb") as lines:
        for problem in problems(lines):
            found += 1
            click.echo(problem)
    if found:
        sys.exit(1)
    click.echo(f"{path}: every line follows the one before it")


@audit.command()
@_FILE
@click.option("--last", default=50, show_default=True, help="lines")
def show(file: Path | None, last: int) -> None:
    """The newest lines, one step each."""
    path = file or load_settings().audit_path
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[-last:]:
        click.echo(_shown(line))


def _shown(line: str) -> str:
    try:
        row = json.loads(line)
        at = datetime.fromtimestamp(row["at_ms"] / 1_000, UTC).isoformat(timespec="milliseconds")
        if row["step"] == "ended":
            return f"{at}  {row['n']:>6}  ended   {row['of']}: {row['outcome']}"
        who = f"{row['who'] or 'somebody'} ({row['role'] or 'no key'}) from {row['origin']}"
        return (
            f"{at}  {row['n']:>6}  {row['step']:<7} {row['what']}  by {who} {row.get('outcome', '')}".rstrip()
        )
    except (ValueError, KeyError, TypeError):
        return "a line that is none of ours"
