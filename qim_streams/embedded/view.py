"""What a person sees of a running stack: a live table on a terminal, one line per change elsewhere."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from qim_streams.embedded.roles import RoleState
from qim_streams.embedded.status import RoleStatus

if TYPE_CHECKING:
    from rich.table import Table

_COLOURS = {
    RoleState.READY: "green",
    RoleState.STARTING: "yellow",
    RoleState.BACKOFF: "red",
    RoleState.FAILED: "bold red",
    RoleState.STOPPING: "yellow",
}


class View(Protocol):
    """Shows statuses. All methods are called from the event loop and return at once."""

    def open(self, roles: Sequence[RoleStatus]) -> None:
        """Begin; `roles` is live: the same objects change later."""

    def changed(self, role: RoleStatus) -> None:
        """A role's status changed."""

    def tick(self) -> None:
        """About a second went by."""

    def message(self, text: str) -> None:
        """Something to be read and kept."""

    def close(self) -> None:
        """End; the last picture stays."""


class TextView:
    """One line per change: for logs, pipes and CI."""

    def __init__(self, stream: TextIO | None = None, wall_s: Callable[[], float] = time.time) -> None:
        self._stream, self._wall_s = stream or sys.stdout, wall_s

    def open(self, roles: Sequence[RoleStatus]) -> None:
        """Nothing yet: every role will change."""

    def changed(self, role: RoleStatus) -> None:
        """`12:00:01 mailbox ready pid=41 port=8080 restarts=1`."""
        if role.state is RoleState.WAITING:
            return
        words = [role.name, role.state.value]
        if role.pid is not None:
            words.append(f"pid={role.pid}")
        words += [f"{name}={port}" for name, port in role.ports.items()]
        if role.restarts:
            words.append(f"restarts={role.restarts}")
        if role.state in (RoleState.BACKOFF, RoleState.FAILED) and role.last_exit is not None:
            words.append(f"exit={role.last_exit}")
        if role.reasons:
            words.append(f"but not serving: {'; '.join(role.reasons)}")
        self._line(" ".join(words))

    def tick(self) -> None:
        """Uptimes are not worth a line."""

    def message(self, text: str) -> None:
        """The text with the time before it."""
        self._line(text)

    def close(self) -> None:
        """Nothing is buffered."""

    def _line(self, text: str) -> None:
        clock = time.strftime("%H:%M:%S", time.localtime(self._wall_s()))
        print(f"{clock} {text}", file=self._stream, flush=True)


class TableView:
    """A table that is redrawn in place, and messages above it."""

    def __init__(self, stream: TextIO | None = None, wall_s: Callable[[], float] = time.time) -> None:
        from rich.console import Console
        from rich.live import Live

        self._roles: Sequence[RoleStatus] = ()
        self._wall_s = wall_s
        self._console = Console(file=stream)
        # Redrawn by us: a refresh thread of its own would draw half-changed states.
        self._live = Live(console=self._console, auto_refresh=False, transient=False)

    def open(self, roles: Sequence[RoleStatus]) -> None:
        """Draw the first table."""
        self._roles = roles
        self._live.start()
        self.tick()

    def changed(self, role: RoleStatus) -> None:
        """Draw again."""
        self.tick()

    def tick(self) -> None:
        """Draw again, with new uptimes."""
        self._live.update(render_table(self._roles, self._wall_s()), refresh=True)

    def message(self, text: str) -> None:
        """Print above the table."""
        self._console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the last table on the screen."""
        self.tick()
        self._live.stop()


def choose_view(stream: TextIO | None = None) -> View:
    """A table on a terminal, lines elsewhere."""
    target = stream or sys.stdout
    return TableView(target) if target.isatty() else TextView(target)


def render_table(roles: Sequence[RoleStatus], now_s: float) -> "Table":
    """Roles as a rich table."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("role", "pid", "ports", "state", "restarts", "uptime"):
        table.add_column(title, justify="right" if title in ("pid", "restarts", "uptime") else "left")
    for role in roles:
        table.add_row(
            Text(role.name),
            str(role.pid or "-"),
            Text(" ".join(f"{name} {port}" for name, port in role.ports.items()) or "-"),
            Text("; ".join(role.reasons)[:60], style="bold red")
            if role.reasons
            else Text(role.state.value, style=_COLOURS.get(role.state, "dim")),
            str(role.restarts or "-"),
            format_uptime(None if role.started_at_ms is None else now_s - role.started_at_ms / 1_000),
        )
    return table


def format_uptime(seconds: float | None) -> str:
    """`5s`, `3m05s`, `2h03m`, `4d02h`; `-` for None."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3_600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86_400:
        return f"{whole // 3_600}h{whole % 3_600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3_600:02d}h"
