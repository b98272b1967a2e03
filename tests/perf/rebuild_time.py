"""How long a device takes to rebuild: the session list, then what is new in every conversation's history.

    python -m tests.perf.rebuild_time [--conversations N] [--new N] [--store sqlite|memory] [--state-dir DIR]

A user with many conversations, half of them direct chats, reads them on one device; then `--new` messages
come in each, and the device's cursor is one that the server does not know any more. The SDK gets
CURSOR_INVALID, signs on anew, reads the session list and the history behind what it kept, as an application
would have it: every message is handed out once, in order, and kept in a store. Client and stack share the
machine; `of a core` says who used how much of it.

Exit codes: 0 measured, and every message came once, in order; 1 something was missing, doubled or marked as a
gap; 2 wrong usage.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from qim_streams.client import (
    ClientOptions,
    Delivery,
    LocalStore,
    MemoryStore,
    QimClient,
    RebuildFinished,
    RebuildStarted,
    SqliteStore,
    SyncFinished,
)
from qim_streams.client.phases import Answered
from qim_streams.client.store import LocalState
from qim_streams.errors import QimError
from qim_streams.ids import direct_conversation_id
from qim_streams.loadgen import message
from qim_streams.loadgen.device import Device
from qim_streams.loadgen.groups import make_group
from qim_streams.loadgen.message import BODY_BYTES_MIN
from qim_streams.loadgen.plan import Conversation, Plan, user_id
from qim_streams.loadgen.procfs import Usage
from qim_streams.loadgen.run import draw_tag
from qim_streams.wire.frames import ClientFrame, Event
from tests.perf import reporting
from tests.perf.processes import MeasurementError
from tests.perf.running_stack import RunningStack, running_stack
from tests.perf.talking import Talk

READER, FOUNDER = 0, 1  # numbers of users; the peers of direct chats follow
PEERS_AT_ONCE = 16
KEPT = 1  # messages of a conversation that the device has
REBUILD_S = 180.0
UNKNOWN_CURSOR = "signed-with-a-key-that-is-gone"


class Asked(NamedTuple):
    """What the command line says."""

    conversations: int
    new: int
    body: int
    store: str


class ForgottenCursor:
    """Wraps a store: a device that comes back with a cursor that no server takes."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self.is_slow, self.apply = store.is_slow, store.apply
        self.messages, self.close = store.messages, store.close

    def load(self) -> LocalState:
        """See `LocalStore.load`."""
        state = self._store.load()
        state.cursor = UNKNOWN_CURSOR
        return state


