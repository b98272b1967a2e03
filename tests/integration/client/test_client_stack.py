"""The SDK over a real stack that is killed, a network that loses frames, and processes that die.

Spec: §3 (5), §6, §7, §8. Scenarios A2 A5 A10 A16 C1 C2 C13 E4 E7.
"""

import asyncio
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qim_streams.client import (
    Delivery,
    QimClient,
    RebuildFinished,
    RebuildRequired,
    SendReceipt,
    SqliteStore,
    SyncFinished,
)
from qim_streams.client.store import Rebuild
from qim_streams.wire.frames import Auth, AuthOk, Event, Frame, HistoryPage, PushEvents, SendAck
from tests.integration.client.conftest import ENTRIES_MAX
from tests.integration.scenarios.conftest import QUICK, Cast, Person
from tests.support.frame_proxy import Passage
from tests.support.waiting import eventually, eventually_sync

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]
ROOT = Path(__file__).resolve().parents[3]


class Screen(list[Delivery]):
    """What an application was given."""

    def bodies(self) -> list[bytes]:
        return [one.message.body for one in self if isinstance(one, Event)]

    def count(self, kind: type) -> int:
        return sum(isinstance(one, kind) for one in self)


async def open_client(
    person: Person, store: Path, screen: Screen, url: str | None = None, **options: Any
) -> QimClient:
    """A device with a file of its own; closed at the end of the test at the latest."""
    address = person.cast.stack.address()
    client = QimClient(
        url or address.require_url(),
        address.token(person.user_id),
        "phone",
        options=type(QUICK)(**{**_values(QUICK), **options}),
        store=SqliteStore(store),
        on_deliveries=screen.extend,
    )
    person.cast.clients.append(client)
    await client.connect(60)
    return client


def _values(options: Any) -> dict[str, Any]:
    return {name: getattr(options, name) for name in options.__dataclass_fields__}


async def say(sender: QimClient, to: Person, first: int, count: int) -> list[SendReceipt]:
    """Numbered messages, many in flight, in the order of their numbers."""
    sends = (sender.send(b"%d" % n, to_user_id=to.user_id) for n in range(first, first + count))
    return list(await asyncio.gather(*sends))


async def test_A2_the_gateway_is_killed_in_the_middle_of_a_sync(cast: Cast, tmp_path: Path) -> None:
    """300 missed messages in pulls of 5; after 60 the gateway dies. Each once, in order, no start over."""
    ann, ben = cast.people("ann", "ben")
    path, screen = tmp_path / "ben.db", Screen()
    await (await open_client(ben, path, Screen())).close()
    sender = await ann.online(per_conversation_inflight=1)
    await say(sender, ben, 0, 300)
    await ben.mailbox(300)
    proxy = await cast.proxy()
    starts: list[int] = []

    def watch(_: Passage, frame: Frame) -> int:
        if isinstance(frame, Auth):
            starts.append(len(screen.bodies()))
        return 1

    proxy.to_server = watch
    opening = cast.background(open_client(ben, path, screen, proxy.url, pull_entries=5))
    await eventually(lambda: len(screen.bodies()) >= 60, 30, "a part of the sync")
    assert not screen.count(SyncFinished)
    pid = cast.stack.kill("gateway")
    await asyncio.to_thread(cast.stack.wait_restarted, "gateway", pid)
    client = await opening
    await eventually(lambda: len(screen.bodies()) >= 300, 60, "the rest")
    await client.checkpoint(60)
    assert screen.bodies() == [b"%d" % n for n in range(300)]
    assert screen.count(SyncFinished) == 1
    assert screen.count(RebuildRequired) == 0
    assert starts[0] == 0 < starts[-1]


