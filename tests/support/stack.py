"""A real stack of real processes for tests: started like a user would, killed like nobody should.

`StackProcess` runs ``qim up`` in a process of its own with a state directory in a temporary folder, reads
what it says about itself, and offers the two verbs that tests need: kill and wait.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import redis

from qim_streams.client.discovery import StackAddress, discover
from qim_streams.embedded.status import RoleStatus, StackStatus, read_status
from qim_streams.redis_acl import USER
from tests.support.waiting import eventually_sync

START_S = 150.0
FAST = {  # the same rules with shorter clocks, so that a takeover fits a test
    "QIM_LEASE_TTL_MS": "3000",
    "QIM_LEASE_RENEW_MS": "700",
    "QIM_STREAM_SESSION_TIMEOUT_MS": "3000",
    "QIM_PRESENCE_REFRESH_S": "5",
    "QIM_LOG_LEVEL": "INFO",
    # Several partitions, whatever the machine would get.
    "QIM_OUTBOX_PARTITIONS": "2",
    "QIM_MAILBOX_SHARDS": "4",
}
PRODUCT_CLOCKS = {  # what `FAST` has shortened, as the product has it
    "QIM_LEASE_TTL_MS": "15000",
    "QIM_LEASE_RENEW_MS": "3000",
    "QIM_STREAM_SESSION_TIMEOUT_MS": "10000",
    "QIM_PRESENCE_REFRESH_S": "60",
}
# Roles that tests kill all the time come back at once, as after a first death.
TIRELESS = ("--restarts", "10000", "--backoff", "0.4")


class StackProcess:
    """A running ``qim up``. Use as a context manager; a failure to start shows the ends of the logs."""

    def __init__(self, state_dir: Path, *args: str, env: dict[str, str] | None = None) -> None:
        self.state_dir = state_dir
        self._args = ["--state-dir", str(state_dir), *TIRELESS, "--quick", *args]
        passed = {name: value for name, value in os.environ.items() if not name.startswith("QIM_")}
        self._env = passed | FAST | (env or {})
        self._popen: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "StackProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start and wait until every role is ready."""
        self.state_dir.mkdir(parents=True, exist_ok=True)
        with (self.state_dir / "up.log").open("ab") as log:
            command = [sys.executable, "-m", "qim_streams.cli", "up", *self._args]
            self._popen = subprocess.Popen(command, env=self._env, stdout=log, stderr=log)
        try:
            eventually_sync(self._running_or_dead, START_S, "the stack to run")
            assert self._popen.poll() is None, "qim up ended at its start"
        except AssertionError as error:
            self.stop()
            raise AssertionError(f"{error}\n{self.log_ends()}") from None

    def stop(self) -> int:
        """SIGTERM, wait, and the exit code."""
        popen, self._popen = self._popen, None
        if popen is None:
            return 0
        popen.terminate()
        try:
            return popen.wait(60)
        except subprocess.TimeoutExpired:
            popen.kill()
            raise AssertionError("qim up did not stop within 60 s") from None

    def exit_code(self, within_s: float) -> int:
        """The exit code of a supervisor that ends by itself; TimeoutExpired when it does not."""
        assert self._popen is not None
        return self._popen.wait(within_s)

    def end(self) -> None:
        """SIGKILL to the supervisor, if it still runs; its children die with it."""
        popen, self._popen = self._popen, None
        if popen is not None:
            popen.kill()
            popen.wait()

    @property
    def pid(self) -> int:
        """The supervisor's pid."""
        assert self._popen is not None
        return self._popen.pid

    @property
    def client(self) -> dict[str, Any]:
        """What `client.json` says: gateway_url, jwt_secret, ...; `redis_url` is the operator's here."""
        content: dict[str, Any] = json.loads((self.state_dir / "client.json").read_text())
        return content | {"redis_url": content["redis_admin_url"]}

    @property
    def environment(self) -> dict[str, str]:
        """What `qim up` was started with: for commands beside it."""
        return dict(self._env)

    def refused_commands(self) -> list[str]:
        """What the roles' user was refused by Redis since it was started: should be nothing."""
        with redis.Redis.from_url(self.client["redis_url"], decode_responses=True) as client:
            return [
                f"{row['reason']} {row['object']} ({row['context']}) of {row['username']}"
                for row in client.acl_log()
                if row["username"] == USER
            ]

    def ended_by_themselves(self) -> list[str]:
        """The supervisor's lines about roles that ended, without those that somebody killed (SIGKILL)."""
        lines = (self.state_dir / "up.log").read_text(errors="replace").splitlines()
        ends = (re.search(r" (?:backoff|failed) .*\bexit=(-?\d+)", line) for line in lines)
        return [line for line, end in zip(lines, ends, strict=True) if end and int(end[1]) != -signal.SIGKILL]

    def address(self) -> StackAddress:
        """How clients reach the stack."""
        return discover(self.state_dir)

    def status(self) -> StackStatus:
        """The supervisor's last word."""
        status = read_status(self.state_dir)
        assert status is not None
        return status

    def role(self, name: str) -> RoleStatus:
        """The status of one role (or server: kafka, redis)."""
        return next(role for role in self.status().roles if role.name == name)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to a role; returns the pid that got it."""
        pid = self.role(name).pid
        assert pid is not None, f"{name} has no process"
        os.kill(pid, number)
        return pid

    def signal_supervisor(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor itself."""
        os.kill(self.pid, number)

    def wait_restarted(self, name: str, old_pid: int, within_s: float = 60.0) -> None:
        """Until the role is ready again under another pid."""
        eventually_sync(
            lambda: self.role(name).pid not in (None, old_pid) and self.role(name).state.value == "ready",
            within_s,
            f"{name} to be ready again",
        )

    def wait_all_ready(self, within_s: float = 90.0) -> None:
        """Until every role is ready."""
        eventually_sync(
            lambda: all(role.state.value == "ready" for role in self.status().roles),
            within_s,
            "all roles ready",
        )

    def log_ends(self, lines: int = 25) -> str:
        """The last lines of every log, for a failure's message."""
        paths = [self.state_dir / "up.log", *sorted((self.state_dir / "log").glob("*.log"))]
        return "\n".join(_end_of(path, lines) for path in paths if path.exists())

    def _running_or_dead(self) -> bool:
        assert self._popen is not None
        if self._popen.poll() is not None:
            return True
        status = read_status(self.state_dir)
        return status is not None and status.alive and status.state == "running"


def _end_of(path: Path, lines: int) -> str:
    return f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
