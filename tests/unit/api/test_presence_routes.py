"""The route of presence (Spec: §6)."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from qim_streams.console.directory import DeviceRow
from qim_streams.errors import StoreUnavailable
from qim_streams.presence.book import Seen
from tests.unit.api import fakes

PRESENCE = f"{fakes.BASE}/users/ann/presence"


class FakePresence:
    """`PresenceAdmin` that knows ann of acme."""

    def __init__(self) -> None:
        self.seen = Seen(True)
        self.down = False

    async def look(self, tenant_id: str, user_id: str) -> tuple[Seen, list[DeviceRow]] | None:
        """See the port."""
        if self.down:
            raise StoreUnavailable("down")
        if (tenant_id, user_id) != ("acme", "ann"):
            return None
        return self.seen, [DeviceRow("phone", 7, 9, "android", None), DeviceRow("desk", 5, 6, None, "phone")]


@pytest.fixture
async def api() -> AsyncIterator[Any]:
    presence = FakePresence()
    async with fakes.client(fakes.deps(fakes.FakeWriter(), presence=presence)) as client:
        client.presence = presence  # type: ignore[attr-defined]
        yield client


async def test_a_user_is_seen_with_his_devices(api: Any) -> None:
    phone = {
        "device_id": "phone",
        "platform": "android",
        "session_epoch": 7,
        "last_seen_ms": 9,
        "ended_by": None,
    }
    answer = (await api.get(PRESENCE)).json()
    assert (answer["user_id"], answer["online"], answer["last_seen_ms"]) == ("ann", True, None)
    assert answer["devices"][0] == phone
    assert answer["devices"][1]["ended_by"] == "phone"
    api.presence.seen = Seen(False, 1_234)
    answer = (await api.get(PRESENCE)).json()
    assert (answer["online"], answer["last_seen_ms"]) == (False, 1_234)


async def test_refusals_have_the_one_form(api: Any) -> None:
    nobody = await api.get(f"{fakes.BASE}/users/eve/presence")
    assert (nobody.status_code, nobody.json()["name"]) == (404, "NO_USER")
    assert (await api.get("/v1/tenants/other/users/ann/presence")).status_code == 404
    assert (await api.get(f"{fakes.BASE}/users/:/presence")).status_code == 422
    assert (await api.get(PRESENCE, headers={"Authorization": "Bearer wrong"})).status_code == 401
    api.presence.down = True
    assert (await api.get(PRESENCE)).status_code == 503


async def test_the_document_names_rooms_presence_and_devices() -> None:
    """OpenAPI says of each what it takes and gives."""
    given: dict[str, Any] = {"presence": FakePresence(), "rooms": FakePresence(), "push": FakePresence()}
    async with fakes.client(fakes.deps(fakes.FakeWriter(), **given)) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    base = "/v1/tenants/{tenant}"
    assert {
        (method, path)
        for path, methods in paths.items()
        for method in methods
        if path.startswith((f"{base}/rooms", f"{base}/users/{{user}}/p"))
    } == {
        ("post", f"{base}/rooms"),
        ("get", f"{base}/rooms"),
        ("get", f"{base}/rooms/{{room}}"),
        ("post", f"{base}/rooms/{{room}}/actions"),
        ("delete", f"{base}/rooms/{{room}}"),
        ("get", f"{base}/users/{{user}}/presence"),
        ("get", f"{base}/users/{{user}}/push/devices"),
        ("put", f"{base}/users/{{user}}/push/devices/{{device}}"),
        ("delete", f"{base}/users/{{user}}/push/devices/{{device}}"),
        ("get", f"{base}/users/{{user}}/push/settings"),
        ("put", f"{base}/users/{{user}}/push/settings"),
    }
    assert all(one["summary"] for path in paths.values() for one in path.values())
