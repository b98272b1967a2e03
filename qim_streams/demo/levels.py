"""How far a message came and when: the demonstration's summary, read from the logs by a trace.

Spec: §1 (the five levels).
"""

import asyncio
from collections.abc import Mapping

from qim_streams.demo.ports import LEVELS
from qim_streams.trace.model import MessageTrace
from qim_streams.trace.service import TraceDeps, TraceHint, trace_message

ARCHIVE_WAIT_S, STEP_S = 20.0, 0.3


class TraceProbe:
    """A `LevelProbe` that traces the message, and waits a moment for the archive."""

    def __init__(self, deps: TraceDeps, tenant_id: str) -> None:
        self._deps, self._tenant_id = deps, tenant_id
        self.trace: MessageTrace | None = None

    async def levels(self, conversation_id: str, message_id: bytes) -> Mapping[str, int | None]:
        """Milliseconds from committed_at to each level that is proven, None for the others."""
        hint = TraceHint(conversation_id=conversation_id)
        deadline = asyncio.get_running_loop().time() + ARCHIVE_WAIT_S
        while True:
            self.trace = await trace_message(self._deps, self._tenant_id, message_id, hint)
            reached = {level.name: level for level in self.trace.levels if level.reached}
            late = asyncio.get_running_loop().time() > deadline
            if late or all(name in reached for name in LEVELS):
                return {name: reached[name].after_ms if name in reached else None for name in LEVELS}
            await asyncio.sleep(STEP_S)


def place_lines(trace: MessageTrace | None) -> list[str]:
    """Where the sample message lies, for a reader who wants to look for himself."""
    if trace is None or trace.message is None:
        return []
    lines = [f"  {level.name:<10} {_at(level.after_ms):>9}  {level.detail}" for level in trace.levels]
    return [f"one message, level by level (`qim trace {trace.message_id}`):", *lines]


def _at(after_ms: int | None) -> str:
    return "" if after_ms is None else f"+{after_ms} ms"
