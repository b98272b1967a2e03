"""How long to wait before trying again: exponential with full jitter, never below what the server says.

Pure: the random number comes in as an argument. Spec: §7 (sync_delay_hint_ms, retry_after_ms).
Scenario I10: clients that were dropped together must not come back together.
"""

DOUBLINGS_MAX = 20


def backoff_ms(attempt: int, base_ms: int, cap_ms: int, random: float) -> int:
    """The delay before attempt number `attempt` (from 1), with 0 <= `random` < 1."""
    ceiling = min(cap_ms, base_ms << min(max(attempt - 1, 0), DOUBLINGS_MAX))
    return int(ceiling * random)


def retry_ms(attempt: int, base_ms: int, cap_ms: int, asked_ms: int | None, random: float) -> int:
    """At least what the server asked for, plus jitter of the same size or the back-off, whichever is more."""
    asked = asked_ms or 0
    return asked + max(backoff_ms(attempt, base_ms, cap_ms, random), int(asked * random / 2))


def spread_ms(asked_ms: int, random: float) -> int:
    """At least `asked_ms` and at most half as much again: the server may have asked everybody the same."""
    return asked_ms + int(asked_ms * random / 2)
