"""``qim config``: every setting, its variable, value, default, unit and meaning; and whether all is well.

Secrets are shown as set or not set, never as themselves. Exit code 1 when a value is wrong, with one
line per field; with ``--check`` also when a QIM_* variable is one that nothing reads.
"""

import json
import sys
from typing import Any

import click
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from qim_streams.cli.columns import columns
from qim_streams.settings import Settings, problems, unknown_variables

MASK = "********"
_UNITS = (
    ("_bytes_max", "bytes"),
    ("_ms", "ms"),
    ("_s", "s"),
    ("_max", "count"),
    ("_members", "count"),
    ("_partitions", "count"),
    ("_shards", "count"),
    ("_max_entries", "count"),
)


@click.command()
@click.option(
    "--check", "check_only", is_flag=True, help="print problems only; unknown variables are problems"
)
@click.option("--json", "as_json", is_flag=True, help="as JSON")
def config(check_only: bool, as_json: bool) -> None:
    """Print and check the settings that this environment gives."""
    wrong, unknown = problems(), unknown_variables()
    rows = [] if wrong or check_only else _rows(Settings())
    if as_json:
        click.echo(json.dumps({"settings": rows, "problems": wrong, "unknown": unknown}, indent=2))
    else:
        _print(rows)
        for line in wrong:
            click.echo(line, err=True)
        for name in unknown:
            click.echo(f"{name}: no setting reads this variable; check its spelling", err=True)
    if wrong or (check_only and unknown):
        sys.exit(1)
    if check_only and not as_json:
        click.echo(f"{len(Settings.model_fields)} settings are in order")


def _print(rows: list[dict[str, Any]]) -> None:
    for section in dict.fromkeys(row["section"] for row in rows):
        shown = [
            (
                row["variable"],
                row["value"],
                row["default"] if row["set"] else "",
                row["unit"],
                row["description"],
            )
            for row in rows
            if row["section"] == section
        ]
        click.echo(f"[{section}]")
        click.echo(
            columns(("VARIABLE", "VALUE", "DEFAULT IF CHANGED", "UNIT", "MEANING"), shown, indent="  ")
        )
        click.echo()


def _rows(settings: Settings) -> list[dict[str, Any]]:
    return [_row(settings, name, field) for name, field in Settings.model_fields.items()]


def _row(settings: Settings, name: str, field: FieldInfo) -> dict[str, Any]:
    extra = field.json_schema_extra
    assert isinstance(extra, dict), f"{name} has no section"
    return {
        "section": str(extra["section"]),
        "name": name,
        "variable": f"QIM_{name.upper()}",
        "value": _plain(getattr(settings, name)),
        "default": _plain(field.default),
        "set": name in settings.model_fields_set,
        "unit": unit_of(name),
        "description": field.description or "",
    }


def unit_of(name: str) -> str:
    """The unit that a setting's name ends in, "" for a name without one."""
    return next((unit for suffix, unit in _UNITS if name.endswith(suffix)), "")


def _plain(value: Any) -> Any:
    """A value that may be shown: no secret, no path object."""
    if isinstance(value, SecretStr):
        return MASK if value.get_secret_value() else ""
    return value if isinstance(value, int | float | str | None) else str(value)
