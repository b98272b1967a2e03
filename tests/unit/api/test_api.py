"""The admin API without a socket: routes, key, limits, one form for every error. Spec: §4; P16, P17, P19."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from qim_streams import ids, limits
from qim_streams.api.app import build_routes
from qim_streams.errors import Outcome, StoreError, StoreUnavailable
from qim_streams.trace.model import MessageTrace
from qim_streams.wire.codes import BY_NAME
from tests.unit.api.fakes import BASE, KEY, POLICIES, FakeWriter, Group, client, deps, fake_trace, well

ROOM = f"{BASE}/groups/room"
FOUND, LOST = "01" * 16, "02" * 16


@pytest.fixture
def writer() -> FakeWriter:
    return FakeWriter()


@pytest.fixture
async def api(writer: FakeWriter) -> AsyncIterator[httpx.AsyncClient]:
    async with client(deps(writer)) as session:
        yield session


async def created(api: httpx.AsyncClient, **fields: object) -> dict[str, object]:
    """Group `room` with ann, bob and cat."""
    body = {"conversation_id": "room", "owner": "ann", "members": ["bob", "cat"], **fields}
    answer = await api.post(f"{BASE}/groups", json=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def failed(answer: httpx.Response, status: int, name: str) -> dict[str, object]:
    """The one form of errors."""
    assert answer.status_code == status, answer.text
    body = dict(answer.json())
    assert set(body) == {"code", "name", "temporary", "detail", "field", "retry_after_ms"}
    assert body["name"] == name
    assert body["code"] == (BY_NAME[name].code if name in BY_NAME else body["code"])
    return body


# -- groups


async def test_a_group_from_beginning_to_end(api: httpx.AsyncClient, writer: FakeWriter) -> None:
    state = await created(api, name="The Room", join_policy="open")
    assert (state["conversation_id"], state["name"], state["members_active"]) == ("room", "The Room", 3)
    assert writer.asked[-1].actor_id == "ann"
    steps = [
        ("POST", f"{ROOM}/members", {"user_ids": ["dan", "eve"]}, None),
        ("POST", f"{ROOM}/members/remove", {"user_ids": ["eve"]}, None),
        ("DELETE", f"{ROOM}/members/dan", None, None),
        ("PUT", f"{ROOM}/members/bob/role", {"role": "admin"}, None),
        ("POST", f"{ROOM}/join", {"user_id": "fay"}, "fay"),
        ("POST", f"{ROOM}/leave", {"user_id": "cat"}, "cat"),
        ("PATCH", ROOM, {"name": "Hall", "send_policy": "admins"}, None),
    ]
    for verb, path, body, actor in steps:
        answer = await api.request(verb, path, json=body)
        assert answer.status_code == 200, answer.text
        assert (writer.asked[-1].tenant_id, writer.asked[-1].actor_id) == ("acme", actor), "on behalf of whom"
    state = (await api.get(ROOM)).json()
    assert [(one["user_id"], one["role"]) for one in state["members"]] == [
        ("ann", "owner"), ("bob", "admin"), ("fay", "member"),
    ]  # fmt: skip
    assert (state["name"], state["send_policy"], state["join_policy"]) == ("Hall", "admins", "open")
    assert (await api.delete(ROOM)).json()["dismissed"] is True


async def test_a_group_without_an_id_gets_one(api: httpx.AsyncClient) -> None:
    answer = await api.post(f"{BASE}/groups", json={"members": ["ann"]})
    assert answer.json()["conversation_id"] == "g-new"


async def test_members_come_in_pages(api: httpx.AsyncClient) -> None:
    await created(api, members=[f"u{n:03}" for n in range(250)])
    seen: list[str] = []
    after: str | None = None
    while True:
        query = {"limit": 100} | ({} if after is None else {"after_user_id": after})
        page = (await api.get(ROOM, params=query)).json()
        seen += [one["user_id"] for one in page["members"]]
        after = page["next_user_id"]
        if after is None:
            break
    assert seen == ["ann", *(f"u{n:03}" for n in range(250))]


async def test_refusals_of_the_rules(api: httpx.AsyncClient) -> None:
    failed(await api.get(ROOM), 404, "NO_CONVERSATION")
    await created(api)
    failed(await api.post(f"{BASE}/groups", json={"conversation_id": "room"}), 409, "CONVERSATION_EXISTS")
    body = failed(await api.post(f"{ROOM}/join", json={"user_id": "zoe"}), 403, "NOT_ALLOWED")
    assert body["detail"] == "members are added by an administrator"
    assert body["temporary"] is False


async def test_tenants_do_not_see_each_other(api: httpx.AsyncClient) -> None:
    """I16."""
    await created(api)
    failed(await api.get("/v1/tenants/other/groups/room"), 404, "NO_CONVERSATION")


@pytest.mark.parametrize(
    ("verb", "path", "body", "field"),
    [
        ("POST", f"{BASE}/groups", {"conversation_id": "a:b"}, "conversation_id"),
        ("POST", f"{BASE}/groups", {"members": ["ok", "no:"]}, "members.1"),
        ("POST", f"{BASE}/groups", {"send_policy": "nobody"}, "send_policy"),
        ("POST", f"{BASE}/groups", {"nmae": "x"}, "nmae"),
        ("POST", f"{BASE}/groups", {"name": "x" * 129}, "name"),
        ("POST", f"{BASE}/groups", ["not", "a", "map"], "body"),
        ("POST", f"{ROOM}/members", {"user_ids": []}, "user_ids"),
        ("POST", f"{ROOM}/members", {"user_ids": ["u"] * 5_001}, "user_ids"),
        ("PUT", f"{ROOM}/members/bob/role", {"role": "god"}, "role"),
        ("GET", f"{ROOM}?limit=1001", None, "limit"),
        ("GET", f"{ROOM}?after_user_id=%00", None, "after_user_id"),
        ("GET", f"{BASE}/groups/%2e%2e%3a", None, "conversation"),
        ("GET", "/v1/tenants/a%20b/groups/room", None, "tenant"),
        ("POST", f"{BASE}/tokens", {"user_id": "ann", "ttl_s": 0}, "ttl_s"),
        ("GET", f"{BASE}/messages/xyz/trace", None, "message"),
    ],
)
async def test_the_wrong_field_is_named(
    api: httpx.AsyncClient, writer: FakeWriter, verb: str, path: str, body: object, field: str
) -> None:
    answer = await api.request(verb, path, json=body)
    assert failed(answer, 422, "FIELD_INVALID")["field"] == field
    assert writer.asked == [], "nothing reached the writer"


async def test_bytes_that_are_not_json(api: httpx.AsyncClient) -> None:
    """P17."""
    wrong = {b"{": 422, b"\xff\xfe": 422, b"\x80abc": 400, b"[" * 100_000: 400, b'{"name": 1e999999}': 422}
    for body, status in wrong.items():
        answer = await api.post(f"{BASE}/groups", content=body, headers={"Content-Type": "application/json"})
        failed(answer, status, "BAD_REQUEST" if status == 400 else "FIELD_INVALID")


# -- failures of others


@pytest.mark.parametrize(
    ("failure", "status", "name"),
    [
        (StoreUnavailable("redis at secret-host is away"), 503, "STORE_UNAVAILABLE"),
        (StoreError("script failed: secret", Outcome.UNKNOWN), 503, "STORE_UNAVAILABLE"),
        (TimeoutError(), 503, "STORE_UNAVAILABLE"),
        (RuntimeError("secret"), 500, "INTERNAL"),
    ],
)
async def test_failures_are_told_without_their_insides(
    api: httpx.AsyncClient, writer: FakeWriter, failure: Exception, status: int, name: str
) -> None:
    writer.failure = failure
    answer = await api.get(ROOM)
    body = failed(answer, status, name)
    assert "secret" not in answer.text
    if status == 503:
        assert body["temporary"] is True
        assert int(answer.headers["Retry-After"]) >= 1


# -- the key


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": f"Bearer {KEY}x"},
        {"Authorization": f"Bearer {KEY[:-1]}"},
        {"X-Api-Key": ""},
        {"X-Api-Key": KEY.upper()},
        {"Authorization": "Bearer wrong", "X-Api-Key": KEY},
    ],
)
async def test_without_the_key_nothing_is_told(writer: FakeWriter, headers: dict[str, str]) -> None:
    """P19: every route below /v1, whatever else is wrong with the request."""
    async with client(deps(writer), key=None) as session:
        for verb, path in (
            ("GET", ROOM),
            ("POST", f"{BASE}/tokens"),
            ("GET", f"{BASE}/messages/{FOUND}/trace"),
        ):
            answer = await session.request(verb, path, headers=headers)
            failed(answer, 401, "API_KEY_REQUIRED")
            assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert writer.asked == []


async def test_the_key_in_either_header(writer: FakeWriter) -> None:
    async with client(deps(writer), key=None) as session:
        for headers in ({"X-Api-Key": KEY}, {"Authorization": f"Bearer {KEY}"}):
            failed(await session.get(ROOM, headers=headers), 404, "NO_CONVERSATION")


async def test_a_key_of_odd_bytes_is_just_wrong(writer: FakeWriter) -> None:
    async with client(deps(writer), key=None) as session:
        answer = await session.get(ROOM, headers=[(b"x-api-key", b"\xff\x00\xfe")])
        failed(answer, 401, "API_KEY_REQUIRED")


async def test_every_route_below_v1_needs_the_key(writer: FakeWriter) -> None:
    """No route is forgotten: asked of the document, not of a list."""
    document = build_routes(deps(writer)).openapi()
    async with client(deps(writer), key=None) as session:
        for path, verbs in document["paths"].items():
            concrete = path.replace("{message}", FOUND).replace("{", "").replace("}", "")
            for verb in verbs:
                answer = await session.request(verb, concrete, json={})
                assert (answer.status_code == 401) == path.startswith("/v1/"), (verb, path)


# -- sizes and shapes


async def test_a_body_over_the_limit_is_refused(api: httpx.AsyncClient) -> None:
    """P16: before it is read where it is announced, and while it is read where it is not."""
    large = b"x" * (limits.API_BODY_BYTES_MAX + 1)
    failed(await api.post(f"{BASE}/groups", content=large), 413, "REQUEST_TOO_LARGE")

    async def trickle() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 65_536

    failed(await api.post(f"{BASE}/groups", content=trickle()), 413, "REQUEST_TOO_LARGE")


async def test_the_largest_legal_change_fits(api: httpx.AsyncClient) -> None:
    await created(api)
    users = [f"{n:05}".ljust(128, "x") for n in range(limits.GROUP_MEMBERS_PER_CHANGE_MAX)]
    answer = await api.post(f"{ROOM}/members", json={"user_ids": users})
    assert answer.status_code == 200, answer.text[:200]
    assert answer.json()["members_active"] == 3 + len(users)


async def test_unknown_routes_and_verbs(api: httpx.AsyncClient) -> None:
    failed(await api.get("/v1/nothing"), 404, "NO_SUCH_ROUTE")
    failed(await api.get(f"{ROOM}/"), 404, "NO_SUCH_ROUTE")
    failed(await api.put(ROOM), 405, "METHOD_NOT_ALLOWED")


# -- conversations, tokens, traces


async def test_a_direct_chat_is_one_whichever_way_it_is_asked_for(
    api: httpx.AsyncClient, writer: FakeWriter
) -> None:
    async def asked(user: str, peer: str) -> dict[str, object]:
        return dict((await api.get(f"{BASE}/direct", params={"user_id": user, "peer_id": peer})).json())

    conversation = ids.direct_conversation_id("acme", "ann", "bob")
    before = await asked("ann", "bob")
    assert before == await asked("bob", "ann") == {"conversation_id": conversation, "conversation": None}
    writer.groups["acme", conversation] = Group({"ann": "member"}, dict(POLICIES), kind="direct")
    found = await asked("bob", "ann")
    assert found["conversation"] == (await api.get(f"{BASE}/conversations/{conversation}")).json()
    assert found["conversation"]["last_seq"] == 17  # type: ignore[index]
    failed(await api.get(f"{BASE}/direct", params={"user_id": "ann", "peer_id": ":"}), 422, "FIELD_INVALID")


async def test_a_head_that_does_not_exist(api: httpx.AsyncClient) -> None:
    failed(await api.get(f"{BASE}/conversations/none"), 404, "NO_CONVERSATION")


async def test_tokens(api: httpx.AsyncClient, writer: FakeWriter) -> None:
    answer = await api.post(f"{BASE}/tokens", json={"user_id": "ann", "ttl_s": 60})
    assert answer.json() == {"access_token": "acme.ann", "expires_at": 1_060}
    assert answer.headers["Cache-Control"] == "no-store"
    async with client(deps(writer, mint=None)) as session:
        refused = await session.post(f"{BASE}/tokens", json={"user_id": "ann"})
        assert "QIM_JWT_SECRET" in str(failed(refused, 409, "TOKENS_NOT_CONFIGURED")["detail"])


async def test_a_trace(api: httpx.AsyncClient) -> None:
    answer = await api.get(f"{BASE}/messages/{FOUND.upper()}/trace", params={"conversation_id": "room"})
    assert answer.status_code == 200
    body = answer.json()
    assert (body["found"], body["message_id"], body["notes"]) == (True, FOUND, ["looked in room"])
    assert body["message"]["conversation_seq"] == 5
    lost = failed(await api.get(f"{BASE}/messages/{LOST}/trace"), 404, "MESSAGE_NOT_FOUND")
    assert lost["detail"] == "looked in all"


async def test_only_a_few_traces_run_at_once(writer: FakeWriter) -> None:
    """P16: a trace reads logs; a flood of them is refused with a delay."""
    gate, begun = asyncio.Event(), asyncio.Semaphore(0)

    async def slow(tenant: str, message: bytes, conversation: str | None) -> MessageTrace:
        begun.release()
        await gate.wait()
        return await fake_trace(tenant, message, conversation)

    async with client(deps(writer, trace=slow)) as session:
        paths = [f"{BASE}/messages/01{n:030}/trace" for n in range(4)]
        running = [asyncio.create_task(session.get(path)) for path in paths[:2]]
        for _ in running:
            await begun.acquire()
        refused = await session.get(paths[2])
        assert failed(refused, 429, "TOO_MANY_TRACES")["temporary"] is True
        gate.set()
        assert [(await one).status_code for one in running] == [200, 200]
        assert (await session.get(paths[3])).status_code == 200, "room again"


# -- health and documents


async def test_health_ready_version_need_no_key(writer: FakeWriter) -> None:
    async def away() -> None:
        raise StoreUnavailable("redis://:password@host is away")

    async with client(deps(writer, {"redis": away, "log": well}), key=None) as session:
        assert (await session.get("/healthz")).json() == {"status": "ok"}
        assert "version" in (await session.get("/version")).json()
        answer = await session.get("/readyz")
        assert answer.status_code == 503
        assert answer.json() == {
            "ready": False,
            "reasons": ["redis does not answer: StoreUnavailable"],
            "dependencies": {"redis": "StoreUnavailable", "log": "ok"},
        }
    async with client(deps(writer), key=None) as session:
        good = {"ready": True, "reasons": [], "dependencies": {"redis": "ok"}}
        assert (await session.get("/readyz")).json() == good


async def test_the_documents(writer: FakeWriter) -> None:
    async with client(deps(writer), key=None) as session:
        document = (await session.get("/openapi.json")).json()
        page = await session.get("/docs")
    assert document["components"]["securitySchemes"]
    for path, verbs in document["paths"].items():
        for operation in verbs.values():
            assert operation["description"], path
            assert bool(operation.get("security")) == path.startswith("/v1/")
            assert path in page.text
    assert "http://" not in page.text.replace("http://api", "")
    assert "https://" not in page.text
    assert "<script" not in page.text
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert KEY not in json.dumps(document) + page.text


# -- rules of tenants


async def test_rules_are_replaced_as_a_whole(api: httpx.AsyncClient) -> None:
    rules = f"{BASE}/rules"
    assert (await api.get(rules)).json() == {"fanout_per_s": None, "multi_login": None}
    set_one = await api.put(rules, json={"fanout_per_s": 0})
    assert set_one.json() == {"fanout_per_s": 0, "multi_login": None}
    other = await api.put(rules, json={"multi_login": "newest"})
    assert other.json() == (await api.get(rules)).json() == {"fanout_per_s": None, "multi_login": "newest"}


@pytest.mark.parametrize(
    "body", [{"fanout_per_s": -1}, {"fanout_per_s": 10**10}, {"multi_login": "some"}, {"fan": 1}]
)
async def test_rules_that_cannot_be_are_refused(api: httpx.AsyncClient, body: dict[str, object]) -> None:
    answer = await api.put(f"{BASE}/rules", json=body)
    assert answer.status_code in (400, 422), answer.text
    assert next(iter(body)) in answer.text
