"""Figures of the system-level tests, and the page that is made from them.

A test takes the fixture `figures` and records what it measured. ``--figures PAGE`` writes all figures of
the session as a page in Markdown; without it they are printed with the failure of a test only.

``python -m pytest tests -m slow --figures tests/report.md`` makes the page that is kept.
"""

import os
import platform
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_TRIED = (
    "loss of a majority of broker or store replicas",
    "corruption of a disk under a store",
    "a real power cut (kills leave what the kernel already took)",
    "more than one machine",
)
_ROWS = pytest.StashKey[list[dict[str, Any]]]()
_FIGURES = pytest.StashKey[dict[str, Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--figures``."""
    parser.addoption("--figures", metavar="PAGE", help="write the figures of this run to a page")


def pytest_configure(config: pytest.Config) -> None:
    """An empty table."""
    config.stash[_ROWS] = []


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a test measured: name -> value."""
    found: dict[str, Any] = {}
    request.node.stash[_FIGURES] = found
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Keep the figures and the outcome of each test that has some."""
    report: pytest.TestReport = yield  # type: ignore[assignment,misc]
    found = item.stash.get(_FIGURES, None)
    if report.when == "call" and found is not None:
        item.config.stash[_ROWS].append(
            {
                "test": item.nodeid.removeprefix("tests/"),
                "outcome": report.outcome,
                "seconds": round(call.duration, 1),
                "figures": found,
            }
        )
        _write(item.config)
    return report  # type: ignore[return-value]


def _write(config: pytest.Config) -> None:
    """Write the page as far as it is known: a long run may be cut short."""
    page = config.getoption("figures")
    if page:
        Path(page).write_text(page_of(config.stash[_ROWS], facts()), encoding="utf-8")


def facts() -> dict[str, str]:
    """When, what and where."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    kernel = ".".join(platform.release().split(".")[:2])
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": commit.stdout.strip() or "unknown",
        "machine": f"{os.cpu_count()} cores, {pages * size / 2**30:.0f} GiB, {platform.machine()}, "
        f"{platform.system()} {kernel}, Python {platform.python_version()}",
    }


def page_of(rows: list[dict[str, Any]], known: dict[str, str]) -> str:
    """The page: what was run where, a table of outcomes, the figures, what was not tried."""
    lines = ["# Report of the system-level tests", "", "Generated; do not edit.", ""]
    lines += [f"* {name}: {value}" for name, value in known.items()]
    lines += ["", "| test | outcome | seconds |", "|---|---|---|"]
    lines += [f"| `{row['test']}` | {row['outcome']} | {row['seconds']} |" for row in rows]
    lines += ["", *_totals(rows), "## Figures", ""]
    for row in rows:
        lines += [f"### `{row['test']}`", "", "| figure | value |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in row["figures"].items()]
        lines.append("")
    lines += ["## Not tried", "", *(f"* {text}" for text in NOT_TRIED)]
    return "\n".join(lines) + "\n"


def _totals(rows: list[dict[str, Any]]) -> list[str]:
    acked = sum(row["figures"].get("acked", 0) for row in rows)
    lost = sum(row["figures"].get("problems", 0) for row in rows)
    bound = f"{3 / acked:.1e}" if acked and not lost else "-"
    return [
        f"Acknowledged messages over all tests: {acked}; violations of any promise: {lost}; with none, the "
        f"95 % upper bound of a loss is {bound} (3/N).",
        "",
    ]
