"""The benchmarks of `tests.perf`, each body once, and the small machinery around them.

No time is measured against anything: what is held here is that every benchmark still runs, gives a right
answer, and would notice a wrong one.
"""

import itertools
import json
import time
from functools import partial
from pathlib import Path

import pytest

from tests.perf import figures, measure, registry, run, samples
from tests.perf.measure import Timing
from tests.perf.registry import Case, WrongAnswerError, always

NAMES = list(registry.load())


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_is_right(name: str) -> None:
    case = registry.BENCHMARKS[name]()
    case.prove(name)
    case.prove(name)  # may be called again


@pytest.mark.parametrize("name", NAMES)
def test_it_notices_a_wrong_answer(name: str) -> None:
    """A check that is content with anything would measure a broken function."""
    check = registry.BENCHMARKS[name]().check
    wrong_answers: list[object] = [None, b"", [], 0]
    for wrong in wrong_answers:
        with pytest.raises(WrongAnswerError, match=name):
            Case(partial(_same, wrong), check).prove(name)


def _same(answer: object) -> object:
    return answer


def test_every_hot_stage_has_some() -> None:
    assert {name.split(".")[0] for name in NAMES} >= {"wire", "records", "ids", "fanout", "mailbox", "sync"}
    assert sorted(NAMES) == NAMES


def test_a_name_is_taken_once() -> None:
    with pytest.raises(ValueError, match="two benchmarks"):
        registry.benchmark(NAMES[0])(lambda: Case(lambda: 1, always(1)))


def test_a_wrong_answer_is_named_and_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(registry.BENCHMARKS, NAMES[0], lambda: Case(lambda: 2, always(1)))
    with pytest.raises(WrongAnswerError, match=NAMES[0]):
        registry.prepared([NAMES[0]])
    assert run.main(["--only", NAMES[0]]) == 1
    captured = capsys.readouterr()
    assert NAMES[0] in captured.err
    assert not captured.out


def test_repeats_are_counted_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock of our own: 3 µs per call, 12 µs in the first round."""
    calls, spent = itertools.count(1), 0

    def body() -> int:
        nonlocal spent
        spent += 3_000
        return next(calls)

    monkeypatch.setattr(time, "thread_time_ns", lambda: spent)
    timings = measure.measure({"x": Case(body, lambda _: True)}, rounds=3, round_ns=30_000)
    assert timings == {"x": Timing(3.0, 3.0, 10, 3)}
    assert next(calls) == 1 + 1 + 2 + 4 + 30  # warming up by doubling to a quarter of a round, then 3 x 10


def test_figures_come_back_and_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--json`` now is ``--against`` later; a new benchmark has nothing to be compared with."""
    kept = tmp_path / "figures.json"
    assert run.main(["--only", "ids.event_id", "--rounds", "1", "--json", str(kept)]) == 0
    assert figures.load(kept).keys() == {"ids.event_id"}
    assert json.loads(kept.read_text())["unit"] == figures.UNIT
    capsys.readouterr()
    assert run.main(["--only", "ids.event_id", "--only", "hlc", "--rounds", "1", "--against", str(kept)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("now/before")
    assert lines[1].startswith("ids.event_id")
    assert lines[1].endswith("x")
    assert lines[2].startswith("ids.hlc_next")
    assert lines[2].endswith("new")


def test_ratios_are_of_the_best_rounds() -> None:
    assert figures.ratio(Timing(9.0, 1.0, 1, 1), Timing(1.0, 2.0, 1, 1)) == 0.5
    assert figures.ratio(Timing(1.0, 1.0, 1, 1), Timing(0.0, 0.0, 1, 1)) == float("inf")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 9}', '{"format": 1, "benchmarks": {"a": {}}}'])
def test_other_files_are_refused(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the file; nothing is measured first."""
    other = tmp_path / "other.json"
    other.write_text(text)
    with pytest.raises(SystemExit) as ended:
        run.main(["--against", str(other)])
    assert ended.value.code == 2
    assert str(other) in capsys.readouterr().err


def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--only", "nothing"], ["--rounds", "0"], ["--against", str(tmp_path / "missing")]):
        with pytest.raises(SystemExit) as ended:
            run.main(wrong)
        assert ended.value.code == 2
    assert "wire.*" in capsys.readouterr().err


def test_inputs_that_never_repeat() -> None:
    make = samples.never_repeated(b"<017>", b"017")
    assert [make(), make()] == [b"<001>", b"<002>"]
    with pytest.raises(ValueError, match="not in the template"):
        samples.never_repeated(b"<>", b"017")
