"""People for the scenarios: names of their own per test, clients and bare sockets to the shared stack."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from qim_streams.client import ClientOptions, LocalStore, QimClient
from qim_streams.wire.frames import Event
from tests.support.frame_proxy import FrameProxy
from tests.support.logs import Logged, read_outbox
from tests.support.stack import StackProcess
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient, pull_range

T = TypeVar("T")
DELIVERED_S = 30.0
QUICK = ClientOptions(
    answer_ms=5_000, backoff_base_ms=50, backoff_cap_ms=500, checkpoint_interval_ms=0, follow_endpoint=False
)


class Person:
    """A user: `shown` is what the application of the last opened client got."""

    def __init__(self, cast: "Cast", user_id: str) -> None:
        self.cast, self.user_id = cast, user_id
        self.shown: list[Event] = []

    def wire(self, device: str = "phone", url: str | None = None) -> WireClient:
        """A bare socket."""
        address = self.cast.stack.address()
        return WireClient(url or address.require_url(), address.token(self.user_id), device)

    async def online(
        self,
        device: str = "phone",
        url: str | None = None,
        *,
        store: LocalStore | None = None,
        into: list[Event] | None = None,
        **options: Any,
    ) -> QimClient:
        """A connected client of the SDK; closed at the end of the test."""
        address, shown = self.cast.stack.address(), self.shown if into is None else into
        client = QimClient(
            url or address.require_url(),
            address.token(self.user_id),
            device,
            options=replace(QUICK, **options),
            store=store,
            on_deliveries=lambda batch: shown.extend(one for one in batch if isinstance(one, Event)),
        )
        self.cast.clients.append(client)
        await client.connect()
        return client

    async def mailbox(self, entries: int = 0) -> list[Event]:
        """The whole mailbox as a new device reads it, once it holds at least so many entries."""

        async def read() -> list[Event] | None:
            async with self.wire(f"reader-{secrets.token_hex(4)}") as reader:
                auth = await reader.auth()
                pulled = await pull_range(reader, auth.trim_watermark, auth.sync_to_seq)
                assert not pulled.problems, pulled.problems
                return pulled.events if len(pulled.events) >= entries else None

        return (
            await eventually(read, DELIVERED_S, f"{entries} entries for {self.user_id}")
            if entries
            else (await read() or [])
        )

    async def cursor(self, device: str = "phone") -> str:
        """Sign a device on for the first time: the cursor of "now"."""
        async with self.wire(device) as wire:
            auth = await wire.auth()
            return (await wire.sync_complete(auth.sync_to_seq)).cursor


class Cast:
    """The people of one test."""

    def __init__(self, stack: StackProcess, run: str) -> None:
        self.stack, self.run = stack, run
        self.clients: list[QimClient] = []
        self.proxies: list[FrameProxy] = []
        self._tasks: list[asyncio.Task[Any]] = []

    def person(self, name: str) -> Person:
        """A user whose id no other test has."""
        return Person(self, f"{self.run}-{name}")

    def people(self, *names: str) -> Sequence[Person]:
        """Several."""
        return [self.person(name) for name in names]

    def group(self) -> str:
        """The id of a group that does not exist yet."""
        return f"{self.run}-g{secrets.token_hex(4)}"

    async def proxy(self) -> FrameProxy:
        """A proxy in front of the gateway."""
        proxy = await FrameProxy(self.stack.address().require_url()).__aenter__()
        self.proxies.append(proxy)
        return proxy

    async def outbox(self, prefix: str) -> list[Logged]:
        """The Outbox records whose client_message_id begins with `prefix`."""
        brokers, tenant = self.stack.client["brokers"], self.stack.address().require_tenant()
        return await asyncio.to_thread(read_outbox, brokers, tenant, prefix)

    def background(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run something beside the test."""
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    async def close(self) -> None:
        """Close every client and proxy."""
        for task in self._tasks:
            task.cancel()
        for client in self.clients:
            await client.close()
        for proxy in self.proxies:
            await proxy.__aexit__()


@pytest.fixture
async def cast(whole_stack: StackProcess) -> AsyncIterator[Cast]:
    people = Cast(whole_stack, f"s{secrets.token_hex(4)}")
    yield people
    await people.close()
