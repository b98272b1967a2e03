"""The page of figures is made from rows and facts alone."""

from pathlib import Path

import pytest

from tests.support.report import PROPERTY, Run, page_of, read_so_far
from tests.support.verdict import seconds_with_an_ack


def test_the_page_names_everything() -> None:
    rows = [
        {
            "test": "chaos/a.py::t",
            "outcome": "passed",
            "seconds": 3.0,
            "figures": {"acked": 300, "problems": 0},
        },
        {"test": "chaos/b.py::u", "outcome": "failed", "seconds": 4.0, "figures": {"kills": 2}},
    ]
    suites = {"chaos": {"tests": 2, "failed": 1, "seconds": 7.4}}
    page = page_of(Run(rows, suites), {"date": "today", "commit": "abc"})
    assert "* commit: abc" in page
    assert "| `chaos/b.py::u` | failed | 4.0 |" in page
    assert "| kills | 2 |" in page
    assert "| chaos | 2 | 1 | 7 |" in page
    assert "Acknowledged messages over all tests: 300" in page
    assert "1.0e-02 (3/N)" in page
    assert "## Not tried" in page


def test_no_bound_without_a_clean_run() -> None:
    rows = [{"test": "a", "outcome": "failed", "seconds": 1.0, "figures": {"acked": 300, "problems": 1}}]
    assert "a loss is - (3/N)" in page_of(Run(rows), {})


def test_availability_counts_whole_seconds() -> None:
    assert seconds_with_an_ack([]) == 0.0
    assert seconds_with_an_ack([10.1, 10.9, 11.5, 13.2]) == 75.0


def phase(test: str, when: str, outcome: str, seconds: float, **properties: object) -> pytest.TestReport:
    """A report as pytest makes it for one phase of a test."""
    return pytest.TestReport(
        nodeid=test, location=("", 0, ""), keywords={}, outcome=outcome, longrepr=None, when=when,  # type: ignore[arg-type]
        duration=seconds, user_properties=list(properties.items()),
    )  # fmt: skip


def test_reports_are_counted_by_suite_with_their_servers() -> None:
    run = Run()
    run.add(phase("tests/unit/test_a.py::one", "setup", "passed", 0.5))
    run.add(phase("tests/unit/test_a.py::one", "call", "passed", 1.0))
    run.add(phase("tests/unit/test_a.py::one", "teardown", "passed", 0.25))
    run.add(phase("tests/unit/test_a.py::two", "setup", "skipped", 0.0))
    run.add(phase("tests/chaos/test_b.py::three", "setup", "failed", 2.0))
    run.add(phase("tests/chaos/test_b.py::four", "call", "failed", 3.04, **{PROPERTY: {"kills": 2}}))
    assert run.suites == {
        "unit": {"tests": 2, "failed": 0, "seconds": 1.75},
        "chaos": {"tests": 1, "failed": 2, "seconds": 5.04},
    }
    assert run.rows == [
        {"test": "chaos/test_b.py::four", "outcome": "failed", "seconds": 3.0, "figures": {"kills": 2}}
    ]


def test_a_run_without_an_earlier_stage_is_empty(tmp_path: Path) -> None:
    found = read_so_far(tmp_path / "none.json")
    assert (found.rows, found.suites) == ([], {})
