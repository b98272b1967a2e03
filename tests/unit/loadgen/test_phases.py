"""The end of a run against a fleet that is made up: patience, reading back, and who is read."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from qim_streams.client.discovery import StackAddress
from qim_streams.embedded.roles import RoleState
from qim_streams.embedded.status import RoleStatus, StackStatus
from qim_streams.loadgen import run
from qim_streams.loadgen.generator import Samples
from qim_streams.loadgen.histogram import Histogram
from qim_streams.loadgen.options import BenchOptions
from qim_streams.loadgen.outcome import Outcome
from qim_streams.loadgen.verdict import Verdict
from tests.unit.loadgen.world import World

OPTIONS = BenchOptions(connections=4, users=4)
HASTY = BenchOptions(connections=4, users=4, drain_s=0.3)


class Fleet:
    """Answers from a world. `late` deliveries appear one per reading."""

    def __init__(self, world: World, settles: list[tuple[int, int, int]] | None = None) -> None:
        self.world, self.settles = world, settles or []
        self.late: list[tuple[int, int, int]] = []  # user, key, seq
        self.asked: Counter[str] = Counter()

    async def all(self, name: str, *_: Any) -> list[Any]:
        """A command for all."""
        self.asked[name] += 1
        if name == "settle":
            return [self.settles.pop(0) if len(self.settles) > 1 else self.settles[0]]
        return [
            {"ledger": ledger, "ack": {}, "e2e": {}, "late": Histogram(), "sent": 0, "acked_at": [],
             "delivered_at": [], "noted": {}, "samples": Samples()}
            for ledger in self.world.ledgers
        ]  # fmt: skip

    async def each(self, name: str, arguments: Any) -> list[int]:
        """A command with arguments."""
        self.asked[name] += 1
        if name != "pull" or not self.late:
            return [0]
        self.world.deliver(*self.late.pop(0), live=False)
        return [1]


def outcome() -> Outcome:
    """An empty one."""
    return Outcome(OPTIONS, Verdict())


async def checked(fleet: Fleet) -> Outcome:
    """What the check makes of it."""
    made = outcome()
    await run._check(fleet, fleet.world.plan, OPTIONS, made, lambda _: None)  # type: ignore[arg-type]
    return made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No waiting between readings."""
    monkeypatch.setattr(run, "READ_BACK_WAIT_S", 0.0)


async def test_nothing_is_read_when_nothing_is_missing() -> None:
    fleet = Fleet(World())
    fleet.world.say(0)
    assert (await checked(fleet)).clean
    assert not fleet.asked["pull"]


async def test_what_is_found_by_reading_again_is_recovered_and_not_lost() -> None:
    world = World()
    fleet = Fleet(world)
    for _ in range(3):
        key, seq = world.say(0, but=(2,))
        fleet.late.append((2, key, seq))
    made = await checked(fleet)
    assert made.clean
    assert made.recovered_by_pull == 3
    assert fleet.asked["pull"] == 3


async def test_what_no_reading_finds_is_lost() -> None:
    world = World()
    world.say(0, but=(2,))
    fleet = Fleet(world)
    made = await checked(fleet)
    assert (made.verdict.lost, made.clean) == (1, False)
    assert fleet.asked["pull"] == 2


def target(monkeypatch: pytest.MonkeyPatch, states: list[RoleState]) -> run.Target:
    """A stack whose only role goes through `states`, the last of them for ever."""

    def status(_: Path) -> StackStatus:
        state = states.pop(0) if len(states) > 1 else states[0]
        return StackStatus(True, 1, "running", 0, None, [RoleStatus("mailbox", state, 10, {})])

    monkeypatch.setattr(run, "read_status", status)
    return run.Target(StackAddress(), Path("/nowhere"))


async def test_the_drain_ends_when_everything_came(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = Fleet(World(), [(2, 0, 5), (0, 3, 5), (0, 5, 5)])
    await run._drain(fleet, OPTIONS, target(monkeypatch, [RoleState.READY]), outcome(), lambda _: None)  # type: ignore[arg-type]
    assert fleet.asked["settle"] == 3


async def test_the_drain_is_patient_with_roles_that_are_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    states = [RoleState.BACKOFF] * 5 + [RoleState.READY]
    fleet = Fleet(World(), [(0, 3, 5)] * 5 + [(0, 5, 5)])
    await run._drain(fleet, OPTIONS, target(monkeypatch, states), outcome(), said.append)  # type: ignore[arg-type]
    assert fleet.asked["settle"] == 6
    assert not said


async def test_the_drain_ends_when_patience_does(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    fleet = Fleet(World(), [(1, 3, 5)])
    await run._drain(fleet, HASTY, target(monkeypatch, [RoleState.READY]), outcome(), said.append)  # type: ignore[arg-type]
    assert said == ["drain ends with 1 sends unanswered, 3 of 5 delivered"]
