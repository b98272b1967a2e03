"""What needs no server of ``tests.perf.noisy_tenant``: stretches, ratios, and what is called wrong."""

import pytest

from qim_streams.wire.codes import code_of
from tests.perf import noisy_tenant
from tests.perf.noisy_tenant import STRETCHES, Asked
from tests.perf.storm_load import Part

ASKED = Asked(quota=200, times=10.0, seconds=20, ratio_max=1.2)
EXCEEDED = str(code_of("QUOTA_EXCEEDED").code)


def part(name: str, ack: float, e2e: float) -> Part:
    return Part(name, 20, 3_000, {"p99": ack}, {"p99": e2e})


def figures(**changed: object) -> dict[str, object]:
    fine = {"offered": 2_000, "acked": 2_000, "refused": {}, "clean": True}
    over = {"offered": 20_000, "acked": 2_100, "refused": {EXCEEDED: 17_900}, "clean": True}
    found = {
        "clean": True,
        "refused": 0,
        "noisy": {STRETCHES[1]: fine, STRETCHES[2]: over | changed.pop("over", {})},
        "ratios": {STRETCHES[2]: {"ack": 1.1, "e2e": 1.19}},
    }
    return found | changed


def test_stretches_do_not_touch() -> None:
    assert [ASKED.begins(number) for number in range(4)] == [0, 21, 42, 63]
    assert ASKED.load_s == 84


def test_later_stretches_are_held_against_the_first() -> None:
    parts = [part("alone", 10.0, 40.0), part("over", 11.0, 60.0)]
    assert noisy_tenant.ratios(parts) == {"over": {"ack": 1.1, "e2e": 1.5}}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"clean": False}, "the calm tenant"),
        ({"refused": 3}, "3 refused"),
        ({"over": {"acked": 2_500}}, "its quota allows 2402"),
        ({"over": {"refused": {}}}, "was refused nothing"),
        ({"over": {"refused": {EXCEEDED: 5, "500": 1}}}, "the noisy tenant over its quota"),
        ({"ratios": {STRETCHES[2]: {"ack": 1.21, "e2e": 1.0}}}, "ack P99 is 1.21"),
        ({"ratios": {STRETCHES[2]: {"ack": 1.0, "e2e": 2.0}}}, "e2e P99 is 2.00"),
    ],
)
def test_what_is_not_as_it_must_be_is_said(changed: dict[str, object], said: str) -> None:
    assert noisy_tenant.problems(figures(), ASKED) == []
    (only,) = noisy_tenant.problems(figures(**changed), ASKED)
    assert said in only


@pytest.mark.parametrize("argv", [["--quota", "1"], ["--times", "1"], ["--seconds", "0"], ["--rate", "0"]])
def test_what_cannot_be_measured_is_refused(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        noisy_tenant.parse(argv)
    assert ended.value.code == 2
