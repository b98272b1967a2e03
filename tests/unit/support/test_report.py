"""The page of figures is made from rows and facts alone."""

from tests.support.report import page_of
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
    page = page_of(rows, {"date": "today", "commit": "abc"})
    assert "* commit: abc" in page
    assert "| `chaos/b.py::u` | failed | 4.0 |" in page
    assert "| kills | 2 |" in page
    assert "Acknowledged messages over all tests: 300" in page
    assert "1.0e-02 (3/N)" in page
    assert "## Not tried" in page


def test_no_bound_without_a_clean_run() -> None:
    rows = [{"test": "a", "outcome": "failed", "seconds": 1.0, "figures": {"acked": 300, "problems": 1}}]
    assert "a loss is - (3/N)" in page_of(rows, {})


def test_availability_counts_whole_seconds() -> None:
    assert seconds_with_an_ack([]) == 0.0
    assert seconds_with_an_ack([10.1, 10.9, 11.5, 13.2]) == 75.0
