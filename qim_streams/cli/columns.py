"""Text in columns for the terminal: aligned, never cut, so that it can be read, grepped and piped."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

NOTHING = "-"


def columns(header: Sequence[str], rows: Iterable[Sequence[object]], *, indent: str = "") -> str:
    """Rows under a header, each column as wide as its widest cell; the last one is not padded."""
    table = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[index]) for row in table) for index in range(len(header))]
    widths[-1] = 0
    return "\n".join(
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )


def _cell(value: object) -> str:
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def moment(at_ms: int | None) -> str:
    """A time in UTC with milliseconds."""
    if at_ms is None:
        return NOTHING
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration(ms: int | None) -> str:
    """A signed number of milliseconds, in seconds from ten seconds on."""
    if ms is None:
        return NOTHING
    return f"{ms:+d} ms" if abs(ms) < 10_000 else f"{ms / 1000:+.1f} s"


def span(ms: int | None) -> str:
    """A retention in its largest whole unit."""
    if ms is None:
        return NOTHING
    if ms < 0:
        return "for ever"
    for name, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms % size == 0 and ms:
            return f"{ms // size} {name}"
    return f"{ms} ms"
