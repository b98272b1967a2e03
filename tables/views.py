"""Web views of a worker's tables: readable JSON, and one HTML page that shows it.

``GET /qim/tables/`` is the page, ``GET /qim/tables/index/`` the list of tables, and
``GET /qim/tables/<name>/`` the rows, with the query fields

* ``partition``: one partition (default: all that this worker serves);
* ``offset``: start at the row that covers this offset (tables that have offsets);
* ``from`` and ``after``: go on in this partition after this key (the ``next`` of the answer before);
* ``limit``: rows per answer, 1 to 200 (default 50).

Read-only, off unless `web_enabled`, on loopback unless told otherwise. The pages are served by the
worker's own event loop: an answer reads at most `SCANNED_MAX` keys, and is bounded in rows.

Spec: §11 rule 3 (what is not served here is said to be so).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from qim_streams.errors import RecordError
from qim_streams.mailbox.ports import ChangelogTable
from qim_streams.streaming.app import StreamApp
from qim_streams.streaming.table import AckedTable
from qim_streams.streaming.web import OK, Page, add_page

LIMIT_DEFAULT, LIMIT_MAX = 50, 200
SCANNED_MAX = 1_000
BAD_REQUEST, NOT_HERE = 400, 404
ROOT = "/qim/tables/"

Row = Callable[[bytes, bytes], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class TableView:
    """How a table is shown. `row` turns a key and value into JSON; `is_shown` leaves other keys out."""

    name: str
    text: str
    row: Row
    first_key: bytes = b"\x01"  # above the local keys, which may be millions
    is_shown: Callable[[bytes], bool] = bool
    start_of: Callable[[int], bytes] | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A checked request. `after` is the key in the first of `partitions` that was the last one shown."""

    partitions: Sequence[int]
    start: bytes
    after: bytes | None
    limit: int


class BadQuery(ValueError):
    """A query field is wrong; the text names it."""


def parse_query(view: TableView, fields: Mapping[str, str], served: Sequence[int]) -> Query:
    """The request's fields; BadQuery names the one that is wrong."""
    limit = number_of(fields, "limit", LIMIT_DEFAULT)
    if not 1 <= limit <= LIMIT_MAX:
        raise BadQuery(f"limit: must be 1 to {LIMIT_MAX}")
    partition = number_of(fields, "partition", None)
    partitions = list(served) if partition is None else [partition]
    start = view.first_key
    if "offset" in fields:
        if view.start_of is None:
            raise BadQuery(f"offset: table {view.name} has no offsets")
        start = view.start_of(number_of(fields, "offset", 0))
    if ("after" in fields) != ("from" in fields):
        raise BadQuery("after, from: give both, as `next` of the answer before has them")
    if "after" not in fields:
        return Query(partitions, start, None, limit)
    resumed = number_of(fields, "from", 0)
    try:
        after = bytes.fromhex(fields["after"])
    except ValueError:
        raise BadQuery("after: must be the hex digits of a key") from None
    return Query([one for one in partitions if one >= resumed], start, after, limit)


def number_of(fields: Mapping[str, str], name: str, default: Any) -> Any:
    """A field that is a number, `default` where it is not given; BadQuery names it."""
    text = fields.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise BadQuery(f"{name}: must be a number")
    return int(text)


def read_rows(
    view: TableView, table: ChangelogTable, query: Query
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Up to `limit` rows, and where to go on (partition and key), None at the end."""
    rows: list[dict[str, Any]] = []
    scanned, last = 0, query.after
    for number, partition in enumerate(query.partitions):
        resumed = query.after if number == 0 else None
        for key, value in table.iterate(partition, resumed or query.start):
            if key == resumed:
                continue
            if len(rows) >= query.limit or scanned >= SCANNED_MAX:
                return rows, {"from": partition, "after": (last or b"").hex()}
            scanned, last = scanned + 1, key
            if view.is_shown(key):
                rows.append({"partition": partition, "key": key.hex()} | _shown(view, key, value))
        last = None
    return rows, None


def _shown(view: TableView, key: bytes, value: bytes) -> dict[str, Any]:
    try:
        return view.row(key, value)
    except RecordError as error:
        return {"error": str(error), "bytes": len(value)}


def answer(view: TableView, table: AckedTable, partitions: int, fields: Mapping[str, str]) -> Page:
    """What a request for `view` is answered."""
    served = [one for one in range(partitions) if table.store.is_open(one)]
    try:
        query = parse_query(view, fields, served)
    except BadQuery as error:
        return Page({"error": str(error)}, BAD_REQUEST)
    foreign = [one for one in query.partitions if one not in served]
    if foreign:
        return Page({"error": f"partition {foreign[0]} is not served here", "served": served}, NOT_HERE)
    rows, after = read_rows(view, table, query)
    return Page({"table": view.name, "served": served, "rows": rows, "next": after}, OK)


def add_table_views(app: StreamApp, tables: Sequence[tuple[TableView, AckedTable, int]]) -> None:
    """Serve the tables of a worker; each with its partition count. Without web nothing listens."""
    index = [{"name": view.name, "text": view.text, "path": f"{ROOT}{view.name}/"} for view, _, _ in tables]

    async def list_tables(_: Any) -> Page:
        return Page({"role": app.stream_spec.role, "tables": index})

    add_page(app, f"{ROOT}index/", list_tables)
    for view, table, partitions in tables:
        _add_rows(app, view, table, partitions)
    html = resources.files("tables").joinpath("tables.html").read_text()

    async def page(self: Any, request: Any) -> Any:
        return self.html(html)

    app.page(ROOT, name="qim_tables")(page)


def _add_rows(app: StreamApp, view: TableView, table: AckedTable, partitions: int) -> None:
    async def rows(request: Any) -> Page:
        return answer(view, table, partitions, request.query)

    add_page(app, f"{ROOT}{view.name}/", rows)
