"""`client.history(...)` and `qim history` against a real gateway: pages, refusals, waits, what is printed."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator

import pytest
from click.testing import CliRunner, Result

from qim_streams.cli import main
from qim_streams.client import ClientOptions, QimClient
from qim_streams.client.history import History
from qim_streams.errors import AdmissionRefused, ProtocolError
from qim_streams.ids import direct_conversation_id
from qim_streams.wire.frames import HistoryBreak, HistoryPage
from tests.support.gateway_world import TENANT, GatewayWorld, token
from tests.support.history_world import CHAT
from tests.support.waiting import eventually

EVER = ((0, None),)
QUICK = ClientOptions(backoff_base_ms=10, backoff_cap_ms=50, follow_endpoint=False)


@pytest.fixture
async def world() -> AsyncIterator[GatewayWorld]:
    async with GatewayWorld().running() as running:
        running.past.group({"ann": EVER, "bob": ((0, 10), (20, None))})
        running.past.say(30, b"hello")
        yield running


@pytest.fixture
async def bob(world: GatewayWorld) -> AsyncIterator[QimClient]:
    client = QimClient(world.url, token("bob"), "phone", options=QUICK)
    await client.connect(10)
    yield client
    await client.close()


def seqs(page: HistoryPage) -> list[int]:
    """The numbers of a page's messages."""
    return [message.conversation_seq for message in page.messages]


async def asked(world: GatewayWorld, call: Awaitable[HistoryPage]) -> "asyncio.Future[HistoryPage]":
    """The call under way: its request has reached the gateway."""
    views, task = world.past.store.views, asyncio.ensure_future(call)
    await eventually(lambda: world.past.store.views > views)
    return task


async def test_a_page_and_the_one_before(bob: QimClient) -> None:
    """The newest without an anchor; its next_anchor leads on; nothing is delivered as an event."""
    newest = await bob.history(CHAT, limit=12)
    assert (seqs(newest), newest.has_more) == ([9, 10, *range(21, 31)], True)
    assert newest.breaks == [HistoryBreak(11, 20, "not_member")]
    before = await bob.history(CHAT, anchor=newest.next_anchor, limit=12)
    assert (seqs(before), before.has_more) == (list(range(1, 9)), False)
    assert seqs(await bob.history(CHAT, direction="newer", limit=2)) == [1, 2]


async def test_page_after_page(bob: QimClient) -> None:
    """C11: to the end, in as many pages as it takes, in both directions, from any place."""
    forth = [seqs(page) async for page in bob.history.pages(CHAT, direction="newer", anchor=5, limit=6)]
    assert forth == [[6, 7, 8, 9, 10, 21], [22, 23, 24, 25, 26, 27], [28, 29, 30]]
    back = [seqs(page) async for page in bob.history.pages(CHAT, limit=11)]
    assert back == [[10, *range(21, 31)], list(range(1, 10))]


async def test_refusals_are_final_and_waits_are_waited_out(world: GatewayWorld, bob: QimClient) -> None:
    """NOT_MEMBER at once; an archive that comes back, and a message that settles, after a while."""
    world.past.group({"ann": EVER}, chat="theirs")
    for chat, code in (("theirs", "NOT_MEMBER"), ("nowhere", "NO_CONVERSATION")):
        with pytest.raises(AdmissionRefused) as refused:
            await bob.history(chat)
        assert refused.value.code == code
    world.past.store.unavailable = True
    waiting = await asked(world, bob.history(CHAT, limit=1))
    assert not waiting.done()
    world.past.store.unavailable = False
    assert seqs(await waiting) == [30]
    last = world.past.say(pending=True)
    waiting = await asked(world, bob.history(CHAT, direction="newer", anchor=30))
    world.past.confirm(last)
    assert seqs(await waiting) == [31]
    world.past.archive.unavailable = world.past.store.unavailable = True
    with pytest.raises(TimeoutError):
        await bob.history(CHAT, timeout_s=0.2)


async def test_a_lost_connection_is_asked_again_on_the_next(world: GatewayWorld, bob: QimClient) -> None:
    """The socket dies with the request on it: the page comes all the same."""
    world.past.say(1, pending=True)
    waiting = await asked(world, bob.history(CHAT, direction="newer", anchor=30))
    for socket in list(world.server.sockets):
        socket.abort()
    world.past.confirm(31)
    assert seqs(await waiting) == [31]
    assert bob.connections == 2


async def test_a_server_that_makes_no_progress_is_broken() -> None:
    """`pages` ends in an error, not in a loop."""

    class Stuck:
        async def ask(self, make: object, kind: type, timeout_s: float | None) -> HistoryPage:
            return HistoryPage(1, CHAT, [], [], True, 7, 1, 9)

    pages = History(Stuck()).pages(CHAT, direction="newer", anchor=7)  # type: ignore[arg-type]
    assert (await anext(pages)).has_more
    with pytest.raises(ProtocolError):
        await anext(pages)


@pytest.fixture
def served() -> Iterator[GatewayWorld]:
    """A gateway whose loop runs in a thread, because a command has a loop of its own."""
    world, loop = GatewayWorld(), asyncio.new_event_loop()
    started, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with world.running():
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(10)
    yield world
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)


def qim(world: GatewayWorld, user: str, *args: str) -> Result:
    """`qim history ...`."""
    env = {
        "QIM_GATEWAY_URL": world.url,
        "QIM_TENANT": TENANT,
        "QIM_TOKEN": token(user),
        "QIM_STATE_DIR": None,
    }
    return CliRunner().invoke(main, ["history", *args, "--user", user], env=env)


def test_the_command(served: GatewayWorld) -> None:
    """Messages and breaks in order, what comes next, JSON, --all, direct chats, refusals in one line."""
    served.past.group({"bob": ((0, 2), (4, None))})
    served.past.say(6, b"hi \x1b[31mred")
    shown = qim(served, "bob", CHAT)
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert [line.rpartition("#")[2].rstrip("]") for line in lines[:2]] == ["1", "2"]
    assert lines[2] == "-- #3 to #4: while not a member"
    assert len(lines) == 5
    assert "\x1b" not in shown.output
    assert qim(served, "bob", CHAT, "--limit", "1").output.splitlines()[-1] == "-- more: --anchor 6"
    newer = qim(served, "bob", CHAT, "--limit", "1", "--newer", "--anchor", "1").output.splitlines()
    assert newer[-1] == "-- more: --newer --anchor 2"
    everything = qim(served, "bob", CHAT, "--all", "--limit", "1", "--json", "--newer")
    pages = [json.loads(line) for line in everything.output.splitlines()]
    numbers = [message["conversation_seq"] for page in pages for message in page["messages"]]
    assert (numbers, pages[-1]["has_more"]) == ([1, 2, 5, 6], False)
    chat = direct_conversation_id(TENANT, "bob", "ann")
    served.past.group({"bob": EVER, "ann": EVER}, chat=chat)
    served.past.say(1, b"between us", chat)
    assert "between us" in qim(served, "bob", "--with", "ann").output
    for args, said in (
        ((), "either CONVERSATION or --with USER"),
        (("nowhere",), "NO_CONVERSATION"),
    ):
        refused = qim(served, "bob", *args)
        assert (refused.exit_code, refused.output.count("\n")) == (1, 1), refused.output
        assert said in refused.output
