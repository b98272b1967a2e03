"""Tables and presence, read from the workers that own them, through their web views.

A question about a partition goes to every known worker; the one that serves it answers with rows, the others
say that they do not. What comes back says which worker it was, and which ones did not answer and why: an
answer without rows is never mistaken for an empty table.

Bounds: `LIMIT_MAX` rows of one answer, `PAGES_MAX` answers of one worker where a whole table is asked for.

Spec: §11 rule 3.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from qim_streams.console.ports import Answer, Pages
from qim_streams.errors import ProtocolError

ROOT: Final = "/qim/tables/"
LIMIT_MAX: Final = 200
PAGES_MAX: Final = 25
OK, BAD_REQUEST, NOT_FOUND = 200, 400, 404


@dataclass(frozen=True, slots=True)
class Table:
    """A table. `whole`: small enough to be shown for all partitions at once, from all workers."""

    name: str
    title: str
    text: str
    whole: bool


TABLES: Final = {
    one.name: one
    for one in (
        Table("lane_watermarks", "W[lane]", "how far each of the 64 lanes of a shard is covered", whole=True),
        Table("dispatch_progress", "DispatchProgress", "which dispatches of a shard are done", whole=False),
        Table("conversation_progress", "Fan-out", "up to where the Outbox is dispatched", whole=True),
        Table("presence", "Presence", "devices that are pushed to", whole=False),
    )
}


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A worker that was asked and did not answer."""

    worker: str
    why: str


@dataclass(frozen=True, slots=True)
class TablePage:
    """Rows as the worker shows them. `worker` null: no worker that answers serves the partition.

    Pass `next_from` and `next_after` on for more. `served`: partitions by worker, of those that answered.
    """

    table: str
    partition: int | None
    worker: str | None
    rows: list[dict[str, Any]]
    next_from: int | None = None
    next_after: str | None = None
    served: dict[str, list[int]] = field(default_factory=dict)
    unanswered: list[Unanswered] = field(default_factory=list)
    note: str | None = None


class WorkerTables:
    """Asks the workers at `urls`."""

    def __init__(self, pages: Pages, urls: Sequence[str]) -> None:
        self._pages, self._urls = pages, list(urls)

    async def rows(self, table: Table, partition: int | None, fields: Mapping[str, str]) -> TablePage:
        """A page of a partition, or all rows of a table that is small. ProtocolError: a field is wrong."""
        if not self._urls:
            return TablePage(table.name, partition, None, [], note=CLOSED)
        if partition is None:
            return await self._whole(table)
        wanted = {**fields, "partition": str(partition)}
        answers = await asyncio.gather(*(self._pages.get(_url(one, table), wanted) for one in self._urls))
        found = _Gathered(self._urls, answers)
        for url, answer in zip(self._urls, answers, strict=True):
            if answer.status == BAD_REQUEST:
                raise ProtocolError("FIELD_INVALID", str(answer.content.get("error"))[:200])
            if answer.status == OK and answer.problem is None:
                rows, after, at = read_page(answer.content)
                return TablePage(table.name, partition, url, rows, at, after, found.served, found.unanswered)
        return TablePage(
            table.name,
            partition,
            None,
            [],
            None,
            None,
            found.served,
            found.unanswered,
            found.nobody(partition),
        )

    async def _whole(self, table: Table) -> TablePage:
        if not table.whole:
            raise ProtocolError(
                "FIELD_INVALID", f"partition: {table.name} is shown for one at a time", field="partition"
            )
        parts = await asyncio.gather(*(self._all_of(url, table) for url in self._urls))
        found = _Gathered(self._urls, [answer for answer, _ in parts])
        rows = [row for _, of_worker in parts for row in of_worker]
        rows.sort(key=lambda row: (row.get("partition", 0), str(row.get("key"))))
        note = None if rows or found.served else NOBODY
        return TablePage(table.name, None, None, rows, None, None, found.served, found.unanswered, note)

    async def _all_of(self, url: str, table: Table) -> tuple[Answer, list[dict[str, Any]]]:
        """Every row of a worker, up to a bound; its last answer."""
        fields, found = {"limit": str(LIMIT_MAX)}, list[dict[str, Any]]()
        answer = Answer(url, 0, problem="was not asked")
        for _ in range(PAGES_MAX):
            answer = await self._pages.get(_url(url, table), fields)
            if answer.status != OK or answer.problem is not None:
                break
            rows, after, at = read_page(answer.content)
            found += [{**row, "worker": url} for row in rows]
            if after is None or at is None:
                break
            fields |= {"from": str(at), "after": after}
        return answer, found


CLOSED: Final = (
    "no web view of a worker is known: start the stack with `qim up --web`, or set QIM_WEB_ENABLED for the "
    "workers and QIM_CONSOLE_WORKERS for the API"
)
NOBODY: Final = "no worker of this stage answers: look at the topology, and at `qim status`"


class _Gathered:
    """Who serves what, and who did not answer."""

    def __init__(self, urls: Sequence[str], answers: Sequence[Answer]) -> None:
        self.served: dict[str, list[int]] = {}
        self.unanswered: list[Unanswered] = []
        for url, answer in zip(urls, answers, strict=True):
            if answer.problem is not None:
                self.unanswered.append(Unanswered(url, answer.problem))
            elif answer.status == OK or (answer.status == NOT_FOUND and isinstance(answer.content, dict)):
                self.served[url] = [one for one in _list(answer.content, "served") if isinstance(one, int)]
            # else: a worker of another role, which has no such page

    def nobody(self, partition: int) -> str:
        """Why there is no answer about a partition."""
        if self.unanswered:
            return (
                f"partition {partition} is served by none of the workers that answer; "
                f"{len(self.unanswered)} did not answer"
            )
        if not self.served:
            return NOBODY
        return f"no worker serves partition {partition} now: it is being moved, or there is no such partition"


def read_page(content: Any) -> tuple[list[dict[str, Any]], str | None, int | None]:
    """Rows of a worker's answer, and where to go on (key, partition). What has another form is left out."""
    rows = [row for row in _list(content, "rows") if isinstance(row, dict)][:LIMIT_MAX]
    following = content.get("next") if isinstance(content, dict) else None
    if not isinstance(following, dict):
        return rows, None, None
    after, at = following.get("after"), following.get("from")
    known = isinstance(after, str) and isinstance(at, int)
    return rows, after if known else None, at if known else None


def _list(content: Any, name: str) -> list[Any]:
    value = content.get(name) if isinstance(content, dict) else None
    return value if isinstance(value, list) else []


def _url(url: str, table: Table) -> str:
    return f"{url}{ROOT}{table.name}/"
