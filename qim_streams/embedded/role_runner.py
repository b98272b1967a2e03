"""One supervised role: start, prove ready, notice its end, start again within a budget.

Invariants: at most one process per role; a restart waits until every role of a lower order is ready (a
broker that is down must not use up the budgets of its clients); `stop` ends in STOPPED whatever the role
was doing.
"""

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qim_streams.embedded.errors import EmbeddedError
from qim_streams.embedded.process import ChildProcess, child_env, start_child, tail
from qim_streams.embedded.readiness import probe
from qim_streams.embedded.role_log import bound_log
from qim_streams.embedded.roles import RestartBudget, RestartPolicy, RoleSpec, RoleState
from qim_streams.embedded.status import RoleStatus
from qim_streams.errors import POLICY, ConfigError, Policy

PROBE_EVERY_S = 0.05
HEALTH_EVERY_S = 2.0
LOG_LINES_SHOWN = 15


def _stem(reason: str) -> str:
    """A reason without its numbers: a second more of the same is no news."""
    return re.sub(r"\d+", "", reason)


class RoleFailedError(EmbeddedError):
    """A role used up its restart budget, or cannot be started at all."""


POLICY[RoleFailedError] = Policy.CRASH  # as its relatives in `errors`: it never reaches a stream stage


@dataclass(frozen=True, slots=True)
class RunnerContext:
    """What all runners of a supervisor share. `changed` is called after every change of a status."""

    log_dir: Path
    log_bytes_max: int
    policy: RestartPolicy
    changed: Callable[[RoleStatus], None]
    monotonic_s: Callable[[], float] = time.monotonic
    wall_s: Callable[[], float] = time.time


