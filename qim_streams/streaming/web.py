"""Read-only pages on a worker's web port: liveness, readiness, partitions, and what roles add.

Off unless the spec says so, bound to loopback, GET only, JSON only. Faust's own pages for tables, router,
statistics and metrics are switched off: they show data to anyone.

`/live` answers 200 while the event loop turns; `/ready` answers 200 only when the worker is in its group,
recovered, and every partition it owns has started, moves, and is not too far behind, else 503 with the
reasons (the web port opens before that).

Spec: §11 rule 3 (never serve what has not caught up).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from qim_streams.readiness import document, status_of
from qim_streams.streaming.app import StreamApp

OK: Final = 200


@dataclass(frozen=True, slots=True)
class Page:
    """What a page answers: a JSON value and a status."""

    content: Any
    status: int = OK


PageSource = Callable[[Any], Awaitable[Page]]


def add_page(app: StreamApp, path: str, source: PageSource) -> None:
    """Serve ``GET path`` from `source(request)`; `path` starts with a slash and may hold ``{names}``.

    Without web in the spec this only registers: nothing listens.
    """
    if not path.startswith("/"):
        raise ValueError(f"page {path!r}: must start with a slash")

    async def view(self: Any, request: Any) -> Any:
        page = await source(request)
        return self.json(page.content, status=page.status)

    view.__name__ = "page_" + "".join(c if c.isalnum() else "_" for c in path)
    app.page(path, name=view.__name__)(view)


def add_standard_pages(app: StreamApp) -> None:
    """Add `/live`, `/ready` and `/partitions`."""

    async def live(_: Any) -> Page:
        return Page({"role": app.stream_spec.role, "live": True})

    async def ready(_: Any) -> Page:
        reasons = app.readiness.reasons()
        return Page({"role": app.stream_spec.role} | document(reasons), status_of(reasons))

    async def partitions(_: Any) -> Page:
        consumer = app.consumer
        rows = [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "position": position,
                "queued": app.stream_lanes[tp.topic].queued(tp.partition),
            }
            for tp, position in sorted(consumer.positions.items())
        ]
        return Page({"role": app.stream_spec.role, "assignment": consumer.epoch, "partitions": rows})

    add_page(app, "/live", live)
    add_page(app, "/ready", ready)
    add_page(app, "/partitions", partitions)
