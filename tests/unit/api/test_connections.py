"""Connections of the admin API: who waits for too long is ended, strangers keep nobody out. T-X1."""

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from qim_streams.api import connections
from qim_streams.api.app import build_api
from qim_streams.api.connections import HEAD_SECONDS_MAX, UNREAD_SECONDS_MAX, Watch
from qim_streams.api.server import listen, serve
from tests.support.waiting import eventually
from tests.unit.api.fakes import FakeWriter, deps


class Line:
    """A connection: `unsent` bytes, a last request that is answered or not."""

    def __init__(self) -> None:
        self.transport: Any = self
        self.cycle: Any = None
        self.unsent, self.ended, self.closing = 0, False, False

    def ask(self) -> None:
        """Another request begins."""
        self.cycle = SimpleNamespace(response_complete=False)

    def answer(self) -> None:
        """It is answered."""
        self.cycle.response_complete = True

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.ended = True


def ended(watch: Watch, lines: list[Line], now_s: float) -> list[Line]:
    """Who is ended now."""
    watch.look([one for one in lines if not one.ended], now_s)
    return [one for one in lines if one.ended]


def test_who_asks_for_nothing_is_ended_and_who_is_served_is_not() -> None:
    idle, served, talker = Line(), Line(), Line()
    served.ask()
    watch, lines = Watch(10), [idle, served, talker]
    for second in range(int(HEAD_SECONDS_MAX) + 1):
        talker.ask()
        talker.answer()
        assert ended(watch, lines, second) == []
    assert ended(watch, lines, HEAD_SECONDS_MAX + 1) == [idle]
    served.answer()
    assert ended(watch, lines, 100) == [idle, talker]
    assert served not in ended(watch, lines, 100 + HEAD_SECONDS_MAX)
    assert served in ended(watch, lines, 101 + HEAD_SECONDS_MAX)


@pytest.mark.parametrize("closing", [False, True])
def test_who_does_not_read_is_ended(closing: bool) -> None:
    """Also when the server has closed the connection: what is unsent keeps it. Slow reading is reading."""
    stuck, slow = Line(), Line()
    for one in (stuck, slow):
        one.ask()
        one.unsent, one.closing = 1_000, closing
    watch = Watch(10)
    for second in range(int(UNREAD_SECONDS_MAX) + 1):
        slow.unsent -= 1
        assert ended(watch, [stuck, slow], second) == []
    assert ended(watch, [stuck, slow], UNREAD_SECONDS_MAX + 1) == [stuck]


def test_of_too_many_the_idle_one_that_waits_for_longest_goes() -> None:
    old, busy, new = Line(), Line(), Line()
    busy.ask()
    watch = Watch(2)
    assert ended(watch, [old, busy], 0) == []
    assert ended(watch, [old, busy, new], 1) == [old]
    more = [Line() for _ in range(3)]
    assert busy not in ended(watch, [busy, new, *more], 2)
    assert sum(one.ended for one in (new, *more)) == 3


async def test_strangers_who_hold_connections_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """T-X1 on a socket: some say nothing, some half a request, some take no answer; an operator is served."""
    monkeypatch.setattr(connections, "HEAD_SECONDS_MAX", 0.5)
    listener, stop = listen("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.create_task(serve(build_api(deps(FakeWriter())), listener, stop))
    port = listener.getsockname()[1]
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(90)]
    for number, (_, out) in enumerate(held):
        out.write([b"", b"GET /healthz HTTP/1.1\r\nHost: ", b"POST / HTTP/1.1\r\nContent-Le"][number % 3])
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as api:
        assert (await api.get("/healthz")).status_code == 200
        await eventually(lambda: all(reader.at_eof() for reader, _ in held), 60, "all strangers to be ended")
        assert (await api.get("/healthz")).status_code == 200
    stop.set()
    await asyncio.wait_for(serving, 20)