class RoleRunner:
    """Runs one `RoleSpec`. Belongs to the event loop of the main thread."""

    def __init__(self, spec: RoleSpec, context: RunnerContext, lower: Sequence["RoleRunner"]) -> None:
        """`lower`: the runners that must be ready before this one starts."""
        self.spec = spec
        self.status = RoleStatus(spec.name, RoleState.WAITING, spec.order, dict(spec.ports))
        self.ready, self._stop_asked = asyncio.Event(), asyncio.Event()
        self.log_path = context.log_dir / f"{spec.name}.log"
        self._context, self._lower = context, lower
        self._budget = RestartBudget(context.policy)
        self._child: ChildProcess | None = None
        self._missing: str | None = "nothing was asked yet"
        self._restarting = False  # somebody asked: no death, and nothing of the budget

    async def run(self) -> None:
        """Keep the role running until `stop`; RoleFailedError when that is hopeless."""
        while await self._unless_stopped(self._lower_ready()):
            reason = await self._run_once()
            if self._stop_asked.is_set():
                break
            if self._restarting:
                self._restarting = False
                self._enter(RoleState.WAITING)
                continue
            delay_s = self._budget.next_delay_s(self._context.monotonic_s())
            if delay_s is None:
                self._enter(RoleState.FAILED)
                raise RoleFailedError(self._obituary(reason))
            self._enter(RoleState.BACKOFF)
            if not await self._unless_stopped(asyncio.sleep(delay_s)):
                break
            self.status.restarts += 1
            self._enter(RoleState.WAITING)
        self._enter(RoleState.STOPPED)

    async def stop(self) -> None:
        """Ask `run` to end and end the process: SIGTERM, its grace, SIGKILL."""
        self._stop_asked.set()
        if self._child is not None and self._child.poll() is None:
            self._enter(RoleState.STOPPING)
            await self._child.stop_async(self.spec.stop_grace_s)

    async def restart(self) -> None:
        """End the process as `stop` does; `run` starts it again at once. No effect while none runs."""
        child = self._child
        if child is None or child.poll() is not None or self._stop_asked.is_set() or self._restarting:
            return
        self._restarting = True
        self._enter(RoleState.STOPPING)
        await child.stop_async(self.spec.stop_grace_s)

    def kill_nowait(self) -> None:
        """End the process without any grace; `run` notices."""
        self._stop_asked.set()
        if self._child is not None:
            self._child.kill_nowait()

    def bound_log(self) -> None:
        """Keep the log within its bound."""
        bound_log(self.log_path, self._context.log_bytes_max)

    async def _run_once(self) -> str:
        """One life of the process; says how it ended."""
        child = self._child = self._spawn()
        ended = asyncio.create_task(child.wait_async())
        watch: asyncio.Task[None] | None = None
        try:
            in_time = await self._prove_ready(ended)
            if not in_time and not self._stop_asked.is_set():
                await child.kill_async()
            watch = asyncio.create_task(self._watch_health())
            code = await ended
        finally:
            if watch is not None:
                watch.cancel()
            ended.cancel()
            child.kill_nowait()
        self.ready.clear()
        self.status.pid, self.status.started_at_ms, self.status.last_exit = None, None, code
        self.status.reasons = []
        if self.spec.exited is not None:
            self.spec.exited(code)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if in_time:
            return how
        return f"not ready within {self.spec.ready_deadline_s:.0f} s, last probe: {self._missing}"

    def _spawn(self) -> ChildProcess:
        self.bound_log()
        try:
            child = start_child(
                self.spec.name,
                self.spec.argv,
                env=child_env(
                    {"PYTHONUNBUFFERED": "1", **self.spec.env}, settings=self.spec.inherit_settings
                ),
                log_path=self.log_path,
                cwd=self.spec.cwd,
                pass_fds=self.spec.pass_fds,
            )
        except EmbeddedError as error:
            self._enter(RoleState.FAILED)
            raise RoleFailedError(str(error)) from error
        self.status.pid = child.pid
        self.status.started_at_ms = int(self._context.wall_s() * 1_000)
        self._enter(RoleState.STARTING)
        return child

    async def _prove_ready(self, ended: "asyncio.Task[int]") -> bool:
        """True when the role became ready or ended; False at the deadline."""
        deadline_s = self._context.monotonic_s() + self.spec.ready_deadline_s
        while self._context.monotonic_s() < deadline_s:
            self._missing = await self._probe()
            if self._missing is None and not ended.done() and not self._stop_asked.is_set():
                self.status.reasons = await self._ask_health()
                self.ready.set()
                self._enter(RoleState.READY)
                return True
            await asyncio.wait({ended}, timeout=PROBE_EVERY_S)
            if ended.done():
                return True
        return False

    async def _watch_health(self) -> None:
        """Ask again and again; what changes is told as a change of status."""
        while self.spec.health is not None:
            await asyncio.sleep(HEALTH_EVERY_S)
            reasons = await self._ask_health()
            if [_stem(one) for one in reasons] != [_stem(one) for one in self.status.reasons]:
                self.status.reasons = reasons
                self._context.changed(self.status)

    async def _ask_health(self) -> list[str]:
        if self.spec.health is None:
            return []
        try:
            return await asyncio.to_thread(self.spec.health)
        except Exception as error:  # noqa: BLE001 - somebody else's code; shown to the operator
            return [f"{type(error).__name__}: {error}"]

    async def _probe(self) -> str | None:
        try:
            return await probe(self.spec.ready)
        except ConfigError as error:
            self._enter(RoleState.FAILED)
            raise RoleFailedError(f"role {self.spec.name}: {error}") from error

    async def _lower_ready(self) -> None:
        for runner in self._lower:
            await runner.ready.wait()

    async def _unless_stopped(self, waiting: Coroutine[Any, Any, None]) -> bool:
        """Await `waiting`; False when a stop came first."""
        stop = asyncio.ensure_future(self._stop_asked.wait())
        work = asyncio.ensure_future(waiting)
        try:
            await asyncio.wait({stop, work}, return_when=asyncio.FIRST_COMPLETED)
            return not self._stop_asked.is_set()
        finally:
            stop.cancel()
            work.cancel()

    def _enter(self, state: RoleState) -> None:
        self.status.state = state
        self.status.since_ms = int(self._context.wall_s() * 1_000)
        self._context.changed(self.status)

    def _obituary(self, reason: str) -> str:
        policy = self._context.policy
        lines = tail(self.log_path, lines_max=LOG_LINES_SHOWN)
        said = "; its log ends:\n  " + "\n  ".join(lines) if lines else "; its log is empty"
        return (
            f"role {self.spec.name} ended {policy.restarts_max + 1} times within {policy.window_s:.0f} s "
            f"(last: {reason}), giving up; see {self.log_path}{said}"
        )
