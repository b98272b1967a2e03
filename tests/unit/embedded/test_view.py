"""What a person sees."""

import io

import pytest
from rich.console import Console

from qim_streams.embedded.roles import RoleState
from qim_streams.embedded.status import RoleStatus
from qim_streams.embedded.view import TableView, TextView, choose_view, format_uptime, render_table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def role(state: RoleState, **more: object) -> RoleStatus:
    return RoleStatus("mailbox", state, 10, {"web": 6066}, **more)  # type: ignore[arg-type]


def test_text_has_one_line_per_change() -> None:
    stream = io.StringIO()
    view = TextView(stream, wall_s=lambda: 0.0)
    view.open([])
    view.changed(role(RoleState.WAITING))
    view.changed(role(RoleState.READY, pid=41))
    view.changed(role(RoleState.BACKOFF, restarts=2, last_exit=70))
    view.tick()
    view.message("[bold]done[/bold]")
    view.close()
    lines = [line[9:] for line in stream.getvalue().splitlines()]
    assert lines == [
        "mailbox ready pid=41 web=6066",
        "mailbox backoff web=6066 restarts=2 exit=70",
        "[bold]done[/bold]",
    ]


def test_the_table_shows_every_column() -> None:
    stream = io.StringIO()
    status = role(RoleState.READY, pid=41, restarts=3, started_at_ms=1_000_000)
    Console(file=stream, width=100).print(render_table([status], now_s=1_065.0))
    header, row = stream.getvalue().splitlines()
    assert header.split() == ["role", "pid", "ports", "state", "restarts", "uptime"]
    assert row.split() == ["mailbox", "41", "web", "6066", "ready", "3", "1m05s"]


def test_a_terminal_gets_a_table_that_prints_messages_as_they_are() -> None:
    stream = Terminal()
    view = choose_view(stream)
    assert isinstance(view, TableView)
    status = role(RoleState.STARTING, pid=41)
    view.open([status])
    status.state = RoleState.READY
    view.changed(status)
    view.message("ended [code 70]")
    view.close()
    assert "ended [code 70]" in stream.getvalue()
    assert "ready" in stream.getvalue()
    assert isinstance(choose_view(io.StringIO()), TextView)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"), (-1, "0s"), (59.9, "59s"), (60, "1m00s"), (3_599, "59m59s"), (3_600, "1h00m"),
        (86_399, "23h59m"), (86_400, "1d00h"), (90_000, "1d01h"),
    ],
)  # fmt: skip
def test_uptimes(seconds: float | None, text: str) -> None:
    assert format_uptime(seconds) == text
