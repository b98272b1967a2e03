"""Requests made to get around something: roles, bounds, what an answer shows. P16, P17, P19; T-X2."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from qim_streams.admin.keys import AdminKeys
from qim_streams.admin.rules import Role
from qim_streams.api.app import build_routes
from qim_streams.api.guard import BodyLimit
from qim_streams.wire.answers import DETAIL_MAX, FIELD_MAX, error
from tests.unit.admin.test_admin import KEYS, line
from tests.unit.api.fakes import BASE, KEY, FakeWriter, client, deps

GROUP = {"conversation_id": "room", "members": ["ann"]}


@pytest.fixture
def writer() -> FakeWriter:
    """Remembers what it was asked."""
    return FakeWriter()


@pytest.mark.parametrize("end", ["%0a", "%0A", "%0d%0a", "%00", "%7f", "%0a%0a", "%1f"])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", f"{BASE}/tokens", {"user_id": "ann"}),
        ("PUT", f"{BASE}/rules", {"fanout_per_s": 1}),
        ("POST", f"{BASE}/groups", GROUP),
    ],
)
async def test_another_spelling_of_a_path_is_no_way_around_roles(
    tmp_path: Path, writer: FakeWriter, method: str, path: str, body: dict[str, Any], end: str
) -> None:
    """Routers match up to a last line feed: who decides about roles must not see another path than they."""
    keys = tmp_path / "keys"
    keys.write_text("".join(line(role) for role in Role))
    guarded = replace(deps(writer), admins=AdminKeys(KEY.encode(), keys))
    async with client(guarded, key=KEYS[Role.OPERATOR]) as operator:
        answer = await operator.request(method, path + end, json=body)
    assert (answer.status_code, answer.json()["name"]) == (404, "NO_SUCH_ROUTE")
    assert writer.asked == []


@pytest.mark.parametrize("name", ["a\x7fb", "a\x00b", "a\nb", "\x1b[2J", "a\tb"])
async def test_a_name_that_no_frame_can_carry_is_refused(writer: FakeWriter, name: str) -> None:
    """It would be sent to every member, whose clients would refuse the frame."""
    async with client(deps(writer)) as api:
        await api.post(f"{BASE}/groups", json=GROUP)
        writer.asked.clear()
        for answer in (
            await api.post(f"{BASE}/groups", json=GROUP | {"name": name}),
            await api.patch(f"{BASE}/groups/room", json={"name": name}),
        ):
            assert (answer.status_code, answer.json()["field"]) == (422, "name")
    assert writer.asked == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"{BASE}/tokens", {"user_id": "ann", "ttl_s": "60"}),
        (f"{BASE}/tokens", {"user_id": "ann", "ttl_s": True}),
        (f"{BASE}/tokens", {"user_id": "ann", "ttl_s": 60.0}),
        (f"{BASE}/groups", {"members": "ann"}),
        (f"{BASE}/groups", {"members": {"0": "ann"}}),
        (f"{BASE}/groups", {"members": ["ann"], "name": 7}),
    ],
)
async def test_types_are_those_of_the_document(writer: FakeWriter, path: str, body: object) -> None:
    """A text is no number, a number no text, a truth neither."""
    async with client(deps(writer)) as api:
        answer = await api.post(path, json=body)
    assert (answer.status_code, answer.json()["name"]) == (422, "FIELD_INVALID")
    assert writer.asked == []


async def test_what_an_error_repeats_is_short_and_obeyed_by_nothing(writer: FakeWriter) -> None:
    """A field that a client made up, a path, a host: cut, and without what terminals and readers obey."""
    async with client(deps(writer)) as api:
        for odd in ("x" * 5_000, "\x1b[31m\r\nSet-Cookie: a", "a\u202egnp.exe", "\u200b\ufeff"):
            answer = await api.post(f"{BASE}/groups", content=json.dumps({odd: 1}))
            field = answer.json()["field"]
            assert answer.status_code == 422
            assert len(field) <= FIELD_MAX
            assert field.isprintable()
        answer = await api.get("/nothing/" + "x" * 2_000, headers={"Host": "evil.example"})
        assert answer.status_code == 404
        assert len(answer.json()["detail"]) <= DETAIL_MAX
        assert "evil" not in answer.text
        for host in ("[", "a:b:c", "\xff", ""):
            assert (await api.get("/nothing", headers={"Host": host.encode("latin-1")})).status_code == 404


def test_an_error_frame_passes_its_own_schema() -> None:
    """Whatever field or detail it is made with."""
    frame = error("FIELD_INVALID", "\x00" * 1_000, field="\x7f\u2028" * 200)
    assert (frame.detail, frame.field) == ("?" * DETAIL_MAX, "?" * FIELD_MAX)


async def test_a_method_that_a_path_has_not_is_told_those_that_it_has(writer: FakeWriter) -> None:
    async with client(deps(writer)) as api:
        for path, allowed in (
            (f"{BASE}/groups/room", "DELETE, GET, PATCH"),
            (f"{BASE}/groups", "POST"),
            ("/docs", "GET"),
        ):
            answer = await api.request("BREW", path)
            assert (answer.status_code, answer.headers["Allow"]) == (405, allowed)
            assert answer.json()["name"] == "METHOD_NOT_ALLOWED"


async def test_the_body_of_a_stranger_is_not_read(writer: FakeWriter) -> None:
    """Refused before allocation: who has no key cannot make the API hold anything."""
    taken = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(10):
            taken += 1
            yield b"x" * 65_536

    async with client(deps(writer), key=None) as stranger:
        for headers in ({}, {"X-Api-Key": "wrong"}, {"Authorization": "Bearer wrong"}):
            answer = await stranger.post(f"{BASE}/groups", content=body(), headers=headers)
            assert (answer.status_code, answer.json()["name"]) == (401, "API_KEY_REQUIRED")
    assert taken == 0


async def test_operators_at_once_are_bounded_and_strangers_do_not_count(writer: FakeWriter) -> None:
    """Whoever is one too many is told when to come again; he is let in when another one is done."""
    limited = BodyLimit(build_routes(deps(writer)), lambda scope: scope["path"] != "/healthz", requests_max=1)
    transport = httpx.ASGITransport(app=limited)
    inside: list[httpx.Response] = []

    async with httpx.AsyncClient(transport=transport, base_url="http://t") as api:

        async def body() -> AsyncIterator[bytes]:
            inside.append(await api.get("/version"))
            inside.append(await api.get("/healthz"))
            yield b"{}"

        outer = await api.post(f"{BASE}/groups", content=body(), headers={"X-Api-Key": KEY})
        after = await api.get("/version")
    assert outer.status_code == 422
    assert [one.status_code for one in inside] == [503, 200]
    assert (inside[0].json()["name"], inside[0].json()["temporary"]) == ("API_BUSY", True)
    assert int(inside[0].headers["Retry-After"]) >= 1
    assert after.status_code == 200