class Chats(Talk):
    """The reader's conversations, and a device of the reader that hears what is said there."""

    def __init__(self, address: Any, tag: str, run: int, asked: Asked) -> None:
        super().__init__(address, tag, run, asked.body)
        tenant = address.require_tenant()
        count = asked.conversations
        me = user_id(tag, READER)
        self.peers = range(FOUNDER + 1, FOUNDER + 1 + count // 2)
        self.directs = {peer: direct_conversation_id(tenant, me, user_id(tag, peer)) for peer in self.peers}
        groups = [
            Conversation(f"g{tag}-{number}", (FOUNDER, READER), False)
            for number in range(count - len(self.peers))
        ]
        self.plan = Plan(tag, tenant, 0, 0, 1, groups, ())
        self.heard = 0

    def event(self, device: Device, event: dict[str, Any], now_ns: int, fresh: bool, live: bool) -> None:
        """See `Owner`."""
        if device.user == READER and fresh:
            self.heard += 1
            self.progress += 1

    async def found(self) -> None:
        """Make the groups; the direct chats are made by their first message."""
        for user in (READER, FOUNDER):
            await self.sign_on(user)
        founder, gate = self.device(FOUNDER), asyncio.Semaphore(PEERS_AT_ONCE)

        async def one(number: int) -> None:
            async with gate:
                await make_group(founder, self.plan, number, lambda _: None)

        await asyncio.gather(*(one(number) for number in range(len(self.plan.conversations))))

    async def speak(self, messages: int) -> None:
        """So many messages in every conversation; returns once the reader's other device has heard them."""
        before, gate = self.heard, asyncio.Semaphore(PEERS_AT_ONCE)

        async def peer_speaks(peer: int, name: str) -> None:
            async with gate:
                device = await self.sign_on(peer)
                for _ in range(messages):
                    await self.say(peer, name, READER)
                await self.until(lambda: not device.pending, "acks")
                await self.leave(peer)

        async def founder_speaks() -> None:
            for _ in range(messages):
                for group in self.plan.conversations:
                    await self.say(FOUNDER, group.conversation_id)

        await asyncio.gather(founder_speaks(), *(peer_speaks(*one) for one in self.directs.items()))
        await self.all_acked()
        wanted = before + messages * (len(self.directs) + len(self.plan.conversations))
        await self.until(lambda: self.heard >= wanted, "the reader's other device")


class Screen:
    """What the application was given, and when the marks of the rebuild came."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.marks: dict[type, float] = {}
        self.finished: RebuildFinished | None = None
        self._came = asyncio.Event()

    def take(self, deliveries: Sequence[Delivery]) -> None:
        """See `QimClient.on_deliveries`."""
        for one in deliveries:
            if isinstance(one, Event):
                self.events.append(one)
            elif isinstance(one, SyncFinished | RebuildStarted | RebuildFinished):
                self.marks.setdefault(type(one), time.monotonic())
                if isinstance(one, RebuildFinished):
                    self.finished = one
        self._came.set()

    async def until(self, reached: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait for something that is shown; MeasurementError when it does not come."""
        try:
            async with asyncio.timeout(timeout_s):
                while not reached():
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            raise MeasurementError(f"{what} did not come within {timeout_s:.0f} s") from None


def device(stack: RunningStack, tag: str, store: LocalStore, screen: Screen) -> QimClient:
    """The reader's device, on its store. What there is of a mailbox is its first sync."""
    address = stack.address
    return QimClient(
        address.require_url(),
        address.token(user_id(tag, READER)),
        "phone",
        options=ClientOptions(first_sync="mailbox"),
        store=store,
        on_deliveries=screen.take,
    )


def counted(client: QimClient) -> Counter[str]:
    """The requests that the client makes from here on, by the names of their frames."""
    asked: Counter[str] = Counter()
    call = client.session.call

    def count(make: Callable[[int], ClientFrame], answered: Answered) -> int:
        def named(rid: int) -> ClientFrame:
            frame = make(rid)
            asked[type(frame).__name__] += 1
            return frame

        return call(named, answered)

    client.session.call = count  # type: ignore[method-assign]  # the SDK has no hook for this
    return asked


async def run(stack: RunningStack, asked: Asked, folder: Path) -> dict[str, Any]:
    """Everything; the figures."""
    address, tag = stack.address, draw_tag()
    chats = Chats(address, tag, random.SystemRandom().getrandbits(32), asked)
    memory = MemoryStore()

    def store() -> LocalStore:
        return SqliteStore(folder / "device.db") if asked.store == "sqlite" else memory

    began_s = time.monotonic()
    await chats.found()
    await chats.speak(KEPT)
    kept, first = store(), Screen()
    client = device(stack, tag, kept, first)
    await client.connect(60)
    await first.until(
        lambda: len(first.events) >= asked.conversations * KEPT, 60, "what the device is to keep"
    )
    await client.close()
    kept.close()
    known = {name: set(said) for name, said in chats.said.items()}
    await chats.speak(asked.new)
    await chats.close()
    print(f"{asked.conversations:,} conversations made in {time.monotonic() - began_s:.1f} s", flush=True)
    found, screen = await measured(stack, tag, store())
    return found | {"problems": problems(chats, known, screen)}


async def measured(stack: RunningStack, tag: str, store: LocalStore) -> tuple[dict[str, Any], Screen]:
    """The rebuild, from the first connection to its end."""
    screen, usage = Screen(), Usage()
    client = device(stack, tag, ForgottenCursor(store), screen)
    requests = counted(client)
    usage.read(stack.pids())
    cpu_s, began_s = time.process_time(), time.monotonic()
    await client.connect(60)
    await screen.until(lambda: screen.finished is not None, REBUILD_S, "the end of the rebuild")
    cpu_s = time.process_time() - cpu_s
    usage.read(stack.pids())
    took_s = screen.marks[RebuildFinished] - began_s
    await client.close()
    store.close()
    found = {
        "seconds": took_s,
        "online_s": screen.marks[SyncFinished] - began_s,
        "list_read_s": screen.marks[RebuildStarted] - began_s,
        "requests": dict(requests),
        "entries": len(screen.events),
        "entries_per_s": len(screen.events) / took_s,
        "of_a_core": {"client": cpu_s / took_s}
        | {name: used / took_s for name, used in usage.cpu_s().items()},
    }
    return found, screen


def problems(chats: Chats, known: dict[str, set[int]], screen: Screen) -> list[str]:
    """What was not as it must be; empty when all is well."""
    said: Counter[str] = Counter()
    last: dict[str, int] = {}
    came: dict[str, set[int]] = {name: set() for name in chats.said}
    for event in screen.events:
        name, seq = event.message.conversation_id, event.message.conversation_seq
        read = message.read_key(event.message.body, chats.run)
        if read is None or chats.said.get(name, {}).get(seq) != read[0]:
            said["messages that nobody sent"] += 1
            continue
        said["messages that came twice"] += seq in came[name] or seq in known[name]
        said["messages out of order"] += seq < last.get(name, 0)
        last[name] = seq
        came[name].add(seq)
    said["messages that never came"] = sum(
        len(chats.said[name].keys() - came[name] - known[name]) for name in chats.said
    )
    finished = screen.finished
    if finished is not None:
        said["gaps"] = len(finished.gaps)
        said["session lists that were not whole"] = int(not finished.complete)
    return [f"{count:,} {what}" for what, count in said.items() if count]


def report(found: dict[str, Any]) -> str:
    """The figures for people."""
    asked = ", ".join(f"{count:,} {name}" for name, count in sorted(found["requests"].items()))
    cores = ", ".join(f"{name} {share:.0%}" for name, share in found["of_a_core"].items() if share >= 0.01)
    return (
        f"{found['seconds']:.2f} s: online after {found['online_s']:.2f}, list read after "
        f"{found['list_read_s']:.2f}; {asked}; {found['entries']:,} messages, "
        f"{found['entries_per_s']:,.0f}/s\nof a core: {cores}"
    )


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, Asked]:
    """The options; ends the process with 2 when they are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.perf.rebuild_time",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--conversations", type=int, default=1_000, metavar="N")
    parser.add_argument("--new", type=int, default=5, metavar="N", help="messages missed in each")
    parser.add_argument("--body", type=int, default=128, metavar="BYTES")
    parser.add_argument("--store", choices=("sqlite", "memory"), default="sqlite")
    parser.add_argument("--quick", action="store_true", help="a broker that starts sooner and is slower")
    parser.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="of a stack that runs, or for a new one"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    given = parser.parse_args(argv)
    if min(given.conversations, given.new) < 1 or given.body < BODY_BYTES_MIN:
        parser.error(f"--conversations, --new: from 1; --body: from {BODY_BYTES_MIN}")
    return given, Asked(given.conversations, given.new, given.body, given.store)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what `argv` asks for; the exit code."""
    given, asked = parse(argv)
    reporting.begin("rebuild", None)
    try:
        with (
            running_stack(given.state_dir, quick=given.quick) as stack,
            tempfile.TemporaryDirectory(prefix="qim-rebuild-") as folder,
        ):
            found = uvloop.run(run(stack, asked, Path(folder)))
    except (MeasurementError, QimError) as error:
        print(f"not measured: {error}", file=sys.stderr)
        return 1
    print(report(found))
    reporting.save(given.json, "rebuild_time", None, {**asked._asdict(), **found})
    for one in found["problems"]:
        print(f"NOT RIGHT: {one}", file=sys.stderr)
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
