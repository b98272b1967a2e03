"""Spans in memory: a sink that keeps what stages tell, and spans on it with every message sampled.

Spec: §1.
"""

from collections.abc import Sequence

from qim_streams.spans.rules import Stage, StageSpan
from qim_streams.spans.service import MessageSpans


class MemorySpans:
    """`spans.ports.SpanSink` over a list. `broken`: what `emit` raises, None for nothing."""

    def __init__(self) -> None:
        self.spans: list[StageSpan] = []
        self.broken: Exception | None = None
        self.closed_for_s: float | None = None

    def start(self) -> None:
        """Nothing is opened."""

    def emit(self, spans: Sequence[StageSpan]) -> None:
        """Keep them."""
        if self.broken is not None:
            raise self.broken
        self.spans += spans

    def close(self, timeout_s: float) -> None:
        """Remember that it was asked to."""
        self.closed_for_s = timeout_s

    def of(self, stage: Stage) -> list[StageSpan]:
        """The spans of a stage, in the order in which they were told."""
        return [one for one in self.spans if one.stage is stage]


class TickingClock:
    """Nanoseconds that grow by a millisecond with each look, so that nothing takes no time."""

    def __init__(self, now_ns: int = 1_760_000_000_000_000_000) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        self.now_ns += 1_000_000
        return self.now_ns


def every_message(sink: MemorySpans) -> MessageSpans:
    """Spans of all messages, into `sink`."""
    return MessageSpans(1.0, sink, TickingClock())
