"""Owners of every kind are paused for longer than their lease, replaced, and woken up: what they still write
counts for nobody.

The traffic's verdict holds the whole system against what clients were told (`verdict`): no message twice,
none lost, no number twice, entries exact, W never back. A paused writer may still have records in its
producer; the Outbox is read there with the rule that all readers follow, and what was left out is counted.

`QIM_TEST_ROUNDS` sets the rounds of the long form.

T-Z1, I14; P14. Spec: §11, §14.6.
"""

import asyncio
import os
import random
import signal
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import redis

from tests.chaos.conftest import UnderTraffic, new_seed
from tests.support.logs import count_left_out
from tests.support.processes import ExtraWorker, stand_by
from tests.support.stack import StackProcess
from tests.support.traffic import Plan, Traffic
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.timeout(600)]

KINDS = ("writer", "fanout", "mailbox", "archiver", "gateway")
REPLACED = ("writer", "fanout", "mailbox")  # the RocksDB archive and a gateway's sockets have nobody to go to
LEASE_S, FREEZE_S, JOIN_S = 3.0, 4.5, 90.0
ROUNDS_LONG = int(os.environ.get("QIM_TEST_ROUNDS") or 100)
EPOCHS = {"writer": "{ob:*}:epoch", "mailbox": "{s:*}:epoch", "gateway": "{cs:*}:epoch"}
REFUSED = (
    "is fenced",
    "was lost",
    "not ours",
    "does not count",
    "not renewed for a whole ttl",
    "Heartbeat failed",
)


@pytest.fixture(scope="module")
def stack(common_stack: StackProcess) -> StackProcess:
    return common_stack


@pytest.fixture
def others(stack: StackProcess) -> Iterator[dict[str, ExtraWorker]]:
    """Stand-bys under another node's name."""
    found = {role: stand_by(stack, role, 40 + number) for number, role in enumerate(REPLACED)}
    yield found
    for worker in found.values():
        worker.kill()


class Freezer:
    """Stops and wakes roles, and knows what has to be different afterwards."""

    def __init__(self, stack: StackProcess) -> None:
        self._stack = stack
        self._redis = redis.Redis.from_url(stack.client["redis_url"], decode_responses=True)
        self.survived = self.replaced = 0

    def epochs(self, role: str) -> dict[str, int]:
        """The epoch of every resource of a role."""
        if role not in EPOCHS:
            return {}
        return {key: int(self._redis.get(key) or 0) for key in self._redis.scan_iter(match=EPOCHS[role])}

    def held_by(self, role: str) -> list[str]:
        """The resources that the stack's own worker of a role holds."""
        name = f"{role}.node-1.0"
        return [
            key
            for key in self.epochs(role)
            if self._redis.hget(key.replace(":epoch", ":lease"), "node") == name
        ]

    async def freeze(self, traffic: Traffic, roles: Sequence[str]) -> None:
        """SIGSTOP for one and a half leases, then SIGCONT; until all serve again under newer epochs."""
        held = {role: self.held_by(role) for role in roles}
        before = {role: self.epochs(role) for role in roles}
        pids = {role: self._stack.kill(role, signal.SIGSTOP) for role in roles}
        await traffic.for_seconds(FREEZE_S)
        for role in roles:
            self._stack.kill(role, signal.SIGCONT)
        await traffic.more_acks(30)
        for role in roles:
            ready = partial(self._is_ready, role)
            await eventually(ready, JOIN_S, f"{role} to be ready")
            self.survived += self._stack.role(role).pid == pids[role]
            over = partial(self._is_over, role, held[role], before[role])
            await eventually(over, JOIN_S, f"the old epochs of {role} to be over")
        self.replaced += len(roles)

    def _is_ready(self, role: str) -> bool:
        return self._stack.role(role).state.value == "ready"

    def _is_over(self, role: str, held: list[str], before: dict[str, int]) -> bool:
        """Nothing that the frozen owner held is held under the epoch that it had."""
        now = self.epochs(role)
        return all(
            now[key] > before[key] or not self._redis.exists(key.replace(":epoch", ":lease")) for key in held
        )

    def refusals(self) -> int:
        """How often processes of the stack said that they were refused or had lost what they owned."""
        logs = (self._stack.state_dir / "log").glob("*.log")
        return sum(
            text.count(word) for log in logs for text in [log.read_text(errors="replace")] for word in REFUSED
        )


async def _run(
    stack: StackProcess,
    others: dict[str, ExtraWorker],
    traffic: Traffic,
    rounds: Sequence[Sequence[str]],
) -> dict[str, Any]:
    freezer = Freezer(stack)
    await traffic.more_acks(30)
    for role, worker in others.items():
        await traffic.until(worker.serves, JOIN_S, f"the other {role} to serve")
    said = freezer.refusals()
    for roles in rounds:
        await freezer.freeze(traffic, roles)
    for worker in others.values():
        await asyncio.to_thread(worker.kill)  # leaves nothing behind: the lease ends by itself
    await traffic.more_acks(30)
    return {
        "frozen": freezer.replaced,
        "survived": freezer.survived,
        "refusals said": freezer.refusals() - said,
        "records left out": await asyncio.to_thread(count_left_out, stack.client["brokers"]),
    }


async def test_paused_owners_of_every_kind_at_once(
    stack: StackProcess, others: dict[str, ExtraWorker], under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """T-Z1, short: everything that owns something sleeps past its lease in the middle of traffic."""
    async with under_traffic(stack, Plan("zombies", new_seed())) as traffic:
        found = await _run(stack, others, traffic, [KINDS])
    figures |= found


@pytest.mark.slow
@pytest.mark.timeout(600 + 60 * ROUNDS_LONG)
async def test_paused_owners_many_times(
    stack: StackProcess, others: dict[str, ExtraWorker], under_traffic: UnderTraffic, figures: dict[str, Any]
) -> None:
    """T-Z1: one kind or two, round after round; the seed says which."""
    seed = new_seed()
    chance = random.Random(seed)
    rounds = [chance.sample(KINDS, 2 if chance.random() < 0.3 else 1) for _ in range(ROUNDS_LONG)]
    async with under_traffic(stack, Plan(f"zombies{seed}", seed)) as traffic:
        found = await _run(stack, others, traffic, rounds)
    figures |= found
