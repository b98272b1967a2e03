"""A whole stack for a measurement: the one that runs in a state directory, else one of our own.

What is started here is ``qim up`` as a user would start it, in a process of its own, and is stopped at the
end; a stack that ran before is left running.
"""

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop

from qim_streams.client.discovery import CLIENT_FILE, StackAddress, discover
from qim_streams.embedded.process import child_env, start_child, tail
from qim_streams.embedded.status import read_status
from qim_streams.errors import QimError
from tests.perf.processes import ROOT, MeasurementError

START_S, STOP_S, STEP_S = 150.0, 60.0, 0.2


class RunningStack:
    """A stack by its state directory."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir.resolve()

    @property
    def address(self) -> StackAddress:
        """How clients reach it."""
        return discover(self.state_dir)

    @property
    def redis_url(self) -> str:
        """Its hot tier."""
        return str(json.loads((self.state_dir / CLIENT_FILE).read_text(encoding="utf-8"))["redis_url"])

    def pids(self) -> dict[str, int]:
        """Roles and servers by name, those that run."""
        status = read_status(self.state_dir)
        return {role.name: role.pid for role in status.roles if role.pid} if status is not None else {}

    def restarts(self) -> int:
        """How often roles were started again so far."""
        status = read_status(self.state_dir)
        return sum(role.restarts for role in status.roles) if status is not None else 0


def many_descriptors() -> int:
    """Take as many file descriptors as there are, for roles started here, too; how many these are."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def measured(
    name: str,
    measure: Callable[["RunningStack"], Coroutine[Any, Any, int]],
    state_dir: Path | None,
    env: Mapping[str, str] | None = None,
) -> int:
    """The exit code of `measure` on a quick stack; 1, and why, when it could not be measured."""
    try:
        with running_stack(state_dir, quick=True, env=env) as stack:
            return uvloop.run(measure(stack))
    except (MeasurementError, QimError, TimeoutError, OSError) as error:
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


def found_on_own(
    measure: Callable[["RunningStack"], Coroutine[Any, Any, dict[str, Any]]],
) -> dict[str, Any] | None:
    """What `measure` finds on a stack of its own; None, and why on stderr, when it could not be measured."""
    try:
        with running_stack(None) as stack:
            return uvloop.run(measure(stack))
    except (MeasurementError, QimError) as error:
        print(error, file=sys.stderr)
        return None


@contextmanager
def running_stack(
    state_dir: Path | None, *, quick: bool = False, env: Mapping[str, str] | None = None
) -> Iterator[RunningStack]:
    """The stack that runs in `state_dir`, or one that is started there (None: in a temporary folder).

    `quick` and `env` (settings) count for one that is started. MeasurementError when it does not start.
    """
    if state_dir is not None and _is_running(state_dir):
        yield RunningStack(state_dir)
        return
    with tempfile.TemporaryDirectory(prefix="qim-perf-") as folder:
        home = state_dir if state_dir is not None else Path(folder) / "stack"
        home.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "qim_streams.cli", "up", "--state-dir", str(home)]
        command += ["--quick"] if quick else []
        child = start_child("up", command, env=child_env(env or {}), log_path=home / "up.log", cwd=ROOT)
        try:
            deadline_s = time.monotonic() + START_S
            while not _is_running(home):
                if child.poll() is not None or time.monotonic() > deadline_s:
                    said = "\n".join(tail(child.log_path))
                    raise MeasurementError(f"the stack did not start in {home}:\n{said}")
                time.sleep(STEP_S)
            yield RunningStack(home)
        finally:
            child.stop(STOP_S)


def _is_running(state_dir: Path) -> bool:
    status = read_status(state_dir)
    return status is not None and status.alive and status.state == "running"
