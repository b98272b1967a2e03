"""The console's routes without a socket: key, bounds, files, policy, and the API's form of what is said.

Spec: §11; T-N1, T-X1.
"""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from qim_streams.console.dead_letters import LetterPage
from qim_streams.console.directory import ConversationPage, MessagePage, SessionPage, UserPage
from qim_streams.console.model import PartitionView, StageView, TopologyView
from qim_streams.console.refusals import ConsoleRefusal
from qim_streams.console.services import ConsoleDeps
from qim_streams.console.worker_tables import Table, TablePage
from qim_streams.errors import Outcome, ProtocolError, StoreUnavailable
from tests.unit.api.fakes import FakeWriter, client, deps

LETTER = "/v1/dead-letters/0-3"
PARTITION = PartitionView(0, "t", 1, 1, 1.0, 1.0, 0, 0.0, "w", 3, "ok", None)
ROUTES = [
    "/v1/topology", "/v1/gateways", "/v1/tables", "/v1/tables/lane_watermarks/rows", "/v1/shards",
    "/v1/shards/1",
    "/v1/leases", "/v1/dead-letters", LETTER, "/v1/tenants", "/v1/tenants/acme/users",
    "/v1/tenants/acme/users/ann",
    "/v1/tenants/acme/users/ann/sessions", "/v1/tenants/acme/conversations",
    "/v1/tenants/acme/conversations/room/messages",
]  # fmt: skip


class Fake:
    """Every service of the console in one: remembers how it was asked; `failure` is raised once set."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.failure: Exception | None = None
        self.urls = ["ws://127.0.0.1:8080/ws", "wss://chat.example/ws"]

    def _note(self, *call: Any) -> None:
        self.asked.append(call)
        if self.failure is not None:
            raise self.failure

    async def gateways(self) -> list[str]:
        self._note("gateways")
        return self.urls

    async def read(self) -> TopologyView:
        self._note("topology")
        stages = [
            StageView(name, name, "ok", [], 1.0, 1.0, 0, 0.0, [], 1, 1, [PARTITION]) for name in ("a", "b")
        ]
        return TopologyView(1, 10.0, stages, [])

    async def rows(self, table: Table, partition: int | None, fields: dict[str, str]) -> TablePage:
        self._note(table.name, partition, fields)
        return TablePage(table.name, partition, "http://w", [{"anything": [1]}])

    async def users(self, *given: Any) -> UserPage:
        self._note("users", *given)
        return UserPage([], "3.0")

    async def sessions(self, *given: Any) -> SessionPage:
        self._note("sessions", *given)
        return SessionPage([], None, True)

    async def conversations(self, *given: Any) -> ConversationPage:
        self._note("conversations", *given)
        return ConversationPage([], None)

    async def messages(self, *given: Any) -> MessagePage:
        self._note("messages", *given)
        return MessagePage([])

    async def page(self, *given: Any) -> LetterPage:
        self._note("letters", *given)
        return LetterPage([], None)

    async def give_back(self, letter: str) -> Any:
        self._note("give_back", letter)

    discard = give_back


@pytest.fixture
def fake() -> Fake:
    return Fake()


def console(fake: Any) -> ConsoleDeps:
    """The console's dependencies, all of them `fake`."""
    return ConsoleDeps(fake, fake.gateways, fake, fake, fake, fake)


@pytest.fixture
async def api(fake: Fake) -> AsyncIterator[httpx.AsyncClient]:
    async with client(deps(FakeWriter(), console=console(fake))) as session:
        yield session


@pytest.mark.parametrize("path", ROUTES)
async def test_nothing_is_told_without_the_key(fake: Fake, path: str) -> None:
    async with client(deps(FakeWriter(), console=console(fake)), key=None) as stranger:
        assert (await stranger.get(path)).status_code == 401
        assert (await stranger.post(f"{LETTER}/discard")).status_code == 401
    assert not fake.asked


async def test_what_is_asked_for_reaches_the_services(api: httpx.AsyncClient, fake: Fake) -> None:
    asked = [
        ("/v1/topology", ("topology",)),
        (
            "/v1/tables/dispatch_progress/rows?partition=3&limit=5&next_from=3&next_after=00ff",
            ("dispatch_progress", 3, {"limit": "5", "from": "3", "after": "00ff"}),
        ),
        (
            "/v1/tables/presence/rows?partition=3&tenant=acme&ordinal=70",
            ("presence", 3, {"tenant": "acme", "ordinal": "70", "limit": "50"}),
        ),
        ("/v1/tenants/acme/users?contains=an&limit=7&cursor=3.0", ("users", "acme", "3.0", 7, "an")),
        ("/v1/tenants/acme/users/ann/sessions", ("sessions", "acme", "ann", None, 50)),
        ("/v1/tenants/acme/conversations?kind=group", ("conversations", "acme", None, 50, "", "group")),
        ("/v1/tenants/acme/conversations/room/messages?before_seq=9", ("messages", "acme", "room", 9, 50)),
        ("/v1/dead-letters?state=open&contains=x", ("letters", None, 50, "open", "x")),
    ]  # fmt: skip
    for path, call in asked:
        answer = await api.get(path)
        assert answer.status_code == 200, answer.text
        assert fake.asked[-1] == call


