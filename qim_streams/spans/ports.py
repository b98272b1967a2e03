"""The port of spans: where they go.

Spec: §1.
"""

from collections.abc import Sequence
from typing import Protocol

from qim_streams.spans.rules import StageSpan


class SpanSink(Protocol):
    """Takes spans of sampled messages. Never waits, and loses them rather than hold up a stage."""

    def start(self) -> None:
        """Get ready. ConfigError when it cannot: what is missing, and what to do."""

    def emit(self, spans: Sequence[StageSpan]) -> None:
        """Take spans; returns at once. What is over the sink's bound is dropped."""

    def close(self, timeout_s: float) -> None:
        """Send what is left, for at most `timeout_s` (blocking), and drop the rest."""
