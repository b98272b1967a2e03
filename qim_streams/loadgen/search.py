"""The search for the highest rate that holds: doubling until it fails, then halving the interval.

Pure: the caller runs what `Search.next_rate` says and reports the outcome.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Search:
    """`start` is tried first; the answer is exact to `precision` (a share). At most `steps_max` runs."""

    start: float
    precision: float = 0.05
    steps_max: int = 16
    rate_max: float = 1e6
    held: float = 0.0
    failed: float = 0.0  # 0: nothing has failed yet
    steps: list[tuple[float, bool]] = field(default_factory=list)

    def next_rate(self) -> float | None:
        """The rate to try, None when the search has ended."""
        if len(self.steps) >= self.steps_max:
            return None
        if not self.steps:
            return self.start
        if not self.failed:
            doubled = self.held * 2
            return doubled if doubled <= self.rate_max else None
        if not self.held:
            return self.failed / 2 if self.failed > self.start / 64 else None
        if self.failed - self.held <= self.precision * self.failed:
            return None
        return round((self.held + self.failed) / 2, 2)

    def report(self, rate: float, held: bool) -> None:
        """What came of a rate."""
        self.steps.append((rate, held))
        if held:
            self.held = max(self.held, rate)
        else:
            self.failed = min(self.failed, rate) if self.failed else rate