async def test_C1_a_process_dies_with_unsent_messages(cast: Cast, tmp_path: Path) -> None:
    """Its acks were lost: some are committed, some never left. The next process: each once, in order."""
    ann, ben = cast.people("ann", "ben")
    path, screen = tmp_path / "ann.db", Screen()
    proxy = await cast.proxy()
    proxy.to_client = lambda _, frame: 0 if isinstance(frame, SendAck) else 1
    arguments = (str(path), proxy.url, _token(ann), ben.user_id)
    poster = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _POSTER, *arguments, cwd=ROOT, stdout=subprocess.PIPE
    )
    try:
        assert poster.stdout is not None
        assert await poster.stdout.readline() == b"posted\n"
        await ben.mailbox(1)  # the first was committed, its ack was lost
    finally:
        poster.kill()
        await poster.wait()
    client = await eventually(lambda: _open_if_free(ann, path, screen), 20, "the store of the dead process")
    await eventually(lambda: client.unsent == 0, 60, "every receipt")
    got = await ben.mailbox(30)
    assert [event.message.body for event in got] == [b"%d" % n for n in range(30)]
    await client.checkpoint(30)
    assert screen.bodies() == [b"%d" % n for n in range(30)]


_POSTER = """
import asyncio, sys
from pathlib import Path
from qim_streams.client import ClientOptions, QimClient, SqliteStore

async def main(path, url, token, to):
    options = ClientOptions(answer_ms=500)
    client = QimClient(url, token, "phone", store=SqliteStore(Path(path)), options=options)
    await client.connect()
    for n in range(30):
        await client.post(str(n).encode(), to_user_id=to)
    print("posted", flush=True)
    await asyncio.sleep(3600)

asyncio.run(main(*sys.argv[1:]))
"""


def _token(person: Person) -> str:
    return person.cast.stack.address().token(person.user_id)


async def _open_if_free(person: Person, path: Path, screen: Screen) -> QimClient:
    return await open_client(person, path, screen)


async def test_C13_a_receiver_is_killed_again_and_again(cast: Cast, tmp_path: Path) -> None:
    """SIGKILL while it prints what it gets: nothing is missing, only what it took last comes again."""
    ann, ben = cast.people("ann", "ben")
    path = tmp_path / "ben.db"
    await (await open_client(ben, path, Screen())).close()
    sender = await ann.online(per_conversation_inflight=1)
    sending = cast.background(say(sender, ben, 0, 200))
    printed: list[int] = []
    url = cast.stack.address().require_url()
    while not printed or printed[-1] < 199:
        command = [sys.executable, "-c", _PRINTER, str(path), url, _token(ben)]
        lines = await asyncio.to_thread(_run_and_kill, command, 60, 199)
        assert lines, "a process that printed nothing"
        assert lines == list(range(lines[0], lines[0] + len(lines)))
        assert lines[0] <= (printed[-1] + 1 if printed else 0)
        assert lines[0] >= (printed[-1] - 40 if printed else 0), "its progress was not kept"
        printed += lines
    await sending
    assert sorted(set(printed)) == list(range(200))


_PRINTER = """
import asyncio, sys
from pathlib import Path
from qim_streams.client import QimClient, SqliteStore
from qim_streams.wire.frames import Event

async def main(path, url, token):
    client = QimClient(url, token, "phone", store=SqliteStore(Path(path)))
    client.start()
    async for one in client.events():
        if isinstance(one, Event):
            print(one.message.body.decode(), flush=True)
            await asyncio.sleep(0.02)

asyncio.run(main(*sys.argv[1:]))
"""


def _run_and_kill(command: list[str], count: int, last: int) -> list[int]:
    """What a process prints until it has printed so much; then it is killed."""
    lines: list[int] = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while len(lines) < count and (not lines or lines[-1] < last):
            lines.append(int(process.stdout.readline()))
        process.kill()
        lines += [int(line) for line in process.stdout.read().split()]
    eventually_sync(lambda: process.poll() is not None)
    return lines


