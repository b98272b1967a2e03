"""Routes of the workers' tables and of presence, read from the workers that own them.

Spec: §5, §6, §11 rule 3.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query

from qim_streams.api import models
from qim_streams.console.services import ConsoleDeps
from qim_streams.console.worker_tables import LIMIT_MAX, TABLES, Table, TablePage

PAGE = 50
OFFSET_MAX = 10**18 - 1
Name = Literal["lane_watermarks", "dispatch_progress", "conversation_progress", "presence"]
Number = Annotated[int | None, Query(ge=0, le=OFFSET_MAX)]


@dataclass(frozen=True, slots=True)
class TablesAnswer:
    """The tables there are."""

    tables: list[Table]


def table_routes(console: ConsoleDeps) -> APIRouter:
    """The routes below ``/v1/tables``."""
    routes = APIRouter(prefix="/v1/tables", tags=["operation"])

    @routes.get("")
    async def list_tables() -> TablesAnswer:
        """The tables that workers show."""
        return TablesAnswer(list(TABLES.values()))

    @routes.get("/{table}/rows")
    async def table_rows(
        table: Annotated[Name, Path()],
        partition: Annotated[
            int | None, Query(ge=0, le=4_095, description="null: all, of small tables")
        ] = None,
        offset: Number = None,
        tenant: Annotated[str | None, Query(pattern=models.ID_PATTERN, description="presence only")] = None,
        ordinal: Number = None,
        next_from: Number = None,
        next_after: Annotated[str | None, Query(pattern="^[0-9a-f]{0,256}$")] = None,
        limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = PAGE,
    ) -> TablePage:
        """Rows as the worker has them; a worker that does not answer is named, with the reason."""
        given = {
            "offset": offset, "tenant": tenant, "ordinal": ordinal, "from": next_from, "after": next_after,
            "limit": limit,
        }  # fmt: skip
        fields = {name: str(value) for name, value in given.items() if value is not None}
        return await console.tables.rows(TABLES[table], partition, fields)

    return routes
