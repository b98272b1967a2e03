"""The measurement programs of ``tests/perf`` on real servers, as small as they go: they must not rot.

No figure is held against anything; the programs themselves fail when something is lost, doubled or stuck.
What `make bench` runs is tried every day, the others in the long suites.
"""

import json
from pathlib import Path

import pytest

from tests.perf import backlog, commit_cost, login_barrier, memory, pull_rate, rebuild_time, reconnect_storm

pytestmark = pytest.mark.integration


def test_a_backlog_through_ours_and_the_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = tmp_path / "told.json"
    argv = ["--messages", "3000", "--baseline", "1000", "--users", "100", "--quick", "--json", str(told)]
    assert backlog.main(argv) == 0, capsys.readouterr().err
    figures = json.loads(told.read_text())
    assert [row["messages"] for row in figures["drains"]] == [3_000, 1_000]
    assert figures["ratio"] > 0
    assert "the stock style takes" in capsys.readouterr().out


@pytest.mark.slow
def test_a_backlog_of_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Groups of more members than travel inside a record, so that bitmaps are read."""
    argv = ["--messages", "1000", "--workload", "group:40", "--users", "100", "--apart", "--quick"]
    assert backlog.main(argv) == 0, capsys.readouterr().err
    assert "ours: mailbox" in capsys.readouterr().out


@pytest.mark.slow
def test_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = tmp_path / "told.json"
    argv = ["--messages", "10000", "--users", "100", "--quick", "--json", str(told)]
    # Fewer entries weigh less than the buffers of connections that came and went.
    assert memory.main(argv) == 0, capsys.readouterr().err
    weights = json.loads(told.read_text())["redis_bytes"]
    assert weights["message"] > 128  # the body alone
    assert weights["entry"] > 16


@pytest.mark.slow
def test_commit_cost(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    assert commit_cost.main(["--messages", "1000", "--members", "10,100", "--json", str(told)]) == 0
    assert [row["name"] for row in json.loads(told.read_text())["members"]] == ["group of 10", "group of 100"]


@pytest.mark.slow
def test_pull_rate(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    argv = ["--users", "5", "--entries", "130", "--batch", "40", "--json", str(told)]
    assert pull_rate.main(argv) == 0
    assert all(row["per_core_s"] > 0 for row in json.loads(told.read_text())["rates"])


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_login_barrier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A4, A14: devices sign on again and again beside direct chats; every session is exact."""
    told = tmp_path / "told.json"
    argv = ["--rate", "100", "--connections", "20", "--devices", "4", "--seconds", "5", "--quick"]
    assert login_barrier.main([*argv, "--json", str(told)]) == 0, capsys.readouterr().err
    figures = json.loads(told.read_text())
    assert figures["sign_ons"] > 4
    assert figures["pulled"] + figures["pushed"] > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_reconnect_storm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """I10: 1,000 clients come back at once; every entry once, in order, and the others lose nothing."""
    told = tmp_path / "told.json"
    argv = ["--clients", "1000", "--entries", "10", "--rounds", "2", "--rate", "50", "--connections", "20"]
    argv += ["--before", "2", "--limit", "60", "--after", "1", "--quick", "--json", str(told)]
    assert reconnect_storm.main(argv) == 0, capsys.readouterr().err
    figures = json.loads(told.read_text())
    assert (figures["ready"], figures["entries"], figures["missing"]) == (1_000, 10_000, 0)
    assert figures["others"][1]["messages"] > 0


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_rebuild_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A10: 60 conversations, two new messages each: the list once, a page of history for each."""
    told = tmp_path / "told.json"
    argv = ["--conversations", "60", "--new", "2", "--quick", "--json", str(told)]
    assert rebuild_time.main(argv) == 0, capsys.readouterr().err
    figures = json.loads(told.read_text())
    assert figures["entries"] == 120
    assert figures["requests"]["PullHistory"] >= 60