async def test_C2_a_network_that_loses_and_repeats_pushes(cast: Cast, tmp_path: Path) -> None:
    """A5: a third of the pushes is lost, a third comes twice, the connection breaks now and then."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    ann, ben = cast.people("ann", "ben")
    proxy = await cast.proxy()
    proxy.to_client = lambda _, frame: dice.choice((0, 1, 2)) if isinstance(frame, PushEvents) else 1
    screen = Screen()
    receiver = await open_client(ben, tmp_path / "ben.db", screen, proxy.url, gap_grace_ms=50)
    sender = await ann.online()
    for part in range(5):
        await say(sender, ben, 20 * part, 20)
        await proxy.cut()
    await eventually(lambda: receiver.is_online, 30, "the last connection")
    await receiver.checkpoint(60)
    await eventually(lambda: len(screen.bodies()) >= 100, 60, "100 messages")
    assert screen.bodies() == [b"%d" % n for n in range(100)]
    counters = receiver.session.inbox.counters
    assert counters.reordered == counters.visible_duplicates == 0


async def test_A10_an_overrun_mailbox_is_rebuilt_from_history(cast: Cast, tmp_path: Path) -> None:
    """§8: the cursor has expired; all that was missed comes from history, a page is lost on the way,
    a message that arrives meanwhile comes after it, and the cursor is good afterwards (E7)."""
    ann, ben = cast.people("ann", "ben")
    path, first, screen = tmp_path / "ben.db", Screen(), Screen()
    count = ENTRIES_MAX + ENTRIES_MAX // 10 + 200
    phone = await open_client(ben, path, first)
    sender = await ann.online(per_conversation_inflight=64, inflight_max=64)
    head = await sender.send(b"0", to_user_id=ben.user_id)
    await eventually(lambda: first.bodies() == [b"0"], 30, "the first message")
    await phone.checkpoint()
    await phone.close()
    receipts = await say(sender, ben, 1, count)
    await _mailbox_reaches(ben, max(one.conversation_seq for one in receipts))
    proxy, pages = await cast.proxy(), 0

    def lose_a_page(_: Passage, frame: Frame) -> int:
        nonlocal pages
        pages += isinstance(frame, HistoryPage)
        if pages == 3 and isinstance(frame, HistoryPage):
            cast.background(_live(proxy, sender, ben))
            return 0
        return 1

    proxy.to_client = lose_a_page
    phone = await open_client(ben, path, screen, proxy.url)
    await eventually(lambda: screen.count(RebuildFinished) == 1, 90, "the end of the rebuild")
    await eventually(lambda: b"live" in screen.bodies(), 30, "the live message")
    seqs = [one.message.conversation_seq for one in screen if isinstance(one, Event)]
    assert seqs == list(range(head.conversation_seq + 1, count + 3))
    assert len(set(screen.bodies())) == count + 1
    assert screen.count(RebuildRequired) == 1
    assert phone.gaps == []
    auths = [frame for one in proxy.passages for frame in one.to_client if isinstance(frame, AuthOk)]
    assert (auths[0].after_seq, auths[0].has_offline) == (auths[0].sync_to_seq, False)  # an empty cursor
    assert auths[1].after_seq == auths[0].sync_to_seq, "§8 (6): the fresh cursor"
    await phone.checkpoint()
    await phone.close()
    phone = await open_client(ben, path, screen)
    await sender.send(b"later", to_user_id=ben.user_id)
    await eventually(lambda: screen.bodies()[-1] == b"later", 30, "the next message")
    assert screen.count(RebuildRequired) == 1, "E7: the cursor of the rebuild was refused"
    await phone.close()
    store = SqliteStore(path)
    assert store.load().rebuild is Rebuild.NONE, "the session list named every conversation"
    assert len(store.messages(head.conversation_id, 100_000)) == count + 3
    store.close()


async def _live(proxy: Any, sender: QimClient, to: Person) -> None:
    await sender.send(b"live", to_user_id=to.user_id)
    await proxy.cut()


async def _mailbox_reaches(person: Person, seq: int) -> None:
    """Until the newest entry of the mailbox is of that message."""

    async def newest() -> bool:
        entries = await person.mailbox()
        return bool(entries) and entries[-1].message.conversation_seq == seq

    await eventually(newest, 60, f"entry {seq} of {person.user_id}")
