"""Histories: what is written is read back, calls are joined, damage is named."""

from itertools import count
from pathlib import Path

import pytest

from qim_streams.errors import ConfigError
from qim_streams.testing.history import HistoryWriter, marks, operations, read_history


def writer(path: Path) -> HistoryWriter:
    ticks = count(10, 10)
    return HistoryWriter(path, lambda: next(ticks))


def test_calls_are_joined_with_their_completions(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    log = writer(path)
    first = log.invoke("ann", "send", {"key": "a"})
    second = log.invoke("ann", "send", {"key": "b"})
    log.mark("injecting", {"fault": "cut"})
    log.complete(second, "ann", "send", "ok", {"seq": 1})
    log.invoke("bob", "send", {"key": "c"})
    log.complete(first, "ann", "send", "fail", error="NOT_MEMBER")
    log.close()
    lines = list(read_history(path))
    done = operations(lines)
    assert [(one.process, one.value["key"], one.phase) for one in done] == [
        ("ann", "a", "fail"),
        ("ann", "b", "ok"),
        ("bob", "c", "info"),  # never completed: unknown
    ]
    assert (done[0].error, done[1].result, done[2].end_ns) == ("NOT_MEMBER", {"seq": 1}, None)
    assert done[1].start_ns < (done[1].end_ns or 0)
    assert marks(lines) == [("injecting", 30, {"fault": "cut"})]


def test_a_torn_last_line_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    log = writer(path)
    log.invoke("ann", "send", 1)
    log.close()
    whole = path.read_text()
    path.write_text(whole + whole[: len(whole) // 2])
    assert len(list(read_history(path))) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}\n", "line 1: not a history line"),
        ("nonsense\n", "line 1: not a history line"),
        ("[1]\n", "line 1: not a history line"),
        (
            '{"time_ns":1,"process":"a","op":"x","phase":"maybe","value":1,"error":null,"call":1}\n',
            "phase 'maybe'",
        ),
    ],
)
def test_damage_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        list(read_history(path))


def test_a_completion_needs_an_open_call(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    log = writer(path)
    call = log.invoke("ann", "send", 1)
    log.complete(call, "ann", "send", "ok")
    log.complete(call, "ann", "send", "ok")
    log.close()
    with pytest.raises(ConfigError, match="without an open invocation"):
        operations(read_history(path))


def test_unknown_phases_and_marks_are_refused(tmp_path: Path) -> None:
    log = writer(tmp_path / "history.jsonl")
    with pytest.raises(ValueError, match="phase"):
        log.complete(1, "ann", "send", "invoke")
    with pytest.raises(ValueError, match="mark"):
        log.mark("lunch")
    log.close()
