"""Kills roles of a stack under traffic, waits for their return, and knows how many deaths were its own.

Spec: §11.
"""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Iterable

from tests.support.stack import StackProcess

BACK_S = 120.0


class Killer:
    """See the module. `back_s`: the longest that each role took to be ready again, seconds."""

    def __init__(self, stack: StackProcess) -> None:
        self._stack = stack
        self._before = self._restarts()
        self.killed: Counter[str] = Counter()
        self.back_s: dict[str, float] = {}

    def _restarts(self) -> dict[str, int]:
        return {role.name: role.restarts for role in self._stack.status().roles}

    def kill(self, role: str) -> int:
        """SIGKILL; returns the pid."""
        self.killed[role] += 1
        return self._stack.kill(role, signal.SIGKILL)

    async def back(self, role: str, pid: int) -> None:
        """Until the role is ready again; notes how long that took at most."""
        began_s = time.monotonic()
        await asyncio.to_thread(self._stack.wait_restarted, role, pid, BACK_S)
        self.back_s[role] = max(self.back_s.get(role, 0.0), round(time.monotonic() - began_s, 2))

    async def together(self, roles: Iterable[str]) -> float:
        """Kill all of them in one moment and wait for all; how long that took, in seconds."""
        began_s = time.monotonic()
        pids = {role: self.kill(role) for role in roles}
        for role, pid in pids.items():
            await self.back(role, pid)
        return round(time.monotonic() - began_s, 2)

    def check_no_other_deaths(self) -> None:
        """An exit that we did not cause is a defect even if nothing was lost."""
        now = self._restarts()
        caused = {role: self._before[role] + self.killed[role] for role in self._before}
        assert now == caused, f"restarts {now}, expected {caused}:\n{self._stack.log_ends()}"
