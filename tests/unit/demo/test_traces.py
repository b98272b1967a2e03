"""Room traces: reading, its errors, steps and expected mailboxes; the two real rooms."""

from pathlib import Path

import pytest

from qim_streams.demo.traces import Trace, body_of, expected_mailboxes, read_trace, steps
from qim_streams.errors import ConfigError

DATA = Path(__file__).parents[2] / "data"
HEADER = "at_ms,kind,user,target_row,body_bytes\n"


def trace_of(tmp_path: Path, *rows: str) -> Trace:
    path = tmp_path / "room.csv"
    path.write_text(HEADER + "".join(row + "\n" for row in rows))
    return read_trace(path)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (["1,join,0,,0", "x,join,1,,0"], r"row 1 \(line 3\), column at_ms: 'x'"),
        (["5,join,0,,0", "4,join,1,,0"], r"row 1 .*column at_ms: 4 is before"),
        (["1,shout,0,,0"], r"row 0 .*column kind: 'shout' is not one of"),
        (["1,join,-1,,0"], r"column user: '-1'"),
        (["1,join,٣,,0"], r"column user"),
        (["1,message,0,,1e3"], r"column body_bytes: '1e3'"),
        (["1,message,0,,99999999"], r"column body_bytes"),
        (["1,message,0,7,3"], r"column target_row: must be empty for message"),
        (["1,reply,0,0,3"], r"column target_row: row 0 is not an earlier"),
        (["1,join,0,,0", "2,edit,0,0,3"], r"row 1 .*column target_row: row 0 is not an earlier"),
        (["1,join,0,,0", "2,recall,0,,0"], r"column target_row: ''"),
        (["1,join,0"], r"row 0 .*: 3 columns, expected 5"),
        (["1,join,0,," + "0" * 2_000], r"line 2: longer than"),
        ([], "has no rows"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, rows: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        trace_of(tmp_path, *rows)


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "room.csv"
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(path)
    path.write_text("when,what\n1,join\n")
    with pytest.raises(ConfigError, match="the header is 'when,what'"):
        read_trace(path)
    path.write_bytes(HEADER.encode() + b"\xff\xfe\n")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_trace(path)


def test_first_act_joins_and_stays_are_exact(tmp_path: Path) -> None:
    trace = trace_of(
        tmp_path,
        "0,join,0,,0",
        "1,message,0,,5",  # row 1: only 0
        "2,message,1,,5",  # row 2: 1 joins by writing
        "3,leave,1,,0",
        "3,leave,9,,0",  # was never here
        "4,message,0,,5",  # row 5: only 0
        "5,reaction,1,5,1",  # 1 is back
        "6,join,1,,0",  # a member already
        "7,reply,0,2,5",  # row 8: both
    )
    assert expected_mailboxes(trace) == {0: [1, 2, 5, 8], 1: [2, 8]}
    assert [(step.changes, [row.row for row in step.sends]) for step in steps(trace)] == [
        (((0, True),), [1]),
        (((1, True),), [2]),
        (((1, False),), [5]),
        (((1, True),), [8]),
    ]


def test_changes_of_one_run_keep_their_order(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, "0,join,0,,0", "1,join,1,,0", "2,leave,1,,0", "3,join,1,,0", "4,message,0,,1")
    (step,) = steps(trace)
    assert step.changes == ((0, True), (1, True), (1, False), (1, True))


@pytest.mark.parametrize(
    ("name", "rows", "sends", "users", "entries"),
    [("room-a", 4_724, 3_853, 479, 956_871), ("room-b", 2_574, 1_777, 589, 190_115)],
)
def test_the_real_rooms(name: str, rows: int, sends: int, users: int, entries: int) -> None:
    trace = read_trace(DATA / f"{name}.csv")
    counts = trace.counts()
    assert (len(trace.rows), counts["message"] + counts["reply"]) == (rows, sends)
    mailboxes = expected_mailboxes(trace)
    assert (len(mailboxes), sum(map(len, mailboxes.values()))) == (users, entries)
    played = steps(trace)
    assert sum(len(step.sends) for step in played) == sends
    assert replayed(played) == mailboxes


def replayed(played: list[object]) -> dict[int, list[int]]:
    """The mailboxes that applying the steps gives: a second way to the same answer."""
    members: set[int] = set()
    result: dict[int, list[int]] = {}
    for step in played:
        for user, joins in step.changes:  # type: ignore[attr-defined]
            (members.add if joins else members.discard)(user)
            result.setdefault(user, [])
        for row in step.sends:  # type: ignore[attr-defined]
            assert row.user in members
            for user in members:
                result[user].append(row.row)
    return result


def test_a_prefix_is_a_trace() -> None:
    trace = read_trace(DATA / "room-b.csv")
    part = trace.prefix(0.1)
    assert part.rows == trace.rows[: len(part.rows)]
    assert len(part.rows) == 257
    assert len(trace.prefix(1e-9).rows) == 1


def test_bodies_have_the_length_of_the_row_and_name_it() -> None:
    trace = read_trace(DATA / "room-a.csv")
    bodies = {row.row: body_of(row) for row in trace.rows if row.kind in ("message", "reply")}
    assert all(len(body) == trace.rows[row].body_bytes for row, body in bodies.items())
    long = [(row, body) for row, body in bodies.items() if len(body) > 16]
    assert all(body.startswith(f"#{row} ".encode()) for row, body in long)
    assert len({body for _, body in long}) == len(long)
