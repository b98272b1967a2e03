"""The demonstration against a scripted server: clean when all is well, not clean when something is lost."""

from pathlib import Path
from typing import Any

import pytest

from qim_streams.demo.check import Sent, judge
from qim_streams.demo.player import PlayOptions
from qim_streams.demo.run import DemoReport, run_demo
from qim_streams.wire.frames import Event, Message

TRACE = """at_ms,kind,user,target_row,body_bytes
0,join,0,,0
5,message,0,,20
6,join,1,,0
7,join,2,,0
9,message,1,,30
10,message,2,,0
11,reply,0,4,12
12,leave,1,,0
13,reaction,2,4,2
14,message,2,,900
15,message,3,,5
16,leave,2,,0
17,join,1,,0
18,message,1,,50
"""
FAST = PlayOptions(live=2, pool=1, readers=2, deliver_timeout_s=2.0)


class Levels:
    """A probe that knows three levels."""

    async def levels(self, conversation_id: str, message_id: bytes) -> dict[str, int | None]:
        assert not conversation_id.startswith("d.")  # the group of the scenes
        assert len(message_id) == 16
        return {"COMMITTED": 0, "MAILBOXED": 7, "PUSHED": 9, "ARCHIVED": None}


async def play(server: Any, tmp_path: Path, **options: Any) -> tuple[DemoReport, list[str]]:
    path = tmp_path / "room.csv"
    path.write_text(TRACE)
    said: list[str] = []
    report = await run_demo(
        server.url, lambda user: user, [path], said.append, options=FAST, probe=Levels(), run="t1", **options
    )
    return report, said


async def test_a_clean_run(server: Any, tmp_path: Path) -> None:
    report, said = await play(server, tmp_path)
    assert report.exit_code == 0, report.lines()
    (room,) = report.rooms
    assert (room.messages, room.acked, room.users, room.not_played) == (7, 7, 4, 1)
    assert (room.pushed.mailboxes, room.pulled.mailboxes) == (2, 2)
    assert (room.pushed.delivered, room.pulled.delivered) == (7 + 4, 5 + 2)
    text = "\n".join(report.lines())
    assert "lost 0, duplicated 0, reordered 0" in text
    assert "MAILBOXED +7 ms" in text
    assert "ARCHIVED not proven" in text
    assert "not played: 1 edits, recalls, reactions" in text
    assert any("scene second device" in line and line.endswith("ok") for line in said)
    assert not server.connections


async def test_faults_of_the_live_path_are_repaired(server: Any, tmp_path: Path) -> None:
    server.faults.drop_pushes, server.faults.repeat_pushes, server.faults.drop_acks = 5, 2, 0
    report, _ = await play(server, tmp_path)
    assert report.exit_code == 0, report.lines()


async def test_a_lost_entry_is_told(server: Any, tmp_path: Path) -> None:
    server.faults.lose = "row-9"  # user 3 joined last
    report, _ = await play(server, tmp_path)
    assert report.exit_code == 1
    assert (report.rooms[0].pushed.lost, report.rooms[0].pulled.lost) == (0, 1)
    assert "verdict: NOT CLEAN" in report.lines()
    assert any("lacks 1 rows, the first is 9" in line for line in report.lines())


async def test_a_part_of_a_trace(server: Any, tmp_path: Path) -> None:
    report, _ = await play(server, tmp_path, scale=0.5)
    assert report.rooms[0].messages == 4
    assert report.exit_code == 0


# -- the judge


def event(seq: int, body: bytes = b"x", row: int | None = None) -> Event:
    message_id = (seq if row is None else row).to_bytes(16, "big")
    return Event(seq, 0, message_id, 3, 0, Message(message_id, "c", seq, "ann", 0, 0, 1, body))


SENT = {n.to_bytes(16, "big"): Sent(n, n, "ann", b"x") for n in range(1, 6)}


def test_judge_accepts_exactly_the_expected() -> None:
    verdict = judge("bob", [2, 3, 5], [event(2), event(3), event(5)], SENT)
    assert verdict.clean
    assert (verdict.expected, verdict.delivered, verdict.mailboxes) == (3, 3, 1)


@pytest.mark.parametrize(
    ("received", "what"),
    [
        ([event(2), event(5)], "lost"),
        ([event(2), event(3), event(3), event(5)], "duplicated"),
        ([event(3), event(2), event(5)], "reordered"),
        ([event(2), event(3), event(4), event(5)], "foreign"),
        ([event(2), event(3), event(5), event(9)], "foreign"),
        ([event(2), event(3, b"y"), event(5)], "wrong"),
        ([event(2), event(4, row=3), event(5)], "wrong"),
    ],
)
def test_judge_tells_each_fault(received: list[Event], what: str) -> None:
    verdict = judge("bob", [2, 3, 5], received, SENT)
    assert not verdict.clean
    assert getattr(verdict, what) == 1
    assert verdict.examples
