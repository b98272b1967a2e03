"""Runs the roles of a stack: in order, watched, restarted within a budget, stopped backwards.

::

    supervisor = Supervisor(roles, state_dir)
    exit_code = await supervisor.run()      # until SIGINT, SIGTERM, SIGHUP or `request_stop`

Invariants:

* A group of roles (equal `order`) starts when everything of a lower order is ready; stopping goes
  backwards, one group after the other.
* A role that used up its restart budget stops the whole stack: exit code 1, with the end of its log.
* No child outlives this process, however it ends (see `process`): `run` must be on the main thread.
* The first signal stops cleanly, a second one kills at once.
* A restart that somebody asks for (`restarts`) ends a role as a stop does, and costs nothing of its budget.

What it does not do: lock the state directory (`stack.EmbeddedStack` does) or know what a role is for.
"""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

from qim_streams.embedded import restarts
from qim_streams.embedded.ports import require_free
from qim_streams.embedded.role_log import LOG_BYTES_MAX
from qim_streams.embedded.role_runner import RoleFailedError, RoleRunner, RunnerContext
from qim_streams.embedded.roles import RestartPolicy, RoleSpec, start_groups
from qim_streams.embedded.status import RoleStatus, write_status
from qim_streams.embedded.view import View, choose_view

TICK_S = 1.0
ASKED_EVERY_S = 0.2
EXIT_STOPPED = 0
EXIT_FAILED = 1
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_log = logging.getLogger(__name__)


class Supervisor:
    """Supervises the processes of one stack. Use it once: construct and `run` inside one event loop."""

    def __init__(
        self,
        roles: Sequence[RoleSpec],
        state_dir: Path,
        *,
        view: View | None = None,
        policy: RestartPolicy | None = None,
        log_bytes_max: int = LOG_BYTES_MAX,
    ) -> None:
        """EmbeddedError for bad role names. Logs go to `<state_dir>/log/<role>.log`."""
        self._state_dir, self._view = state_dir, view or choose_view()
        self._phase = "starting"
        self._failure: str | None = None
        self._halt, self._running = asyncio.Event(), asyncio.Event()
        context = RunnerContext(
            log_dir=state_dir / "log",
            log_bytes_max=log_bytes_max,
            policy=policy or RestartPolicy(),
            changed=self._changed,
        )
        self._groups: list[list[RoleRunner]] = []
        for group in start_groups(roles):
            lower = [runner for earlier in self._groups for runner in earlier]
            self._groups.append([RoleRunner(spec, context, lower) for spec in group])
        self._tasks: dict[RoleRunner, asyncio.Task[None]] = {}
        self._restarting: set[asyncio.Task[None]] = set()

    @property
    def statuses(self) -> list[RoleStatus]:
        """Live statuses in start order."""
        return [runner.status for runner in self._runners()]

    @property
    def failure(self) -> str | None:
        """Why the stack stopped by itself, None otherwise."""
        return self._failure

    def request_stop(self) -> None:
        """Stop cleanly; asked a second time: kill at once. Returns immediately."""
        if self._halt.is_set():
            for runner in self._runners():
                runner.kill_nowait()
        self._halt.set()

    async def wait_running(self) -> bool:
        """True once every role was ready, False when the stack stops before that."""
        await _first_of(self._running.wait(), self._halt.wait())
        return self._running.is_set() and not self._halt.is_set()

    async def run(self) -> int:
        """Run until asked to stop (0) or a role failed for good (1). PortInUseError before anything runs."""
        for runner in self._runners():
            for name, port in runner.spec.ports.items():
                require_free(port, f"{runner.spec.name} {name}")
        self._view.open(self.statuses)
        restarts.take(self._state_dir, ())
        background = [asyncio.create_task(self._tick()), asyncio.create_task(self._obey())]
        try:
            with self._signals():
                await self._serve()
                await self._stop_all()
        finally:
            for task in (*background, *self._restarting, *self._tasks.values()):
                task.cancel()
            self._enter("failed" if self._failure else "stopped")
            if self._failure:
                self._view.message(self._failure)
            self._view.close()
        return EXIT_FAILED if self._failure else EXIT_STOPPED

    async def _serve(self) -> None:
        """Start everything and watch it until something says halt."""
        for runner in self._runners():
            self._tasks[runner] = asyncio.create_task(self._watch(runner), name=f"role {runner.spec.name}")
        await _first_of(self._all_ready(), self._halt.wait())
        if not self._halt.is_set():
            self._running.set()
            self._enter("running")
            await self._halt.wait()
        self._enter("stopping")

    async def _watch(self, runner: RoleRunner) -> None:
        try:
            await runner.run()
        except RoleFailedError as error:
            self._fail(str(error))
        except Exception as error:  # noqa: BLE001 - reported, and it stops the stack
            # A fault of the supervisor itself: the stack must not go on half-watched.
            _log.exception("watching role %s failed", runner.spec.name)
            self._fail(f"role {runner.spec.name} can no longer be watched: {error!r}")

    async def _all_ready(self) -> None:
        for runner in self._runners():
            await runner.ready.wait()

    async def _stop_all(self) -> None:
        for group in reversed(self._groups):
            results = await asyncio.gather(*(runner.stop() for runner in group), return_exceptions=True)
            for result in results:
                if isinstance(result, Exception):
                    self._fail(str(result))
            await asyncio.gather(*(self._tasks[runner] for runner in group), return_exceptions=True)

    async def _obey(self) -> None:
        """Restart what is asked for (`restarts`), each as soon as it is asked."""
        by_name = {runner.spec.name: runner for runner in self._runners()}
        while True:
            await asyncio.sleep(ASKED_EVERY_S)
            for name in restarts.take(self._state_dir, by_name):
                if not self._halt.is_set():
                    task = asyncio.create_task(by_name[name].restart(), name=f"restart {name}")
                    self._restarting.add(task)
                    task.add_done_callback(self._restarted)

    def _restarted(self, task: "asyncio.Task[None]") -> None:
        self._restarting.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._fail(f"{task.get_name()} failed: {task.exception()!r}")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._view.tick()
            for runner in self._runners():
                with _disk_trouble_logged(f"bounding the log of {runner.spec.name}"):
                    runner.bound_log()

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._halt.set()

    def _changed(self, status: RoleStatus) -> None:
        self._view.changed(status)
        self._write()

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self._write()

    def _write(self) -> None:
        with _disk_trouble_logged("writing status.json"):
            write_status(
                self._state_dir,
                pid=os.getpid(),
                state=self._phase,
                now_ms=int(time.time() * 1_000),
                roles=self.statuses,
                message=self._failure,
            )

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.request_stop)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    def _runners(self) -> list[RoleRunner]:
        return [runner for group in self._groups for runner in group]


@contextlib.contextmanager
def _disk_trouble_logged(doing: str) -> Iterator[None]:
    """A full disk must not end the process that everything else hangs on."""
    try:
        yield
    except OSError as error:
        _log.warning("%s failed: %s", doing, error)


async def _first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Return when the first one is done; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
