"""What the measurement of an attack says of its figures. T-X1."""

from typing import Any

import pytest

from tests.perf import hostile_beside
from tests.perf.storm_load import Part

ASKED = hostile_beside.Asked(20, 20, 20.0, 1.2, 1)
GOOD: dict[str, Any] = {
    "clean": True, "refused": 0, "same_processes": True, "ends": {"API: 401": 3},
    "ratios": {"ack": 1.1, "e2e": 0.9},
}  # fmt: skip


def part(name: str, ack: float, e2e: float) -> Part:
    """A stretch with these P99."""
    return Part(name, 20, 3_000, {"p50": 1.0, "p99": ack}, {"p50": 2.0, "p99": e2e})


def test_the_attack_is_held_against_the_worse_of_both_quiet_stretches() -> None:
    parts = [part("alone", 10.0, 50.0), part("beside", 22.0, 40.0), part("again", 20.0, 20.0)]
    assert hostile_beside.ratios(parts) == {"ack": pytest.approx(1.1), "e2e": pytest.approx(0.8)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"clean": False}, "honest clients"),
        ({"refused": 1}, "honest clients"),
        ({"same_processes": False}, "a process ended"),
        ({"ends": {"frame: AssertionError": 1}}, "never ended"),
        ({"ratios": {"ack": 1.3, "e2e": 1.0}}, "ack P99 is 1.30"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], said: str | None) -> None:
    found = hostile_beside.problems(GOOD | change, ASKED)
    assert found == [] if said is None else (len(found) == 1 and said in found[0])


def test_every_kind_of_attack_is_there() -> None:
    assert {one.name for one in hostile_beside.attacks()} == {"frame", "msgpack", "JSON", "noise"}


@pytest.mark.parametrize("word", ["--seconds=0", "--slow=-1", "--attacks=0", "--rate=0"])
def test_wrong_options_are_refused(word: str) -> None:
    with pytest.raises(SystemExit) as ended:
        hostile_beside.parse([word])
    assert ended.value.code == 2
