"""Meta: every failpoint exists in the product and is exercised by the kill tests (crash points)."""

import ast
import re
from pathlib import Path

from qim_streams import failpoints
from tests.chaos import test_failpoints
from tests.support import strikes

ROOT = Path(__file__).resolve().parents[2]


def names_in_code() -> set[str]:
    """Every text constant of the product that is a failpoint's name, outside the declaration itself."""
    found: set[str] = set()
    for path in (ROOT / "qim_streams").rglob("*.py"):
        if path.name != "failpoints.py":
            constants = (
                node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)
            )
            found |= {node.value for node in constants if isinstance(node.value, str)} & failpoints.NAMES
    return found


def test_every_failpoint_is_in_the_product() -> None:
    assert names_in_code() == failpoints.NAMES


def test_every_failpoint_is_armed_by_the_kill_tests() -> None:
    assert test_failpoints.NTH.keys() == failpoints.NAMES - test_failpoints.ELSEWHERE.keys()
    for name, path in test_failpoints.ELSEWHERE.items():
        step = name.split(".", 1)[1]
        assert step in (ROOT / path).read_text(), f"{name} is not armed in {path}"
    assert all(nth >= 1 for nth in test_failpoints.NTH.values())


def test_the_matrix_strikes_every_point_of_a_stack_under_traffic() -> None:
    """What is left to others: steps of an operation and of roles that a stack has only when asked for."""
    asked_for = ("shard.", "webhook.", "notification.")
    others = {name for name in failpoints.NAMES if name.startswith(asked_for)}
    assert strikes.POINTS.keys() == failpoints.NAMES - others
    assert all(one.before in {"", *failpoints.NAMES} for one in strikes.POINTS.values())


def test_the_stack_of_the_kill_tests_has_large_records() -> None:
    """The points of the chunked write path need a record with more members than a store call takes."""
    source = (ROOT / "tests/chaos/test_failpoints.py").read_text()
    match = re.search(r'"QIM_MAILBOX_WRITEBATCH_MAX_ENTRIES": "(\d+)"', source)
    assert match is not None
    assert int(match[1]) < 8
