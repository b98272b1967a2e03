"""Something outside that the product sends requests to: an application's endpoint, a provider."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

Take = Callable[[web.Request], Awaitable[web.Response]]


class LoopbackReceiver(ABC):
    """Takes POSTs on `port` of loopback, from `start` to `stop`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._runner: web.AppRunner | None = None

    @abstractmethod
    def routes(self) -> Mapping[str, Take]:
        """What takes the requests of each path."""

    async def start(self) -> None:
        """Listen."""
        app = web.Application()
        app.add_routes([web.post(path, take) for path, take in self.routes().items()])
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        """Listen no more."""
        if self._runner is not None:
            await self._runner.cleanup()
