"""The hot tier loses its last writes: Redis dies, its log is cut back, and it starts without them.

That is a power loss with ``appendfsync everysec``. What was acknowledged is in the Outbox (messages) and in
the change log (members), so numbers must not come again, answers must stay the same, and mailboxes must be
whole. W may go back here, because the entries below it went with it, and a cursor above such a W may be
refused (explicitly: the device starts anew and misses nothing).

A loss is either up to a second of writes or up to 4,096 bytes. The long form makes fifty, in pieces that each
have a verdict of their own.

T-R2, D1, D4; P1, P2, P4. Spec: §14.4.
"""

import asyncio
import contextlib
import random
import signal
import time
from collections import deque
from pathlib import Path
from typing import Any, Self

import pytest

from qim_streams.client import QimClient
from qim_streams.wire.frames import LiveLost
from tests.chaos.conftest import StartStack, UnderTraffic, new_seed
from tests.support.append_only import safe_bytes
from tests.support.stack import StackProcess
from tests.support.traffic import BRISK, Plan
from tests.support.waiting import eventually, eventually_sync
from tests.support.wire_client import WireClient

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

LOSSES, LOSSES_PIECE, PIECES = 2, 10, 5
LOST_S = 1.0  # what everysec may lose
LOST_BYTES = 4_096
HEARD_S = 45.0  # sessions that say nothing are closed later than that
GONE_S = 20.0
BACK_S = 90.0
READY_S = 180.0  # the third process that dies in a minute waits before it comes back


@pytest.fixture(scope="module")
def stack(start_stack: StartStack) -> StackProcess:
    return start_stack("rollback", "--quick", "--fsync", "everysec")


class AppendLog:
    """The append-only file of a stack's Redis; remembers how long it was during the last seconds."""

    def __init__(self, stack: StackProcess) -> None:
        self._stack = stack
        self._sizes: deque[tuple[float, int]] = deque(maxlen=2_000)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    def _path(self) -> Path:
        """The file that is written now: the newest that is not a base or manifest."""
        files = [
            path for path in (self._stack.state_dir / "redis").rglob("appendonly.aof*") if path.is_file()
        ]
        grown = [path for path in files if ".base." not in path.name and ".manifest" not in path.name]
        return max(grown, key=lambda path: path.stat().st_mtime_ns)

    async def _watch(self) -> None:
        while True:
            self._sizes.append((time.monotonic(), self._path().stat().st_size))
            await asyncio.sleep(0.02)

    def lose(self, seconds: float, least: int = 0) -> int:
        """Kill Redis and cut its log back to what it was `seconds` ago; returns the bytes that are gone.

        At least so many bytes as `least`. The supervisor is held meanwhile, so that it cannot start Redis
        on a log that is being cut.
        """
        stack = self._stack
        stack.signal_supervisor(signal.SIGSTOP)
        try:
            at_s = time.monotonic() - seconds
            kept = next((size for when, size in reversed(self._sizes) if when <= at_s), self._sizes[0][1])
            pid = stack.kill("redis")
            eventually_sync(lambda: is_dead(pid), GONE_S, "Redis to be dead")
            path = self._path()
            size = path.stat().st_size
            lost = min(size - safe_bytes(path), max(least, size - kept))
            print(f"{path.name}: {lost} bytes of {size} are lost, {seconds:.2f} s")
            with path.open("rb+") as file:
                file.truncate(size - lost)
        finally:
            stack.signal_supervisor(signal.SIGCONT)
        stack.wait_restarted("redis", pid, BACK_S)
        return lost


class Newcomers:
    """Users who sign on for the first time just before a loss: nobody but their gateway knows them yet."""

    def __init__(self, stack: StackProcess, run: str) -> None:
        self._address, self._run, self._number = stack.address(), run, 0
        self._open = contextlib.AsyncExitStack()
        self._sender = QimClient(
            self._address.require_url(), self._address.token(f"{run}-greeter"), "phone", options=BRISK
        )
        self._here: list[tuple[str, WireClient]] = []

    async def __aenter__(self) -> Self:
        await self._open.enter_async_context(self._sender)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    async def come(self, count: int) -> None:
        """Sign on, and stay."""
        for _ in range(count):
            self._number += 1
            user = f"{self._run}-newcomer{self._number}"
            wire = WireClient(self._address.require_url(), self._address.token(user), "phone")
            await (await self._open.enter_async_context(wire)).go_online()
            self._here.append((user, wire))

    async def are_told(self) -> int:
        """Each hears a message, or is told that he may have missed one; nobody is deaf. How many heard."""
        here, self._here = self._here, []
        for user, _ in here:
            await self._sender.send(b"welcome", to_user_id=user, timeout_s=BACK_S)
        for user, wire in here:
            await eventually(lambda wire=wire: told(wire), HEARD_S, f"{user} to hear")  # type: ignore[misc]
        return sum(bool(wire.pushed()) for _, wire in here)


def told(wire: WireClient) -> bool:
    """Whether a session heard something, or knows that it has to ask."""
    return bool(wire.pushed()) or not wire.is_open or any(isinstance(one, LiveLost) for one in wire.frames)


def all_back(stack: StackProcess) -> None:
    """Until every role serves again; else who does not, and why."""
    try:
        stack.wait_all_ready(READY_S)
    except AssertionError as error:
        late = [f"{one.name}: {one.state.value} {one.reasons}" for one in stack.status().roles
                if one.state.value != "ready"]  # fmt: skip
        raise AssertionError(f"{error}: {late}\n{stack.log_ends(12)}") from None


def is_dead(pid: int) -> bool:
    """Whether a process has ended; its parent, who is held, has not noticed yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return True


@pytest.mark.parametrize(
    ("losses", "piece"),
    [
        (LOSSES, 0),
        *(pytest.param(LOSSES_PIECE, n, marks=pytest.mark.slow) for n in range(1, PIECES + 1)),
    ],
)
async def test_redis_forgets_its_last_second(
    stack: StackProcess, under_traffic: UnderTraffic, figures: dict[str, Any], losses: int, piece: int
) -> None:
    """T-R2, D4: up to a second of acknowledged writes is gone, or up to 4,096 bytes, again and again."""
    seed = new_seed()
    chance, lost = random.Random(seed), []
    heard = 0
    async with under_traffic(stack, Plan(f"rollback{piece}", seed, hot_tier_forgets=True)) as traffic:
        async with AppendLog(stack) as log, Newcomers(stack, f"rb{seed}") as newcomers:
            for number in range(losses):
                await traffic.more_acks(80, BACK_S)
                await traffic.for_seconds(LOST_S)  # what everybody has known for long is not lost
                seconds = chance.uniform(0.0, LOST_S) if number % 2 == 0 else 0.0
                await newcomers.come(2)
                least = 0 if number % 2 == 0 else chance.randint(0, LOST_BYTES)
                lost.append(await asyncio.to_thread(log.lose, seconds, least))
                await asyncio.to_thread(all_back, stack)
                heard += await newcomers.are_told()
        await traffic.more_acks(80, BACK_S)
    figures |= {"losses": losses, "bytes lost": sum(lost), "most lost at once, bytes": max(lost)}
    figures["newcomers who heard without asking"] = f"{heard} of {2 * losses}"