async def test_partitions_of_one_stage_are_enough(api: httpx.AsyncClient) -> None:
    """Hundreds of partitions of each stage are not sent every two seconds to who looks at one."""
    for query, counts in (("", [1, 1]), ("?partitions_of=b", [0, 1]), ("?partitions_of=-", [0, 0])):
        stages = (await api.get(f"/v1/topology{query}")).json()["stages"]
        assert [len(one["partitions"]) for one in stages] == counts
        assert [one["partitions_total"] for one in stages] == [1, 1]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/tables/everything/rows", "/v1/tables/presence/rows?partition=4096",
        "/v1/tables/presence/rows?limit=201",
        "/v1/tables/presence/rows?next_after=zz", "/v1/tables/presence/rows?tenant=a:b", "/v1/shards/-1",
        "/v1/shards/4096", "/v1/dead-letters/0-1-2", "/v1/dead-letters/..%2f", "/v1/dead-letters?limit=0",
        "/v1/dead-letters?state=all", "/v1/tenants/acme/users?contains=*", "/v1/tenants/acme/users?limit=201",
        "/v1/tenants/a:b/users", "/v1/tenants/acme/conversations?kind=room",
        "/v1/tenants/acme/conversations/room/messages?before_seq=0",
        f"/v1/tenants/acme/users?cursor={'9' * 300}",
    ],
)  # fmt: skip
async def test_what_is_out_of_bounds_reaches_nothing(api: httpx.AsyncClient, fake: Fake, path: str) -> None:
    answer = await api.get(path)
    assert answer.status_code in (404, 422), answer.text
    assert {"code", "name", "detail"} <= set(answer.json())
    assert not fake.asked


@pytest.mark.parametrize(
    ("failure", "status", "name"),
    [
        (StoreUnavailable("redis: refused", Outcome.NOT_APPLIED), 503, "STORE_UNAVAILABLE"),
        (ConsoleRefusal("NO_USER", "nobody"), 404, "NO_USER"),
        (ProtocolError("FIELD_INVALID", "cursor: is not one of ours", field="cursor"), 422, "FIELD_INVALID"),
    ],
)
async def test_failures_have_the_form_of_the_api(
    api: httpx.AsyncClient, fake: Fake, failure: Exception, status: int, name: str
) -> None:
    fake.failure = failure
    answer = await api.get("/v1/tenants/acme/users")
    assert (answer.status_code, answer.json()["name"]) == (status, name)
    assert "redis" not in answer.text


async def test_a_change_needs_another_verb(api: httpx.AsyncClient, fake: Fake) -> None:
    """Looking never changes: no GET gives back or discards."""
    for what in ("give-back", "discard"):
        assert (await api.get(f"{LETTER}/{what}")).status_code == 405
    assert not fake.asked


async def test_the_document_has_every_route(api: httpx.AsyncClient) -> None:
    paths = (await api.get("/openapi.json")).json()["paths"]
    for path in (
        "/v1/topology",
        "/v1/tables/{table}/rows",
        "/v1/dead-letters/{letter}/give-back",
        "/v1/leases",
    ):
        assert path in paths
    assert "/console/{path}" not in paths
    assert (await api.get("/docs")).status_code == 200


async def test_switched_off_there_is_nothing() -> None:
    async with client(deps(FakeWriter())) as without:
        for path in ("/console/", "/console", "/v1/topology", "/v1/tenants"):
            assert (await without.get(path)).status_code == 404


# -- files


async def test_files_come_without_a_key_and_with_a_policy(fake: Fake) -> None:
    async with client(deps(FakeWriter(), console=console(fake)), key=None) as stranger:
        page = await stranger.get("/console/")
        assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/html")
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert "ws:" not in page.headers["content-security-policy"]
        assert (await stranger.get("/console")).headers["location"] == "/console/"
        script = await stranger.get("/console/js/app.js")
        assert script.headers["content-type"].startswith("text/javascript")
        assert script.headers["x-content-type-options"] == "nosniff"
        tag = {"If-None-Match": script.headers["etag"]}
        assert (await stranger.get("/console/js/app.js", headers=tag)).status_code == 304


async def test_only_the_chat_page_may_reach_the_gateways(api: httpx.AsyncClient, fake: Fake) -> None:
    policy = (await api.get("/console/chat")).headers["content-security-policy"]
    assert "connect-src 'self' ws://127.0.0.1:8080 wss://chat.example;" in policy
    fake.failure = StoreUnavailable("no leases")
    assert (await api.get("/console/chat")).status_code == 200, (
        "the page says itself that no gateway is known"
    )


@pytest.mark.parametrize(
    "path",
    [
        "/console/../settings.py", "/console/..%2f..%2fsettings.py", "/console/%2e%2e/assets.py",
        "/console//etc/passwd",
        "/console/js/..%5c..%5cassets.py", "/console/static/index.html", "/console/js/",
        "/console/index.html%00.js",
        "/console/assets.py", "/console/js/app.js/", "/console/%c0%ae%c0%ae/x",
    ],
)  # fmt: skip
async def test_tricks_with_paths_lead_nowhere(api: httpx.AsyncClient, path: str) -> None:
    """T-X1: what is not in the table does not exist."""
    answer = await api.get(httpx.URL("http://api").copy_with(raw_path=path.encode()))
    assert answer.status_code in (404, 405), path
    assert b"import" not in answer.content
