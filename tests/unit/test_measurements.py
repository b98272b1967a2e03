"""The arithmetic and the options of the measurement programs in ``tests/perf``; nothing is started here."""

import argparse
import json
from pathlib import Path

import pytest

from tests.perf import backlog, commit_cost, growth, memory, reporting, short, soak
from tests.perf.draining import Drain, Sample
from tests.perf.filling import Tally, Workload, chats_of
from tests.perf.growth import Shape

STAGE = "mailbox"


def a_drain() -> Drain:
    """1,000 units: nothing for 2 s, then 100 a second; the worker spends 0.4 s a second while it works."""
    samples = [
        Sample(float(at), {STAGE: max(0, at - 2) * 100}, {"m": max(0, at - 2) * 0.4}) for at in range(13)
    ]
    return Drain({STAGE: 1_000}, 0.0, samples)


def test_a_drain_is_measured_between_a_tenth_and_nine_tenths() -> None:
    drain = a_drain()
    assert drain.moment(STAGE, 0.25).at_s == pytest.approx(4.5)
    assert drain.moment(STAGE, 0.25).cpu == {"m": pytest.approx(1.0)}
    assert drain.per_s(STAGE) == pytest.approx(100)
    assert drain.cpu_us(STAGE, ["m"]) == pytest.approx(4_000)
    assert drain.began_after_s(STAGE) == 3
    assert drain.over_after_s == 12


def test_start_up_is_not_in_the_figures() -> None:
    """Ten seconds of CPU before the first record change nothing."""
    drain = a_drain()
    drain.samples = [one._replace(cpu={"m": one.cpu["m"] + 10}) for one in drain.samples]
    assert drain.cpu_us(STAGE, ["m"]) == pytest.approx(4_000)


def test_tallies_add_up() -> None:
    assert Tally(1, 2, 3, 4, 5) + Tally(10, 20, 30, 40, 50) == Tally(11, 22, 33, 44, 55)


def test_the_ratio_is_of_cpu_per_message_over_all_stages() -> None:
    rows = [
        {"stages": "ours: fanout", "cpu_us": {"stages": 20.0}},
        {"stages": "ours: mailbox", "cpu_us": {"stages": 30.0}},
        {"stages": "baseline: fanout + mailbox", "cpu_us": {"stages": 500.0}},
    ]
    assert backlog.ratio_of(rows) == 10
    assert backlog.ratio_of(rows[:2]) is None


def test_workloads_and_settings_of_the_command_line() -> None:
    assert backlog.workload_of("direct") == 0
    assert backlog.workload_of("group:100") == 100
    assert backlog.setting_of("stream_batch_max=5") == ("stream_batch_max", "5")
    for wrong in ("group", "group:2", "group:x", "direct:3", "mixed"):
        with pytest.raises(ValueError, match=wrong):
            backlog.workload_of(wrong)
    for wrong in ("stream_batch_max", "nothing=5"):
        with pytest.raises(ValueError, match=wrong):
            backlog.setting_of(wrong)


@pytest.mark.parametrize(
    "argv",
    [["--messages", "10"], ["--baseline", "60000"], ["--workload", "group:50", "--baseline", "1000"],
     ["--users", "5"], ["--workload", "group:2000"]],
)  # fmt: skip
def test_a_backlog_refuses_what_it_cannot_measure(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        backlog.parse(argv)
    assert ended.value.code == 2


def test_the_baseline_gets_a_tenth() -> None:
    assert backlog.parse(["--messages", "100000"]).baseline == 10_000
    assert backlog.parse(["--messages", "900000"]).baseline == 20_000
    assert backlog.parse(["--workload", "group:100"]).baseline == 0


def test_shapes_come_once_and_the_first_again() -> None:
    assert growth.shapes([1, 2], [4, 16]) == [Shape(1, 16), Shape(2, 16), Shape(1, 4), Shape(1, 16)]


def test_conversations_of_a_workload() -> None:
    assert chats_of(Workload(1, 1_000, 0, 1, 1)) == 5_000
    assert chats_of(Workload(1, 1_000, 100, 1, 1)) == 100
    assert chats_of(Workload(1, 10, 0, 1, 1)) == 50


def test_growth_is_the_slope_of_the_second_half() -> None:
    """Filling at first, then 2 MB a minute; an earlier process does not count."""
    old = [soak.Reading(float(at), 1, 500.0) for at in range(0, 60, 5)]
    new = [soak.Reading(60.0 + at, 2, 100.0 + at) for at in range(0, 60, 5)]
    new += [soak.Reading(120.0 + at, 2, 160.0 + at / 30) for at in range(0, 60, 5)]
    row = soak._row(old + new)
    assert row["mb_per_hour"] == pytest.approx(120)
    assert (row["processes"], row["most"], row["first"]) == (2, 500.0, 500.0)
    assert soak._row(new[:4])["mb_per_hour"] is None


def test_sizes_of_groups() -> None:
    assert commit_cost.sizes_of("10,1000") == [10, 1_000]
    with pytest.raises(ValueError, match="1"):
        commit_cost.sizes_of("1")


@pytest.mark.parametrize("argv", [["--minutes", "0"], ["--messages", "1"], ["--users", "2"]])
def test_memory_refuses(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        memory.parse(argv)
    assert argv[0] in capsys.readouterr().err


RESULTS = {
    "micro": {},
    "bench": {
        "achieved_per_s": 1_000.0, "ack_ms": {"p50": 5.0, "p99": 20.0}, "e2e_ms": {"p50": 9.0, "p99": 400.0},
        "cpu_us_per_message": {"ours": 300.0, "all": 500.0},
    },
    "backlog": {
        "drains": [{"per_s": 9.0, "cpu_us": {"stages": 40.0}}, {"per_s": 1.0, "cpu_us": {"stages": 400.0}}],
        "ratio": 10.0,
    },
}  # fmt: skip


def test_the_short_form_holds_figures_against_goals_and_against_before() -> None:
    found = short.figures(RESULTS)
    assert {one.name: one.met for one in found if one.goal is not None} == {
        "whole path: SEND_ACK P99": True,
        "whole path: end to end P99": False,
        "backlog: stock / ours, CPU": True,
    }
    text = short.report(found, short.figures({**RESULTS, "backlog": None}))
    assert "MISSED" in text
    assert "1.00x" in text
    assert text.splitlines()[-1].endswith("new")


def test_the_short_form_refuses_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    with pytest.raises(SystemExit) as ended:
        short.parse(["--against", str(other)])
    assert ended.value.code == 2
    assert str(other) in capsys.readouterr().err
    other.write_text(json.dumps(RESULTS))
    assert isinstance(short.parse(["--against", str(other)]), argparse.Namespace)


def test_tables_line_up() -> None:
    text = reporting.table(["what", "n", "x"], [["a", 12_345, 1.234], ["bcdef", None, 12_345.6]])
    assert text.splitlines() == ["what        n       x", "a      12,345    1.23", "bcdef       -  12,346"]
