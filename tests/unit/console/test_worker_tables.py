"""Tables asked of the workers that own them: the right one answers, silence is told. Spec: §11 rule 3."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web

from qim_streams.console.ports import Answer
from qim_streams.console.worker_tables import PAGES_MAX, TABLES, WorkerTables, read_page
from qim_streams.console.worker_views import BYTES_MAX, HttpPages, ask_workers, worker_urls
from qim_streams.errors import ProtocolError

LANES, DISPATCH = TABLES["lane_watermarks"], TABLES["dispatch_progress"]


class Views:
    """Workers by URL; each answers by a function of (table path, fields)."""

    def __init__(self, workers: Mapping[str, Any]) -> None:
        self._workers = workers
        self.asked: list[tuple[str, dict[str, str]]] = []

    async def get(self, url: str, fields: Mapping[str, str] | None = None) -> Answer:
        base = next(one for one in self._workers if url.startswith(one))
        self.asked.append((url, dict(fields or {})))
        found = self._workers[base]
        return found if isinstance(found, Answer) else found(url, dict(fields or {}))


def serving(*partitions: int, per_page: int = 100) -> Any:
    """A worker with a row per served partition."""

    def answer(url: str, fields: dict[str, str]) -> Answer:
        wanted = [int(fields["partition"])] if "partition" in fields else list(partitions)
        if any(one not in partitions for one in wanted):
            return Answer(url, 404, {"error": "not here", "served": list(partitions)})
        start = int(fields.get("from", 0))
        rows = [{"partition": one, "key": "77"} for one in wanted if one >= start][:per_page]
        more = [one for one in wanted if one > rows[-1]["partition"]] if rows else []
        after = {"from": more[0], "after": "77"} if more else None
        return Answer(url, 200, {"served": list(partitions), "rows": rows, "next": after})

    return answer


async def test_the_worker_that_serves_it_answers() -> None:
    views = Views({"http://a": serving(0, 1), "http://b": serving(2, 3)})
    page = await WorkerTables(views, ["http://a", "http://b"]).rows(DISPATCH, 3, {"limit": "5"})
    assert (page.worker, page.rows, page.note) == ("http://b", [{"partition": 3, "key": "77"}], None)
    assert page.served == {"http://a": [0, 1], "http://b": [2, 3]}
    assert views.asked[0] == ("http://a/qim/tables/dispatch_progress/", {"limit": "5", "partition": "3"})


async def test_small_tables_come_whole_from_all_workers() -> None:
    views = Views({"http://a": serving(0, 2, 4, per_page=1), "http://b": serving(1, 3)})
    page = await WorkerTables(views, ["http://a", "http://b"]).rows(LANES, None, {})
    assert [(row["partition"], row["worker"]) for row in page.rows] == [
        (0, "http://a"), (1, "http://b"), (2, "http://a"), (3, "http://b"), (4, "http://a"),
    ]  # fmt: skip


async def test_a_worker_that_never_ends_is_left() -> None:
    def endless(url: str, fields: dict[str, str]) -> Answer:
        return Answer(
            url, 200, {"served": [0], "rows": [{"partition": 0}], "next": {"from": 0, "after": "00"}}
        )

    page = await WorkerTables(Views({"http://a": endless}), ["http://a"]).rows(LANES, None, {})
    assert len(page.rows) == PAGES_MAX


async def test_silence_is_told_and_is_no_empty_table() -> None:
    views = Views({"http://a": Answer("http://a", 0, problem="no answer within 2 s"), "http://b": serving(1)})
    page = await WorkerTables(views, ["http://a", "http://b"]).rows(DISPATCH, 0, {})
    assert (page.worker, page.rows) == (None, [])
    assert [(one.worker, one.why) for one in page.unanswered] == [("http://a", "no answer within 2 s")]
    assert page.note is not None
    assert "1 did not answer" in page.note


async def test_a_partition_that_nobody_serves() -> None:
    page = await WorkerTables(Views({"http://a": serving(1)}), ["http://a"]).rows(DISPATCH, 9, {})
    assert page.note == "no worker serves partition 9 now: it is being moved, or there is no such partition"


async def test_closed_views_say_how_to_open_them() -> None:
    page = await WorkerTables(Views({}), []).rows(LANES, None, {})
    assert "--web" in (page.note or "")


async def test_large_tables_are_asked_for_by_shard() -> None:
    with pytest.raises(ProtocolError, match="partition"):
        await WorkerTables(Views({"http://a": serving(1)}), ["http://a"]).rows(DISPATCH, None, {})


async def test_a_wrong_field_is_the_askers_fault() -> None:
    views = Views({"http://a": Answer("http://a", 400, {"error": "after: must be the hex digits of a key"})})
    with pytest.raises(ProtocolError, match="after"):
        await WorkerTables(views, ["http://a"]).rows(DISPATCH, 0, {})


async def test_workers_of_other_roles_are_not_called_silent() -> None:
    views = Views({"http://a": Answer("http://a", 404, None), "http://b": serving(0)})
    page = await WorkerTables(views, ["http://a", "http://b"]).rows(DISPATCH, 0, {})
    assert (page.worker, page.unanswered) == ("http://b", [])


@pytest.mark.parametrize(
    "content", [None, [], {"rows": 3}, {"rows": ["x"], "next": {"from": "x", "after": 3}}]
)
def test_answers_of_another_form_are_left_out(content: Any) -> None:
    assert read_page(content) == ([], None, None)


# -- over HTTP


async def serve(handler: Any) -> tuple[web.AppRunner, str]:
    """A server on a free port that answers everything by `handler`."""
    app = web.Application()
    app.router.add_get("/{tail:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def over_http(handler: Any, path: str = "/x") -> Answer:
    """What is made of an answer."""
    runner, url = await serve(handler)
    pages = HttpPages()
    try:
        return await pages.get(url + path, {"a": "b c"})
    finally:
        await pages.close()
        await runner.cleanup()


async def test_a_page_over_http() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response({"asked": request.path_qs}, status=404)

    answer = await over_http(handler)
    assert (answer.status, answer.content, answer.problem) == (404, {"asked": "/x?a=b+c"}, None)


async def test_what_is_no_answer_over_http() -> None:
    async def large(request: web.Request) -> web.Response:
        return web.Response(body=b"[" + b" " * BYTES_MAX + b"]")

    async def words(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    async def elsewhere(request: web.Request) -> web.Response:
        raise web.HTTPFound("/y")

    for handler, problem in ((large, "over"), (words, "no JSON"), (elsewhere, "no JSON")):
        assert problem in ((await over_http(handler)).problem or ""), handler
    pages = HttpPages()
    assert "cannot be reached" in ((await pages.get("http://127.0.0.1:1/x")).problem or "")
    await pages.close()


async def test_a_worker_tells_of_itself() -> None:
    async def handler(request: web.Request) -> web.Response:
        if request.path == "/ready":
            return web.json_response(
                {"role": "mailbox-node", "ready": False, "reasons": ["late"]}, status=503
            )
        rows = [{"topic": "d", "partition": 3}, {"topic": "d", "partition": 4}, {"topic": 5}]
        return web.json_response({"partitions": rows})

    runner, url = await serve(handler)
    pages = HttpPages()
    try:
        here, gone = await ask_workers(pages, [url, "http://127.0.0.1:1"])
    finally:
        await pages.close()
        await runner.cleanup()
    assert (here.role, here.ready, here.reasons, here.partitions) == (
        "mailbox-node",
        False,
        ["late"],
        {"d": [3, 4]},
    )
    assert (gone.role, gone.ready) == (None, None)
    assert gone.problem is not None


def test_urls_of_the_setting() -> None:
    assert worker_urls(" http://a:1/ ,, http://b:2") == ["http://a:1", "http://b:2"]
    assert worker_urls("") == []


async def test_slow_workers_are_asked_side_by_side() -> None:
    """The time of the slowest, not the sum: all are waited for at once."""
    waiting = 0
    all_wait = asyncio.Event()

    async def get(url: str, fields: Mapping[str, str] | None = None) -> Answer:
        nonlocal waiting
        waiting += 1
        if waiting == 3:
            all_wait.set()
        await asyncio.wait_for(all_wait.wait(), 30)
        return Answer(url, 404, {"served": []})

    views = Views({})
    views.get = get  # type: ignore[method-assign]
    await WorkerTables(views, ["http://a", "http://b", "http://c"]).rows(DISPATCH, 0, {})
