"""How far a message came and when: the demonstration's summary, read from the logs by a trace.

Spec: §1 (the five levels).
"""

import asyncio
from collections.abc import Callable, Mapping

from qim_streams.demo.ports import LEVELS
from qim_streams.trace.model import MessageTrace
from qim_streams.trace.service import TraceDeps, TraceHint, trace_message

ARCHIVE_WAIT_S, STEP_S = 20.0, 0.3


class TraceProbe:
    """A `LevelProbe` that traces the message, and waits a moment for the archive."""

    def __init__(self, deps: TraceDeps, tenant_id: str, now_ms: Callable[[], int]) -> None:
        self._deps, self._tenant_id, self._now_ms = deps, tenant_id, now_ms
        self._reached: dict[str, int] = {}
        self.trace: MessageTrace | None = None

    async def levels(self, conversation_id: str, message_id: bytes) -> Mapping[str, int | None]:
        """Milliseconds from committed_at to each level that is proven, None for the others."""
        hint = TraceHint(conversation_id=conversation_id)
        deadline = asyncio.get_running_loop().time() + ARCHIVE_WAIT_S
        while True:
            self.trace = await trace_message(self._deps, self._tenant_id, message_id, hint)
            self._note(self.trace)
            late = asyncio.get_running_loop().time() > deadline
            if late or all(name in self._reached for name in LEVELS):
                return {name: self._reached.get(name) for name in LEVELS}
            await asyncio.sleep(STEP_S)

    def _note(self, trace: MessageTrace) -> None:
        """Remember each level's time; one without a record of its own (the archive) counts when seen."""
        for level in trace.levels:
            if level.reached and trace.message is not None:
                seen_ms = self._now_ms() - trace.message.committed_at
                self._reached.setdefault(level.name, seen_ms if level.after_ms is None else level.after_ms)


def place_lines(trace: MessageTrace | None) -> list[str]:
    """Where the sample message lies, for a reader who wants to look for himself."""
    if trace is None or trace.message is None:
        return []
    lines = [f"  {level.name:<10} {_at(level.after_ms):>9}  {level.detail}" for level in trace.levels]
    return [f"one message, level by level (`qim trace {trace.message_id}`):", *lines]


def _at(after_ms: int | None) -> str:
    return "" if after_ms is None else f"+{after_ms} ms"
