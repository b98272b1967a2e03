"""The kill matrix without a stack: its plan, its slices, its results and its table."""

import json
from pathlib import Path
from typing import Any

import pytest

from qim_streams import failpoints
from tests.chaos import matrix
from tests.support.matrix_table import TITLE, put_section, section_of, table
from tests.support.report import write_page
from tests.support.strikes import POINTS, Strike, plan, remaining, slice_of

KNOWN = {"date": "today", "commit": "abc", "machine": "2 cores"}
PAGE = "# Report\n\ntext\n\n## Kill matrix\n\nold\n\n## Not tried\n\n* more\n"


def row(name: str, outcome: str = "passed", **changed: Any) -> dict[str, Any]:
    found = {"master_seed": 7, "name": name, "seed": 1, "nth": 2, "outcome": outcome, "problems": []}
    found |= {"fired_s": 0.5, "back_s": 2.0, "took_s": 9.0, "figures": {"acked": 100}}
    return found | changed


def test_a_plan_is_a_function_of_its_seed() -> None:
    assert plan(1) == plan(1)
    assert {one.seed for one in plan(1)} != {one.seed for one in plan(2)}
    assert len(plan(1)) == 2 * len(POINTS)
    assert len({one.name for one in plan(1, repeats=3)}) == 6 * len(POINTS)


def test_every_strike_can_be_armed() -> None:
    for one in plan(3, repeats=5):
        assert 1 <= one.nth <= POINTS[one.point].nth_max
        failpoints.arm(one.arms)
    failpoints.arm("")


def test_a_point_that_needs_another_one_first_is_armed_with_it() -> None:
    strike = Strike("relay.pending_appended", "pause", 5)
    assert strike.arms == "writer.committed_in_redis:6:kill,relay.pending_appended:1:pause"


def test_slices_are_the_whole_and_share_nothing() -> None:
    strikes = plan(1)
    parts = [slice_of(strikes, number, 4) for number in (1, 2, 3, 4)]
    assert sorted((one for part in parts for one in part), key=strikes.index) == strikes
    with pytest.raises(ValueError, match="N/M"):
        slice_of(strikes, 5, 4)


def test_what_passed_is_not_struck_again(tmp_path: Path) -> None:
    """Of the last seed only; a strike that failed is done again."""
    path = tmp_path / "results.jsonl"
    old = row("writer.admitted:kill:0", master_seed=6)
    rows = [old, row("relay.pending_read:kill:0", "failed"), row("mailbox.pushed:kill:0")]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    seed, found = matrix.read_results(path)
    assert (seed, list(found)) == (7, ["relay.pending_read:kill:0", "mailbox.pushed:kill:0"])
    passed = {name for name, one in found.items() if one["outcome"] == "passed"}
    left = list(remaining(plan(7, actions=["kill"]), passed))
    assert len(left) == len(POINTS) - 1
    assert matrix.read_results(tmp_path / "none") == (0, {})


def test_points_are_chosen_by_patterns() -> None:
    assert matrix.chosen("relay.*, mailbox.pushed") == [
        name for name in POINTS if name.startswith("relay.") or name == "mailbox.pushed"
    ]
    with pytest.raises(SystemExit, match="no point fits 'nobody'"):
        matrix.chosen("nobody")


def test_the_table_says_what_failed_and_why() -> None:
    text = table([row("a:kill:0"), row("b:kill:0", "failed", problems=["I1: lost"])], KNOWN)
    assert "1 of 2 strikes passed" in text
    assert "| `a:kill:0` | 2 | 1 | passed | 0.5 | 2.0 | - | 100 |" in text
    assert "* `b:kill:0`: I1: lost" in text


def test_a_new_page_keeps_the_matrix(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    write_page(path, "# One\n")
    assert path.read_text() == "# One\n"
    path.write_text(PAGE)
    write_page(path, "# Two\n")
    assert path.read_text() == f"# Two\n\n{section_of(PAGE)}"


def test_the_section_takes_the_place_of_the_old_one() -> None:
    new = f"{TITLE}\n\nnew\n"
    page = put_section(PAGE, new)
    assert page == PAGE.replace("old", "new")
    assert section_of(page) == new
    assert put_section("# Report\n", new) == f"# Report\n\n{new}"
    assert section_of("# Report\n") == ""
