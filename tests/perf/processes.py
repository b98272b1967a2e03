"""Servers and stage workers of a measurement, started as ``qim up`` starts them, and what they have used.

Linux only: processor time comes from each process's own clock, memory from ``/proc``.
"""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import SecretStr

from qim_streams.embedded.process import ChildProcess, child_env, start_child, tail
from qim_streams.embedded.stack import EmbeddedStack
from qim_streams.settings import Settings
from qim_streams.stack import plan
from qim_streams.streaming import topics

ROOT = Path(__file__).resolve().parents[2]
STOP_S = 30.0
UNUSED_PORT = 6066  # of web views that are off
MEMORY_MB = 2**20


class MeasurementError(Exception):
    """A measurement could not be made, or what was measured is not right."""


def cpu_s(pid: int) -> float:
    """Processor time of a process so far, all threads, seconds."""
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e9  # the kernel's number of that process's clock


def rss_mb(pid: int) -> float:
    """Resident memory of a process, MiB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / MEMORY_MB
    raise MeasurementError(f"process {pid} has no memory: it has ended")


class Worker:
    """A stage worker with a log of its own."""

    def __init__(self, name: str, role: str, child: ChildProcess) -> None:
        self.name, self.role, self.child = name, role, child

    def check(self) -> None:
        """MeasurementError with the end of its log when it has ended."""
        code = self.child.poll()
        if code is not None:
            said = "\n".join(tail(self.child.log_path))
            raise MeasurementError(f"{self.name} ended with {code}:\n{said}")


class Servers:
    """Broker and Redis in a state directory, with the topics of `settings`; workers stop with them."""

    def __init__(self, state_dir: Path, *, quick: bool = False, **overrides: Any) -> None:
        """`overrides` are settings, partition counts for example."""
        self.state_dir, self._overrides = state_dir, overrides
        self._stack = EmbeddedStack(state_dir, broker="kafka", quick=quick, progress=lambda _: None)
        self.workers: list[Worker] = []
        self.settings = Settings()
        self.profiles: Path | None = None  # where workers of stages write profiles of their main thread

    def __enter__(self) -> Self:
        self._stack.start()
        try:
            self.settings = Settings(
                brokers=self._stack.brokers,
                redis_url=SecretStr(self._stack.redis_url),
                state_dir=self.state_dir,
                **self._overrides,
            )
            wanted = topics.load().resolve_for(self.settings)
            topics.apply(topics.admin_client(self.settings.brokers), wanted)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop_workers()
        finally:
            self._stack.close()

    @property
    def server_pids(self) -> dict[str, int]:
        """Names and processes of the servers."""
        return {
            {"kafka": "broker"}.get(server.name, server.name): server.pid
            for server in self._stack.servers
            if server.pid is not None
        }

    @property
    def pids(self) -> dict[str, int]:
        """Everything that runs here by name; workers by the name of their process."""
        return {worker.name: worker.child.pid for worker in self.workers} | self.server_pids

    def start_role(self, role: str, workers: int = 1) -> None:
        """Start the workers of a stage as the product's supervisor would; returns at once."""
        options = plan.StackOptions(self.state_dir, workers={role: workers})
        settings = self.settings
        addresses = plan.Addresses(settings.brokers, settings.redis_url.get_secret_value())
        names = [name for name, _, _ in plan.role_names(options)]
        ports = dict.fromkeys(names, UNUSED_PORT)
        counts = {f"QIM_{name.upper()}": str(value) for name, value in self._overrides.items()}
        for one in plan.plan_roles(options, addresses, {}, ports, counts):
            if one.role == role:
                one.state_dir.mkdir(parents=True, exist_ok=True)
                self.start_worker(one.name, role, self._profiled(one.name, one.argv), one.env)

    def _profiled(self, name: str, argv: list[str]) -> list[str]:
        if self.profiles is None:
            return argv
        return [argv[0], "-m", "cProfile", "-o", str(self.profiles / f"{name}.prof"), *argv[1:]]

    def start_module(self, name: str, module: str, env: Mapping[str, str]) -> None:
        """Start a Faust application of this folder; returns at once."""
        argv = [sys.executable, "-m", "faust", "-A", module, "worker", "--loglevel", "info", "--without-web"]
        self.start_worker(name, name, argv, env)

    def start_worker(self, name: str, role: str, argv: list[str], env: Mapping[str, str]) -> None:
        """Start a process that stops with us."""
        log_path = self.state_dir / "log" / f"{name}.log"
        child = start_child(name, argv, env=child_env(env, settings=False), log_path=log_path, cwd=ROOT)
        self.workers.append(Worker(name, role, child))

    def check_workers(self) -> None:
        """MeasurementError when one has ended."""
        for worker in self.workers:
            worker.check()

    def log_ends(self) -> str:
        """The last lines that each worker said."""
        ends = [(worker.name, tail(worker.child.log_path)) for worker in self.workers]
        return "\n".join(line for name, lines in ends for line in (f"--- {name}", *lines))

    def stop_workers(self) -> None:
        """Stop all workers, the youngest first."""
        while self.workers:
            self.workers.pop().child.stop(STOP_S)
