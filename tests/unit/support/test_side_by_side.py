"""How tests are shared out to processes, and what the everyday run makes of its stages."""

import re
from pathlib import Path

import pytest

from tests import everyday
from tests.support.side_by_side import TOGETHER, piece_of

ROOT = Path(__file__).resolve().parents[3]


def test_a_file_is_a_piece_unless_its_directory_shares_servers() -> None:
    assert piece_of("tests/unit/a/test_b.py::test_c[1::2]") == "tests/unit/a/test_b.py"
    machine = "tests/model/test_shard_machine.py::test_seeded_bugs_are_found[a]"
    assert piece_of(machine) == machine
    history = piece_of("tests/integration/history/test_history_stack.py::t")
    assert history == piece_of("tests/integration/scenarios/test_sync.py::u")
    assert history != piece_of("tests/integration/commit/test_writer_process.py::v")


def test_all_that_share_exist() -> None:
    assert all(list(ROOT.glob(files)) for files in TOGETHER)


def test_whoever_uses_the_whole_stack_is_in_its_piece() -> None:
    """Another process would start a second one."""
    uses = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests" / "integration").rglob("test_*.py")
        if re.search(r"\b(whole_stack|cast): ", text := path.read_text())
        and "def stack(" not in text  # it has one of its own
        and path.parent.name not in ("client", "webhooks")  # and so have these
    ]
    assert len(uses) > 5
    assert {piece_of(f"{path}::test") for path in uses} == {"the whole stack"}


def test_every_suite_is_in_exactly_one_stage() -> None:
    suites = {path.parent.relative_to(ROOT / "tests").parts[0] for path in ROOT.glob("tests/*/**/test_*.py")}
    side_by_side = {Path(path).parts[1] for path in everyday.SIDE_BY_SIDE}
    assert {Path(path).parts[1] for path in everyday.ALONE} == suites - side_by_side == {"chaos"}


def test_the_kill_tests_run_alone_whatever_is_asked_for() -> None:
    shared, alone = everyday.stages(["-k", "gateway", "-n", "4"])
    assert shared[-2:] == ["-n", "4"]
    assert alone[-2:] == ["-n", "0"]
    assert not set(everyday.ALONE) & set(shared)


@pytest.mark.parametrize(
    ("codes", "code"),
    [([0, 0], 0), ([0, 5], 0), ([5, 0], 0), ([5, 5], 5), ([1, 0], 1), ([0, 1], 1), ([0, 2], 1), ([-9, 0], 1)],
)
def test_any_failure_fails_the_run(codes: list[int], code: int) -> None:
    assert everyday.verdict(codes) == code


def test_the_first_failure_ends_the_run_when_that_is_asked_for() -> None:
    assert everyday.stops_early(["-x"])
    assert everyday.stops_early(["--maxfail=3"])
    assert not everyday.stops_early(["-k", "x"])
