"""TCP links between processes that break as a test says: held, one way, slow, reset, byte by byte.

A link listens on 127.0.0.2 and forwards to the same port on 127.0.0.1: whoever tells its address to others
tells the former, and keeps its port. Links run in a thread with a loop of their own, so a test may block.

What is held is not closed: writes go on succeeding into the kernel's buffers, as behind a router that lost
power, and come out when the link heals. Bytes are never changed: TCP's own sum, and TLS where that is not
enough, is what tells a damaged byte; Redis' protocol cannot.

Spec: §14.4. T-N1, T-N2.
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

FRONT: Final = "127.0.0.2"
BACK: Final = "127.0.0.1"
CHUNK: Final = 64 * 1024
LOOK_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Fault:
    """What a link does to bytes. `slices`: each byte is a write of its own."""

    to_server: bool = True
    to_client: bool = True
    delay_s: Callable[[], float] | None = None
    slices: bool = False


WHOLE: Final = Fault()
CUT: Final = Fault(to_server=False, to_client=False)


class Link:
    """One link. `fault` may be set from any thread; connections that are there heed it at once."""

    def __init__(self, port: int) -> None:
        self.port, self.fault = port, WHOLE
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[Any]] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen. OSError when the address is taken."""
        self._server = await asyncio.start_server(self._accept, FRONT, self.port)

    def reset(self) -> int:
        """Abort every connection, on the loop of the link; how many sockets there were."""
        count = len(self._writers)
        for writer in list(self._writers):
            writer.transport.abort()
        return count

    async def close(self) -> None:
        """Listen no more; connections end."""
        if self._server is not None:
            self._server.close()
        self.reset()
        for task in list(self._serving):
            task.cancel()
            await asyncio.wait([task])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        self._writers.add(writer)
        there: asyncio.StreamWriter | None = None
        try:
            await self._open_way("to_server")
            back, there = await asyncio.open_connection(BACK, self.port)
            self._writers.add(there)
            pumps = [
                asyncio.create_task(self._pump(reader, there, "to_server")),
                asyncio.create_task(self._pump(back, writer, "to_client")),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)
        except OSError:
            pass  # the server is away: the client sees its connection end, as without a link
        finally:
            for one in filter(None, (writer, there)):
                self._writers.discard(one)
                one.transport.abort()

    async def _open_way(self, way: str) -> None:
        while not getattr(self.fault, way):  # noqa: ASYNC110 - set from other threads
            await asyncio.sleep(LOOK_S)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        try:
            while data := await reader.read(CHUNK):
                if self.fault.delay_s is not None:
                    await asyncio.sleep(self.fault.delay_s())
                await self._open_way(way)
                step = 1 if self.fault.slices else len(data)
                for start in range(0, len(data), step):
                    writer.write(data[start : start + step])
                    await writer.drain()
        except OSError:
            return  # one side is gone: the other one is closed by `_accept`


class Links:
    """Links by name, on a thread. Use as a context manager."""

    def __init__(self) -> None:
        self._links: dict[str, list[Link]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for link in (one for links in self._links.values() for one in links):
            self._run(link.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def open(self, name: str, port: int) -> str:
        """A link to a port of this machine; its address, host:port. A name may have several."""
        link = Link(port)
        self._run(link.open())
        self._links.setdefault(name, []).append(link)
        return f"{FRONT}:{port}"

    @property
    def names(self) -> list[str]:
        """What there is."""
        return list(self._links)

    def set(self, name: str, fault: Fault) -> None:
        """From now on links of this name do so; `WHOLE` heals them."""
        for link in self._links[name]:
            link.fault = fault

    def reset(self, name: str) -> int:
        """Abort all connections of these links; how many sockets there were."""

        async def work() -> int:
            return sum(link.reset() for link in self._links[name])

        return int(self._run(work()))

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)
