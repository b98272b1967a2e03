"""The people of the demonstration: real clients on real sockets, one user each, many per process.

Invariants: a client speaks only for its own user; every client made here is closed by `close`; user ids
carry the run, so that a second run on the same stack meets empty mailboxes.

Spec: §7.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence

import aiohttp

from qim_streams.client import ClientOptions, Delivery, LocalStore, QimClient
from qim_streams.demo.ports import MintToken

INFLIGHT = 32  # per conversation: a burst of one author is not sent message by message


def ignore(_: Sequence[Delivery]) -> None:
    """Takes deliveries that nobody looks at."""


class People:
    """Makes clients of the run's users. Use as an async context manager."""

    def __init__(self, gateway_url: str, mint_token: MintToken, run: str) -> None:
        self.run = run
        self._url, self._mint = gateway_url, mint_token
        self._http: aiohttp.ClientSession | None = None
        self._open: set[QimClient] = set()

    async def __aenter__(self) -> "People":
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(self.close(client) for client in list(self._open)))
        if self._http is not None:
            await self._http.close()

    def user(self, name: str) -> str:
        """The id of a user of this run."""
        return f"{name}.{self.run}"

    def client(
        self,
        name: str,
        device: str,
        on_deliveries: Callable[[Sequence[Delivery]], None] = ignore,
        *,
        first_sync: str = "now",
        store: LocalStore | None = None,
    ) -> QimClient:
        """A client of user `name`, not connected yet. It pulls at a gap or when asked, not on its own."""
        options = ClientOptions(
            first_sync=first_sync,
            per_conversation_inflight=INFLIGHT,
            checkpoint_events=0,
            checkpoint_interval_ms=0,
            backoff_cap_ms=3_000,
        )
        client = QimClient(
            self._url,
            self._mint(self.user(name)),
            device,
            options=options,
            store=store,
            on_deliveries=on_deliveries,
            http=self._http,
        )
        self._open.add(client)
        return client

    async def close(self, client: QimClient) -> None:
        """Close a client made here."""
        self._open.discard(client)
        await client.close()


class Pool:
    """Short-lived clients of users who speak now and then: the one used longest ago gives way."""

    def __init__(self, people: People, size: int) -> None:
        self._people, self._size = people, size
        self._clients: OrderedDict[str, QimClient] = OrderedDict()

    def get(self, name: str) -> QimClient:
        """The client of a user, started; it may still be connecting."""
        client = self._clients.pop(name, None)
        if client is None:
            client = self._people.client(name, "pooled")
            client.start()
        self._clients[name] = client
        return client

    async def trim(self) -> None:
        """Close what is over the size and has nothing to send."""
        idle = [name for name, client in self._clients.items() if not len(client.session.sends)]
        over = idle[: max(0, len(self._clients) - self._size)]
        await asyncio.gather(*(self._people.close(self._clients.pop(name)) for name in over))

    async def close(self) -> None:
        """Close all of them."""
        self._size = 0
        await self.trim()
