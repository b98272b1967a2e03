"""Processes as the kernel shows them, and extra workers beside those that a stack runs.

Linux only (``/proc``), like the chaos tests that use it.
"""

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.stack import StackProcess

PROC = Path("/proc")


def environment(pid: int) -> dict[str, str]:
    """The environment that a process was started with."""
    pairs = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return dict(pair.decode().split("=", 1) for pair in pairs if b"=" in pair)


def command(pid: int) -> list[str]:
    """The command line of a process."""
    return [part.decode() for part in (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")[:-1]]


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal (SIGSTOP) and not woken yet."""
    try:
        return (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0] == b"T"
    except OSError:
        return False  # it has ended


def processes_of(state_dir: Path) -> dict[int, str]:
    """Living processes that name a directory in their command line, environment or working directory."""
    found = {}
    needle = str(state_dir).encode()
    for entry in PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            cwd = os.fsencode(os.readlink(entry / "cwd"))
            texts = ((entry / "cmdline").read_bytes(), (entry / "environ").read_bytes(), cwd)
        except OSError:
            continue  # it ended, is a zombie, or is not ours to look at
        if any(needle in text for text in texts):
            found[int(entry.name)] = texts[0].replace(b"\0", b" ").decode(errors="replace")[:200]
    return found


def stand_by(stack: StackProcess, role: str, slot: int) -> "ExtraWorker":
    """A worker of a stream role, or a writer, under the name of another node."""
    settings = {"QIM_NODE_ID": "node-2", "QIM_WRITER_PORT": "0", "QIM_METRICS_PORT": "0"}
    return ExtraWorker(stack, role, slot, settings)


class ExtraWorker:
    """Another worker of a stream role, in the same consumer group, outside the supervisor."""

    def __init__(
        self, stack: StackProcess, role: str, slot: int, settings: Mapping[str, str] | None = None
    ) -> None:
        """`settings`: environment variables that differ from those of the stack's worker."""
        pid = stack.role(role).pid
        assert pid is not None, f"{role} does not run"
        state_dir = stack.state_dir / "extra" / f"{role}-{slot}"
        state_dir.mkdir(parents=True, exist_ok=True)
        env = environment(pid) | {"QIM_WORKER_SLOT": str(slot), "QIM_STATE_DIR": str(state_dir)}
        env |= settings or {}
        self.name = f"{role}-{slot}"
        self._ready = state_dir / "ready"
        self._ready.unlink(missing_ok=True)
        with (state_dir / "worker.log").open("ab") as log:
            self._popen = subprocess.Popen(command(pid), env=env, stdout=log, stderr=log)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._popen.poll()

    def is_ready(self) -> bool:
        """Whether it has its partitions, be it none; AssertionError when it ended."""
        assert self.exit_code is None, f"{self.name} ended with {self.exit_code}"
        return self._ready.exists() and self._ready.read_text().strip() == str(self._popen.pid)

    def serves(self) -> bool:
        """Whether it has taken up its work, also as a writer; AssertionError when it ended."""
        assert self.exit_code is None, f"{self.name} ended with {self.exit_code}"
        return (self._ready.exists() and self.is_ready()) or ": serving, " in self.said()

    def said(self) -> str:
        """Its log."""
        return (self._ready.parent / "worker.log").read_text(errors="replace")

    def leave(self) -> int:
        """SIGTERM, and its exit code."""
        self._popen.terminate()
        return self._popen.wait(60)

    def kill(self) -> None:
        """SIGKILL."""
        self._popen.send_signal(signal.SIGKILL)
        self._popen.wait(20)
