"""The report: what is divided by what, what is left out, and what a reader is told."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from qim_streams.loadgen.histogram import Histogram
from qim_streams.loadgen.options import BenchOptions, default_processes
from qim_streams.loadgen.outcome import Outcome, cpu_us, document, lines, rss_mb, series
from qim_streams.loadgen.plot import draw
from qim_streams.loadgen.procfs import Usage, environment
from qim_streams.loadgen.progress import Progress
from qim_streams.loadgen.surroundings import SHOWN_SETTINGS, stack_settings, surroundings
from qim_streams.loadgen.verdict import Missing, Verdict


def histogram(*values_us: int) -> Histogram:
    """A histogram of some values."""
    one = Histogram()
    for value in values_us:
        one.add(value)
    return one


def outcome(**changed: object) -> Outcome:
    """A clean run of two seconds with 100 messages."""
    verdict = Verdict(sent=120, acked=120, delivered_expected=120, delivered=120)
    made = Outcome(
        BenchOptions(rate=50, duration_s=2),
        verdict,
        ack={0: histogram(1_000, 2_000), 1: histogram(3_000)},
        e2e={0: histogram(5_000), 1: histogram(90_000)},
        sent=100,
        acked_at={0: 60, 1: 40},
        delivered_at={0: 10, 1: 80},
        generator_cpu_s=[0.01, 0.02],
        role_cpu_s={"mailbox": 0.02, "mailbox-1": 0.03, "writer": 0.01, "kafka": 0.04, "redis": 0.005},
        rss_after={"mailbox": 10_000_000, "mailbox-1": 20_000_000},
    )
    for name, value in changed.items():
        setattr(made, name, value)
    return made


def test_cpu_is_per_acknowledged_message_and_roles_are_summed() -> None:
    assert cpu_us(outcome()) == {
        "generator": 300, "mailbox": 500, "writer": 100, "broker": 400, "redis": 50,
        "ours": 600, "all": 1_050,
    }  # fmt: skip


def test_roles_that_did_not_run_are_left_out() -> None:
    assert "qsession" not in cpu_us(outcome())
    assert cpu_us(outcome(role_cpu_s={})) == {"generator": 300}
    assert rss_mb(outcome().rss_after) == {"mailbox": 30}


def test_the_document_has_the_agreed_fields_and_is_json() -> None:
    whole = document(outcome(), {"settings": {}, "versions": {}, "machine": {}})
    agreed = (
        "workload offered_per_s duration_s connections users sent acked refused unknown delivered_expected "
        "delivered lost duplicated_raw duplicated_visible reordered achieved_per_s ack_ms e2e_ms "
        "mailboxed_ms cpu_us_per_message rss_mb faults verdict settings versions machine"
    )
    assert set(agreed.split()) <= set(whole)
    assert json.loads(json.dumps(whole)) == whole
    assert whole["verdict"] == "clean"
    assert (whole["offered_per_s"], whole["achieved_per_s"], whole["delivered_per_s"]) == (50, 50, 45)
    assert whole["ack_ms"]["max"] == 3
    assert whole["mailboxed_ms"] is None


def test_a_run_that_stopped_early_or_lost_something_is_not_clean() -> None:
    assert not outcome(stopped_early=True).clean
    made = outcome()
    made.verdict.missing.append(Missing(3, 1, 2, 77))
    shown = "\n".join(lines(made))
    assert document(made, {})["verdict"] == "not clean"
    assert document(made, {})["delivered"] == 118
    assert "NOT CLEAN" in shown
    assert "user 3 lacks 2 of conversation 1, first 77" in shown


def test_a_reader_is_told_when_the_generator_was_the_bottleneck() -> None:
    assert not any("NOTE" in line for line in lines(outcome()))
    assert any("late" in line for line in lines(outcome(late=histogram(*[50_000] * 100))) if "NOTE" in line)
    assert any("--processes" in line for line in lines(outcome(generator_cpu_s=[1.9])))


def test_the_series_has_every_second_also_a_silent_one() -> None:
    made = outcome(e2e={1: histogram(90_000)}, delivered_at={1: 7})
    assert [row["delivered"] for row in series(made)] == [0, 7]
    assert [row["acked"] for row in series(made)] == [60, 40]
    assert [row["e2e_max_ms"] for row in series(made)] == [0, 90]


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures stay unproven without it")
    path = tmp_path / "plot.png"
    said = draw(outcome(faults=[{"role": "writer", "at_s": 1.0}]), path)
    assert str(path) in said
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_reader_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "not installed" in draw(outcome(), tmp_path / "plot.png")


def test_a_line_per_second_when_every_process_has_spoken() -> None:
    said: list[str] = []
    progress = Progress(BenchOptions(processes=2), said.append)

    def heard(process: int, second: int, acked: int) -> None:
        progress.heard(
            process,
            {"second": second, "sent": acked, "acked": acked, "refused": 0, "delivered": acked, "waiting": 0,
             "ack": histogram(4_000), "e2e": None},
        )  # fmt: skip

    heard(0, 1, 10)
    assert not said
    heard(1, 1, 20)
    heard(0, 2, 15)
    heard(0, 3, 16)
    heard(1, 3, 26)
    assert len(said) == 2
    assert "sent 30" in said[0]
    assert "acked/s 12 " in said[1]
    assert re.search(r"ack P99 4 ms  e2e P99 -", said[1])


def test_the_cpu_of_a_process_tree_is_read_and_kept_after_its_end() -> None:
    code = "import subprocess,sys;subprocess.run([sys.executable,'-c','while True: pass'])"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        usage = Usage()
        usage.read({"role": process.pid})
        deadline = time.monotonic() + 20
        while usage.cpu_s()["role"] < 0.1 and time.monotonic() < deadline:
            time.sleep(0.05)
            usage.read({"role": process.pid})
        used = usage.cpu_s()["role"]
        assert used >= 0.1
        assert usage.rss["role"] > 1_000_000
    finally:
        os.killpg(process.pid, 9)
        process.wait()
    usage.read({"role": process.pid})
    assert usage.cpu_s()["role"] >= used
    assert usage.rss["role"] == 0


def test_the_settings_are_those_of_the_stack_and_no_secret_is_among_them(tmp_path: Path) -> None:
    assert set(stack_settings(tmp_path)) == set(SHOWN_SETTINGS)
    assert not [name for name in SHOWN_SETTINGS if "secret" in name or "key" in name or "url" in name]
    shown = surroundings(None)
    assert json.loads(json.dumps(shown)) == shown
    assert shown["machine"]["cores"]
    assert environment(os.getpid(), ["NO_SUCH_VARIABLE"]) == {}
    assert environment(2**30, ["PATH"]) == {}


@pytest.mark.parametrize(("cores", "processes"), [(1, 1), (2, 1), (8, 2), (256, 8)])
def test_processes_follow_the_cores(cores: int, processes: int) -> None:
    assert default_processes(cores) == processes
