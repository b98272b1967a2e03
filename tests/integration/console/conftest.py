"""A browser for all tests of the console, and a stack with something in it to look at."""

import asyncio
import threading
from collections.abc import Awaitable, Iterator
from typing import Any, TypeVar

import httpx
import pytest

from qim_streams.client import QimClient
from tests.integration.console.browsing import Browser, browser, missing
from tests.support.stack import StackProcess

TENANT = "console"
MEMBERS = [f"user-{number:04}" for number in range(900)]
T = TypeVar("T")


class World:
    """People of tenant `console` on a running stack; `last` is the receipt of a message to all of them."""

    def __init__(self, stack: StackProcess) -> None:
        self.stack, self.client = stack, stack.client
        self.url, self.key = str(self.client["admin_url"]), str(self.client["admin_api_key"])
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.api = httpx.Client(
            base_url=f"{self.url}/v1/", headers={"Authorization": f"Bearer {self.key}"}, timeout=60
        )
        self._open: list[QimClient] = []
        self.ann, self.ben = self.person("ann"), self.person("ben")
        self.post(
            "groups",
            {
                "conversation_id": "c-team",
                "name": "The <b>team</b>",
                "owner": "ann",
                "members": ["ben", *MEMBERS],
            },
        )
        self.last = self.run(self.ann.send(b"hello", conversation_id="c-team"))

    def run(self, work: Awaitable[T]) -> T:
        """The result of a coroutine of the SDK."""
        return asyncio.run_coroutine_threadsafe(_awaited(work), self._loop).result(120)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask the admin API for something of the tenant; an error is a failure of the test."""
        answer = self.api.post(f"tenants/{TENANT}/{path}", json=body)
        assert answer.status_code < 300, answer.text
        return dict(answer.json())

    def person(self, user: str) -> QimClient:
        """A user with a connected device."""
        token = str(self.post("tokens", {"user_id": user})["access_token"])
        client = QimClient(str(self.client["gateway_url"]), token, f"{user}-phone")
        self.run(client.connect(90))
        self._open.append(client)
        return client

    def close(self) -> None:
        """Everybody leaves."""
        for client in self._open:
            self.run(client.close())
        self.api.close()
        self._loop.call_soon_threadsafe(self._loop.stop)


async def _awaited(work: Awaitable[T]) -> T:
    return await work


@pytest.fixture(scope="session")
def world(whole_stack: StackProcess) -> Iterator[World]:
    why = missing()
    if why is not None:
        pytest.skip(f"{why}: what the console shows on a screen stays unproved")
    made = World(whole_stack)
    yield made
    made.close()


@pytest.fixture(scope="session")
def chromium(world: World) -> Iterator[Browser]:
    with browser(world.url, world.key) as made:
        yield made
