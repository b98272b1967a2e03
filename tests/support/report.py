"""Figures of the system-level tests, seconds of all suites, and the page that is made from them.

A test takes the fixture `figures` and records what it measured. ``--figures PAGE`` writes all figures of
the session as a page in Markdown; without it they are printed with the failure of a test only.
``--figures-so-far FILE`` joins sessions that are stages of one run: what earlier ones found is read from
the file, all of it is written there again. Tests may run in several processes: figures travel with the
reports of the tests, and the process that collects the reports writes.

``make test ARGS="--figures tests/report.md"`` makes the page that is kept, ``make chaos`` with the same
option its section on the kill matrix.
"""

import json
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.matrix_table import put_section, section_of

ROOT = Path(__file__).resolve().parents[2]
NOT_TRIED = (
    "loss of a majority of broker or store replicas",
    "corruption of a disk under a store",
    "a real power cut (kills leave what the kernel already took)",
    "more than one machine",
)
PROPERTY = "figures"
_FIGURES = pytest.StashKey[dict[str, Any]]()


@dataclass(slots=True)
class Run:
    """What a run found so far: a row per test with figures; tests, failures and seconds of each suite.

    The seconds of a suite are those of its tests, servers that they start included; suites that run side
    by side take less of a clock.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    suites: dict[str, dict[str, Any]] = field(default_factory=dict)
    began_s: float = field(default_factory=time.time)  # since 1970

    def add(self, report: pytest.TestReport) -> None:
        """Count one phase of a test."""
        test = report.nodeid.removeprefix("tests/")
        suite = self.suites.setdefault(test.split("/", 1)[0], {"tests": 0, "failed": 0, "seconds": 0.0})
        suite["tests"] += report.when == "call" or (report.when == "setup" and report.skipped)
        suite["failed"] += report.failed
        suite["seconds"] = round(suite["seconds"] + report.duration, 3)
        found = dict(report.user_properties).get(PROPERTY)
        if report.when == "call" and isinstance(found, dict):
            row = {"test": test, "outcome": report.outcome, "seconds": round(report.duration, 1)}
            self.rows.append(row | {"figures": found})


_RUN = pytest.StashKey[Run]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--figures`` and ``--figures-so-far``."""
    parser.addoption("--figures", metavar="PAGE", help="write the figures of this run to a page")
    parser.addoption("--figures-so-far", metavar="FILE", help="add to what earlier stages found")


def pytest_configure(config: pytest.Config) -> None:
    """What earlier stages found, else nothing."""
    so_far = config.getoption("figures_so_far")
    config.stash[_RUN] = read_so_far(Path(so_far)) if so_far else Run()


def read_so_far(path: Path) -> Run:
    """What the stages of a run wrote; an empty run when there is no such file."""
    return Run(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else Run()


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a test measured: name -> value."""
    found: dict[str, Any] = {}
    request.node.stash[_FIGURES] = found
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Let the figures of a test travel with its report."""
    report: pytest.TestReport = yield  # type: ignore[assignment,misc]
    found = item.stash.get(_FIGURES, None)
    if report.when == "call" and found is not None:
        report.user_properties.append((PROPERTY, found))
    return report  # type: ignore[return-value]


class Collector:
    """Keeps what the reports say, and writes it: a long run may be cut short."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count it; write when there is something new to read."""
        run = self._config.stash[_RUN]
        rows = len(run.rows)
        run.add(report)
        if len(run.rows) > rows:
            self._write()

    def pytest_sessionfinish(self) -> None:
        """Write the seconds of all suites."""
        self._write()

    def _write(self) -> None:
        run, config = self._config.stash[_RUN], self._config
        if page := config.getoption("figures"):
            write_page(Path(page), page_of(run, facts(run.began_s)))
        if so_far := config.getoption("figures_so_far"):
            Path(so_far).write_text(json.dumps(asdict(run), default=str), encoding="utf-8")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Collect in the process that gets all reports."""
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(Collector(session.config), "collector of figures")


def write_page(path: Path, page: str) -> None:
    """Replace a page; the kill matrix, which is a run of its own, stays in it."""
    matrix = section_of(path.read_text(encoding="utf-8")) if path.exists() else ""
    path.write_text(put_section(page, matrix) if matrix else page, encoding="utf-8")


def facts(began_s: float) -> dict[str, str]:
    """When, for how long, what and where."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    kernel = ".".join(platform.release().split(".")[:2])
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "took": f"{time.time() - began_s:.0f} s by the clock, all stages",
        "commit": commit.stdout.strip() or "unknown",
        "machine": f"{os.cpu_count()} cores, {pages * size / 2**30:.0f} GiB, {platform.machine()}, "
        f"{platform.system()} {kernel}, Python {platform.python_version()}",
    }


def page_of(run: Run, known: dict[str, str]) -> str:
    """The page: what was run where, seconds of the suites, outcomes, figures, what was not tried."""
    lines = ["# Report of the tests", "", "Generated; do not edit.", ""]
    lines += [f"* {name}: {value}" for name, value in known.items()]
    lines += ["", "## Suites", "", "| suite | tests | failed | seconds |", "|---|---|---|---|"]
    for name, suite in run.suites.items():
        lines.append(f"| {name} | {suite['tests']} | {suite['failed']} | {suite['seconds']:.0f} |")
    lines += ["", "## System-level tests", "", "| test | outcome | seconds |", "|---|---|---|"]
    lines += [f"| `{row['test']}` | {row['outcome']} | {row['seconds']} |" for row in run.rows]
    lines += ["", *_totals(run.rows), "## Figures", ""]
    for row in run.rows:
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
