"""When a provider is not asked, and when a target is not: circuit breaker and back-off per target. Pure.

A provider that fails `failures_max` times in a row is left alone for a while, which doubles each time it
fails again; then a single probe goes out. A target (a device) that a provider called busy is left alone on
its own. Time comes in as milliseconds of any one clock.

Spec: §6. Scenarios H8 H11.
"""

from typing import Final

from qim_streams.lru import LruMap
from qim_streams.notification.rules import backoff_ms

FAILURES_MAX: Final = 5
OPEN_FIRST_MS: Final = 1_000
OPEN_LAST_MS: Final = 60_000
TARGET_FIRST_MS: Final = 1_000
TARGET_LAST_MS: Final = 300_000
TARGETS_MAX: Final = 100_000
PROBE: Final = 1


class CircuitBreaker:
    """Of one provider."""

    def __init__(self, failures_max: int = FAILURES_MAX) -> None:
        self._failures_max = failures_max
        self._failures = 0  # in a row
        self._opened = 0  # times in a row
        self._until = 0
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Whether the provider failed too often and has not answered since."""
        return self._opened > 0

    def room(self, now_ms: int, wanted: int) -> int:
        """How many calls may begin now, at most `wanted`."""
        if now_ms < self._until:
            return 0
        if not self.is_open:
            return wanted
        return 0 if self._probing else min(PROBE, wanted)

    def wait_ms(self, now_ms: int) -> int:
        """How long to wait before asking for room again; 0: now."""
        return max(0, self._until - now_ms)

    def began(self, calls: int) -> None:
        """Calls were begun; while open, that is the probe."""
        self._probing = self.is_open and calls > 0

    def answered(self) -> None:
        """The provider answered, whatever it said of the notification."""
        self._failures = self._opened = 0
        self._probing = False

    def failed(self, now_ms: int, chance: float, retry_after_ms: int | None = None) -> None:
        """The provider did not do its work. What it asks for is kept to; `chance` in [0, 1)."""
        probing, self._probing = self._probing, False
        self._failures += 1
        if retry_after_ms is not None:
            self._until = max(self._until, now_ms + retry_after_ms)
        # Calls that were under way when it opened say nothing new.
        if probing or (not self.is_open and self._failures >= self._failures_max):
            self._opened += 1
            self._failures = 0
            self._until = max(
                self._until, now_ms + backoff_ms(self._opened, OPEN_FIRST_MS, OPEN_LAST_MS, chance)
            )


class TargetBackoff:
    """Targets that are left alone for a while; bounded, the one used longest ago is forgotten."""

    def __init__(self, targets_max: int = TARGETS_MAX) -> None:
        self._targets: LruMap[bytes, tuple[int, int]] = LruMap(targets_max, targets_max)

    def not_before(self, target: bytes) -> int:
        """When the target may be asked again, ms; 0: now."""
        known = self._targets.get(target)
        return 0 if known is None else known[1]

    def busy(self, target: bytes, now_ms: int, chance: float, retry_after_ms: int | None = None) -> int:
        """The target said "later"; when to ask again, ms."""
        known = self._targets.get(target)
        failures = 1 if known is None else known[0] + 1
        delay = backoff_ms(failures, TARGET_FIRST_MS, TARGET_LAST_MS, chance)
        until = now_ms + max(delay, retry_after_ms or 0)
        self._targets.put(target, (failures, until))
        return until

    def good(self, target: bytes) -> None:
        """The target took a notification."""
        if target in self._targets:
            self._targets.put(target, (0, 0))
