"""How long a death is felt: from the signal to the next message on the other screen, role by role.

    python -m tests.perf.takeover --rounds 20 --roles mailbox fanout writer gateway --how kill term
    python -m tests.perf.takeover --rounds 20 --roles mailbox --how lost --json lost.json

`kill`: SIGKILL, and the supervisor starts the role again on its own node. `term`: `qim restart`, a clean one.
`lost`: the role's process is stopped (SIGSTOP) while a worker under another node name stands by: its leases
and its place in the group have to run out. The stopped process goes on afterwards, as a zombie.

A message to each of some users is sent at the very moment of the signal, by a client that repeats until it is
answered; the clock stops when the last of them shows it. So a figure holds everything: noticing, waiting,
starting, recovering, reconnecting; and there are enough of them that some are in the hands of whoever was
struck, also where two workers share. The stack is ``qim up`` with the product's time-outs. With `--json` a
run adds its rounds to those of earlier ones in that file, so that twenty can be had in pieces.

Spec: §11.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from qim_streams.client import ClientOptions, Delivery, MemoryStore, MessageReceived, QimClient
from qim_streams.embedded import restarts
from qim_streams.embedded.roles import RestartPolicy, RoleState
from tests.support.processes import stand_by
from tests.support.stack import PRODUCT_CLOCKS, StackProcess
from tests.support.waiting import eventually

ROLES = ("mailbox", "fanout", "writer", "gateway")
STAND_BY = ("mailbox", "fanout", "writer")  # what can take over from another node
HOW = ("kill", "term", "lost")
EAGER = ClientOptions(answer_ms=30_000, backoff_base_ms=50, backoff_cap_ms=100)
GIVE_UP_S = 90.0
CALM_S = 1.0  # between two rounds, after everything is ready
STAND_BY_SLOT = 50
LISTENERS = 8
SHARED = {"QIM_OUTBOX_PARTITIONS": "4"}  # enough for two workers to have some each
FIRST_DEATH = ("--backoff", str(RestartPolicy().backoff_first_s))  # every round is a first one


class Felt(NamedTuple):
    """One round: seconds until the last receipt, and until the last screen had its message."""

    acked_s: float
    delivered_s: float


class Talk:
    """One user who talks to some others."""

    def __init__(self, stack: StackProcess) -> None:
        self._address, self._number = stack.address(), 0
        self._listeners = [f"bob{number}" for number in range(LISTENERS)]
        self._shown: dict[bytes, float] = {}

    async def open(self, opened: AsyncExitStack) -> None:
        """Connect everybody and make sure that messages flow."""
        await asyncio.gather(*(self._client(user, opened) for user in self._listeners))
        self._ann = await self._client("ann", opened)
        await self.felt(_nothing)

    async def _client(self, user: str, opened: AsyncExitStack) -> QimClient:
        def show(deliveries: Sequence[Delivery]) -> None:
            now_s = time.monotonic()
            for one in deliveries:
                if user != "ann" and isinstance(one, MessageReceived):
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

    async def felt(self, strike: Callable[[], Awaitable[None]]) -> Felt:
        """Strike, send at once, wait until all is shown; TimeoutError after `GIVE_UP_S`."""
        self._number += 1
        bodies = {user: f"message {self._number} to {user}".encode() for user in self._listeners}
        await strike()
        began_s = time.monotonic()
        async with asyncio.timeout(GIVE_UP_S):
            await asyncio.gather(*(self._ann.send(body, to_user_id=user) for user, body in bodies.items()))
            acked_s = time.monotonic()
            await eventually(
                lambda: all(body in self._shown for body in bodies.values()), GIVE_UP_S, "all to be shown"
            )
        return Felt(acked_s - began_s, max(self._shown[body] for body in bodies.values()) - began_s)


class Rounds:
    """Strikes at one stack."""

    def __init__(self, stack: StackProcess, talk: Talk, chance: random.Random) -> None:
        self._stack, self._talk, self._chance = stack, talk, chance

    async def run(self, role: str, how: str, rounds: int, found: list[Felt]) -> None:
        """Add the figures of `rounds` strikes at a role to `found`."""
        other = None
        if how == "lost":
            other = stand_by(self._stack, role, STAND_BY_SLOT)
            await eventually(other.serves, GIVE_UP_S, "the stand-by")
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

    async def _round(self, role: str, how: str) -> Felt:
        await asyncio.sleep(CALM_S + self._chance.random())
        pid = self._stack.role(role).pid
        felt = await self._talk.felt(partial(self._strike, role, how))
        if how == "lost":
            self._stack.kill(role, signal.SIGCONT)
            await asyncio.sleep(CALM_S)  # it finds out, and ends
        else:
            assert pid is not None
            await asyncio.to_thread(self._stack.wait_restarted, role, pid)
        await asyncio.to_thread(self._stack.wait_all_ready)
        return felt

    async def _strike(self, role: str, how: str) -> None:
        """Returns when the signal is sent."""
        if how == "term":
            restarts.ask(self._stack.state_dir, role)
            await eventually(
                lambda: self._stack.role(role).state is not RoleState.READY, GIVE_UP_S, "SIGTERM"
            )
        else:
            self._stack.kill(role, signal.SIGKILL if how == "kill" else signal.SIGSTOP)


async def _nothing() -> None:
    """No strike: how it is without one."""


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


def earlier(path: Path | None) -> dict[tuple[str, str], list[Felt]]:
    """The rounds of runs before, by role and how; none without a file."""
    if path is None or not path.exists():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))
    return {(row["role"], row["how"]): [Felt(*felt) for felt in row["rounds"]] for row in rows}


def keep(path: Path | None, found: dict[tuple[str, str], list[Felt]]) -> None:
    """Write all rounds, if a file was named."""
    if path is not None:
        rows = [{"role": role, "how": how, "rounds": rounds} for (role, how), rounds in found.items()]
        path.write_text(json.dumps(rows) + "\n", encoding="utf-8")


async def measure(
    stack: StackProcess,
    roles: Sequence[str],
    how: Sequence[str],
    rounds: int,
    seed: int,
    found: dict[tuple[str, str], list[Felt]],
) -> None:
    """Everything asked for, added to `found`."""
    async with AsyncExitStack() as opened:
        talk = Talk(stack)
        await talk.open(opened)
        work = Rounds(stack, talk, random.Random(seed))
        for one in how:
            for role in roles:
                if one != "lost" or role in STAND_BY:
                    await work.run(role, one, rounds, found.setdefault((role, one), []))


def main() -> None:
    """Start a stack, strike, print the table."""
    parser = argparse.ArgumentParser(description="time from a death to the next delivered message")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--roles", nargs="+", choices=ROLES, default=ROLES)
    parser.add_argument("--how", nargs="+", choices=HOW, default=("kill",))
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--keep-logs", type=Path, help="copy the roles' logs here")
    parser.add_argument("--json", type=Path, help="add the rounds to those in this file")
    asked = parser.parse_args()
    found = earlier(asked.json)
    print(f"seed {asked.seed}, load average {[round(one, 1) for one in os.getloadavg()]}")
    with (
        tempfile.TemporaryDirectory(prefix="qim-takeover-") as folder,
        StackProcess(Path(folder) / "stack", *FIRST_DEATH, env=PRODUCT_CLOCKS | SHARED) as stack,
    ):
        try:
            asyncio.run(measure(stack, asked.roles, asked.how, asked.rounds, asked.seed, found))
        finally:
            keep(asked.json, found)
            print(table(found))
            print(f"load average {[round(one, 1) for one in os.getloadavg()]}")
            if asked.keep_logs is not None:
                shutil.copytree(stack.state_dir / "log", asked.keep_logs, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
