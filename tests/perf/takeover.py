"""How long a death is felt: from the signal to the next message on the other screen, role by role.

    python -m tests.perf.takeover --rounds 20 --roles mailbox fanout writer gateway --how kill term
    python -m tests.perf.takeover --rounds 5 --roles mailbox fanout writer --how lost

`kill`: SIGKILL, and the supervisor starts the role again on its own node. `term`: SIGTERM, a clean restart.
`lost`: the role's process is stopped (SIGSTOP) while a worker under another node name stands by: its leases
and its place in the group have to run out. The stopped process goes on afterwards, as a zombie.

A message is sent at the very moment of the signal, by a client that repeats until it is answered; the clock
stops when the other device shows it. So a figure holds everything: noticing, waiting, starting, recovering,
reconnecting. The stack is ``qim up`` with the product's time-outs.

Spec: §11.
"""

import argparse
import asyncio
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from qim_streams.client import ClientOptions, Delivery, MemoryStore, MessageReceived, QimClient
from tests.support.processes import stand_by
from tests.support.stack import StackProcess
from tests.support.waiting import eventually

ROLES = ("mailbox", "fanout", "writer", "gateway")
STAND_BY = ("mailbox", "fanout", "writer")  # what can take over from another node
HOW = ("kill", "term", "lost")
# As the product has them: `StackProcess` shortens them for tests.
PRODUCT_CLOCKS = {
    "QIM_LEASE_TTL_MS": "15000",
    "QIM_LEASE_RENEW_MS": "3000",
    "QIM_STREAM_SESSION_TIMEOUT_MS": "10000",
    "QIM_PRESENCE_REFRESH_S": "60",
}
EAGER = ClientOptions(answer_ms=30_000, backoff_base_ms=50, backoff_cap_ms=100)
GIVE_UP_S = 90.0
CALM_S = 1.0  # between two rounds, after everything is ready
STAND_BY_SLOT = 50


class Felt(NamedTuple):
    """One round: seconds until the receipt, and until the other screen had the message."""

    acked_s: float
    delivered_s: float


class Pair:
    """Two users who talk."""

    def __init__(self, stack: StackProcess) -> None:
        self._address, self._number = stack.address(), 0
        self._shown: dict[bytes, float] = {}

    async def open(self, opened: AsyncExitStack) -> None:
        """Connect both and make sure that messages flow."""
        await self._client("bob", opened)
        self._ann = await self._client("ann", opened)
        await self.felt(lambda: None)

    async def _client(self, user: str, opened: AsyncExitStack) -> QimClient:
        def show(deliveries: Sequence[Delivery]) -> None:
            now_s = time.monotonic()
            for one in deliveries:
                if user == "bob" and isinstance(one, MessageReceived):
                    self._shown.setdefault(one.message.body, now_s)

        client = QimClient(
            self._address.require_url(),
            self._address.token(user),
            f"{user}-1",
            options=EAGER,
            store=MemoryStore(),
            on_deliveries=show,
        )
        await opened.enter_async_context(client)
        await client.wait_online(GIVE_UP_S)
        return client

    async def felt(self, strike: Callable[[], object]) -> Felt:
        """Call `strike`, send at once, wait until the message is shown; TimeoutError after `GIVE_UP_S`."""
        self._number += 1
        body = b"message %d" % self._number
        began_s = time.monotonic()
        strike()
        async with asyncio.timeout(GIVE_UP_S):
            await self._ann.send(body, to_user_id="bob")
            acked_s = time.monotonic()
            await eventually(lambda: body in self._shown, GIVE_UP_S, "the message to be shown")
        return Felt(acked_s - began_s, self._shown[body] - began_s)


class Rounds:
    """Strikes at one stack."""

    def __init__(self, stack: StackProcess, pair: Pair, chance: random.Random) -> None:
        self._stack, self._pair, self._chance = stack, pair, chance

    async def run(self, role: str, how: str, rounds: int) -> list[Felt]:
        """The figures of `rounds` strikes at a role."""
        other = None
        if how == "lost":
            other = stand_by(self._stack, role, STAND_BY_SLOT)
            await eventually(other.serves, GIVE_UP_S, "the stand-by")
        found = []
        try:
            for number in range(rounds):
                felt = await self._round(role, how)
                print(
                    f"{role} {how} {number + 1}/{rounds}: acked {felt.acked_s:.2f} s, "
                    f"delivered {felt.delivered_s:.2f} s",
                    flush=True,
                )
                found.append(felt)
        finally:
            if other is not None:
                await asyncio.to_thread(other.kill)
        return found

    async def _round(self, role: str, how: str) -> Felt:
        await asyncio.sleep(CALM_S + self._chance.random())
        sent = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "lost": signal.SIGSTOP}[how]
        pid = self._stack.role(role).pid
        felt = await self._pair.felt(lambda: self._stack.kill(role, sent))
        if how == "lost":
            self._stack.kill(role, signal.SIGCONT)
            await asyncio.sleep(CALM_S)  # it finds out, and ends
        else:
            assert pid is not None
            await asyncio.to_thread(self._stack.wait_restarted, role, pid)
        await asyncio.to_thread(self._stack.wait_all_ready)
        return felt


def percentile(values: Sequence[float], percent: int) -> float:
    """The nearest-rank percentile of at least one value."""
    return sorted(values)[max(0, -(-percent * len(values) // 100) - 1)]


def table(found: dict[tuple[str, str], list[Felt]]) -> str:
    """The figures as a table in Markdown; seconds."""
    lines = [
        "| role | how | rounds | acked P50 | acked max | delivered P50 | P90 | P99 | max |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (role, how), rows in found.items():
        acked, delivered = [one.acked_s for one in rows], [one.delivered_s for one in rows]
        figures = [percentile(acked, 50), max(acked)]
        figures += [*(percentile(delivered, share) for share in (50, 90, 99)), max(delivered)]
        cells = " | ".join(f"{one:.2f}" for one in figures)
        lines.append(f"| {role} | {how} | {len(rows)} | {cells} |")
    return "\n".join(lines)


async def measure(
    stack: StackProcess, roles: Sequence[str], how: Sequence[str], rounds: int, seed: int
) -> str:
    """Everything asked for, as a table."""
    found: dict[tuple[str, str], list[Felt]] = {}
    async with AsyncExitStack() as opened:
        pair = Pair(stack)
        await pair.open(opened)
        work = Rounds(stack, pair, random.Random(seed))
        for one in how:
            for role in roles:
                if one != "lost" or role in STAND_BY:
                    found[role, one] = await work.run(role, one, rounds)
    return table(found)


def main() -> None:
    """Start a stack, strike, print the table."""
    parser = argparse.ArgumentParser(description="time from a death to the next delivered message")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--roles", nargs="+", choices=ROLES, default=ROLES)
    parser.add_argument("--how", nargs="+", choices=HOW, default=("kill",))
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--keep-logs", type=Path, help="copy the roles' logs here")
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    with (
        tempfile.TemporaryDirectory(prefix="qim-takeover-") as folder,
        StackProcess(Path(folder) / "stack", env=PRODUCT_CLOCKS) as stack,
    ):
        try:
            print(asyncio.run(measure(stack, asked.roles, asked.how, asked.rounds, asked.seed)))
        finally:
            if asked.keep_logs is not None:
                shutil.copytree(stack.state_dir / "log", asked.keep_logs, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
