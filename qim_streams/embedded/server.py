"""What every local server shares: one per data directory, ready when it answers, same port after a restart.

Invariants:

* The data directory is locked from `prepare` to `stop`/`kill`, and the server process holds the lock too:
  a second server cannot open the same data while the first one lives, whoever started it.
* `start` returns only after a real request was answered; on error nothing runs and the lock is free.
* Ports chosen for a server stay with the object: `restart` comes back at the same address.

All methods belong to the main thread (see `process`) and block, except those named `..._async`;
`is_ready` alone may run on any thread.
"""

import abc
import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from qim_streams.embedded.errors import ServerStartError
from qim_streams.embedded.locking import DirectoryLock
from qim_streams.embedded.maven import Progress, print_progress
from qim_streams.embedded.ports import free_ports, is_free, require_free
from qim_streams.embedded.process import ChildProcess, start_child, tail

READY_POLL_S = 0.05
PORT_TRIES_MAX = 3
CLEAN_EXITS = frozenset({0, -signal.SIGTERM, 128 + signal.SIGTERM})


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """How a prepared server is started: program and arguments, and its whole environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


class LocalServer(abc.ABC):
    """A server process of this machine with a data directory and loopback ports."""

    name: ClassVar[str]
    start_deadline_s: ClassVar[float] = 60.0
    stop_grace_s: ClassVar[float] = 20.0

    def __init__(
        self,
        data_dir: Path,
        ports: Mapping[str, int],
        *,
        log_path: Path | None,
        progress: Progress = print_progress,
    ) -> None:
        """`ports` maps the name of the setting to a port; 0 = any free one, chosen once."""
        self.data_dir = data_dir.absolute()
        self.log_path = (log_path or data_dir / f"{self.name}.log").absolute()
        self._asked, self._chosen = dict(ports), dict[str, int]()
        self._progress = progress
        self._lock = DirectoryLock(
            self.data_dir / "owner.lock", remedy=f"stop that {self.name} or use another data directory"
        )
        self._child: ChildProcess | None = None
        self._served = False  # clients may know the ports by now
        self.last_exit: int | None = None

    # -- what a kind of server adds

    @abc.abstractmethod
    def _render(self) -> ServerCommand:
        """Write configuration, format, download: all that a start needs. The lock is held."""

    @abc.abstractmethod
    def is_ready(self) -> bool:
        """True when a real request is answered now; never raises, takes at most about a second."""

    def check_ready(self) -> bool:
        """`is_ready`, and ServerStartError when what answers is not set up as it must be."""
        if not self.is_ready():
            return False
        self._check_fault(self._fault())
        return True

    def _fault(self) -> str | None:
        """What is wrong with the server that answers, None when it is set up as it must be."""
        return None

    def exited(self, code: int) -> None:
        """Called once with the exit code after each end of the process."""
        self.last_exit = code

    # -- what a user calls

    @property
    def ports(self) -> dict[str, int]:
        """Setting name -> port; empty before `prepare` or `start`."""
        return dict(self._chosen)

    @property
    def pid(self) -> int | None:
        """Number of the running process, None when there is none."""
        return self._child.pid if self._child is not None and self._child.poll() is None else None

    @property
    def lock_descriptor(self) -> int:
        """Descriptor of the data lock, for whoever starts the prepared command itself."""
        return self._lock.fileno

    def prepare(self) -> ServerCommand:
        """Lock the data directory, settle the ports, write everything a start needs.

        For a supervisor that runs the command itself; it calls `release` at the very end.
        """
        if not self._lock.held:
            self._lock.acquire()
        try:
            if not self._chosen:
                self._settle_ports()
            return self._render()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let go of the data directory; the server must not run."""
        self._lock.release()

    def start(self, deadline_s: float | None = None) -> Self:
        """Start and wait until it answers; ServerStartError with the end of its log otherwise."""
        for attempt in range(1, PORT_TRIES_MAX + 1):
            self.spawn()
            try:
                self._wait_ready(self._limit_s(deadline_s))
                break
            except ServerStartError:
                self.kill()
                if attempt == PORT_TRIES_MAX or self._served or not self._lost_a_chosen_port():
                    raise
                self._chosen.clear()
            except BaseException:
                self.kill()
                raise
        return self

    async def start_async(self, deadline_s: float | None = None) -> Self:
        """`start` that lets the event loop run while the server comes up.

        Only the waiting is asynchronous: a first start still blocks for its download and format.
        """
        self.spawn()
        limit_s = self._limit_s(deadline_s)
        deadline = time.monotonic() + limit_s
        try:
            while not await asyncio.to_thread(self.is_ready):
                self._check_alive(limit_s, deadline)
                await asyncio.sleep(READY_POLL_S)
            self._check_serving(limit_s, deadline, await asyncio.to_thread(self._fault))
        except BaseException:
            self.kill()
            raise
        return self

    def spawn(self) -> ChildProcess:
        """Start without waiting."""
        assert self.pid is None, f"{self.name} runs already"
        if self._child is not None:
            self.kill()  # it ended by itself and still has to be accounted for
        command = self.prepare()
        try:
            self._child = start_child(
                self.name,
                command.argv,
                env=command.env,
                log_path=self.log_path,
                cwd=self.data_dir,
                pass_fds=(self._lock.fileno,),
            )
        except BaseException:
            self.release()
            raise
        return self._child

    def stop(self, grace_s: float | None = None) -> None:
        """End it cleanly (SIGTERM, grace, SIGKILL); no effect when it does not run."""
        self._end(lambda child: child.stop(self.stop_grace_s if grace_s is None else grace_s))

    async def stop_async(self, grace_s: float | None = None) -> None:
        """`stop` without blocking the event loop."""
        child, self._child = self._child, None
        try:
            if child is not None:
                self.exited(await child.stop_async(self.stop_grace_s if grace_s is None else grace_s))
        finally:
            self.release()

    def kill(self) -> None:
        """End it at once (SIGKILL), as a crash would; data written before stays."""
        self._end(lambda child: child.kill())

    def restart(self, *, kill: bool = False) -> Self:
        """Stop (or kill) and start again on the same ports and data."""
        if kill:
            self.kill()
        else:
            self.stop()
        return self.start()

    async def restart_async(self, *, kill: bool = False) -> Self:
        """`restart` without blocking the event loop."""
        if kill:
            self.kill()  # milliseconds
        else:
            await self.stop_async()
        return await self.start_async()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        self._signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start() if self.pid is None else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- inside

    def _settle_ports(self) -> None:
        fixed = {setting: require_free(port, setting) for setting, port in self._asked.items() if port}
        open_names = [setting for setting in self._asked if setting not in fixed]
        chosen = free_ports(len(open_names), exclude=fixed.values())
        self._chosen = fixed | dict(zip(open_names, chosen, strict=True))

    def _lost_a_chosen_port(self) -> bool:
        """True when a port that we had chosen was taken before the server could bind it."""
        return any(not is_free(port) for name, port in self._chosen.items() if not self._asked[name])

    def _limit_s(self, asked_s: float | None) -> float:
        return self.start_deadline_s if asked_s is None else asked_s

    def _wait_ready(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while not self.is_ready():
            self._check_alive(limit_s, deadline)
            time.sleep(READY_POLL_S)
        self._check_serving(limit_s, deadline, self._fault())

    def _check_alive(self, limit_s: float, deadline: float) -> None:
        code = None if self._child is None else self._child.poll()
        if self._child is None or code is not None:
            raise ServerStartError(f"{self.name} ended with code {code} at its start{self._said()}")
        if time.monotonic() > deadline:
            raise ServerStartError(f"{self.name} does not answer after {limit_s:.0f} s{self._said()}")

    def _check_serving(self, limit_s: float, deadline: float, fault: str | None) -> None:
        self._check_alive(limit_s, deadline)  # else somebody else's server answered
        self._check_fault(fault)
        self._served = True

    def _check_fault(self, fault: str | None) -> None:
        if fault is not None:
            raise ServerStartError(f"{self.name} {fault}: another server may answer at its port")

    def _said(self) -> str:
        taken = [f"{name} {port}" for name, port in self._chosen.items() if not is_free(port)]
        busy = f" (port in use: {', '.join(taken)})" if taken and self.pid is None else ""
        lines = tail(self.log_path, lines_max=12)
        return busy + (f"; {self.log_path} ends:\n  " + "\n  ".join(lines) if lines else "; its log is empty")

    def _end(self, how: Callable[[ChildProcess], int]) -> None:
        child, self._child = self._child, None
        try:
            if child is not None:
                self.exited(how(child))
        finally:
            self.release()

    def _signal(self, number: signal.Signals) -> None:
        if self._child is None or not self._child.send_signal(number):
            raise ServerStartError(f"{self.name} does not run; start it first")
