"""How long a broker may hold a fetch: not at all while it is quiet, a few milliseconds under load.

A fetch has a price that does not depend on what it brings (a request, a wake-up, a batch through the whole
stage). At low rates answering at once is right: latency is all that counts. At high rates records come
faster than a stage can turn around for each of them, and a wait of a few milliseconds makes one fetch out
of ten. So the wait grows with the rate that was seen, up to `WAIT_MAX_MS`, and the broker answers earlier
when `MIN_BYTES` are there.

Pure: time comes in as an argument.
"""

from typing import Final, NamedTuple

QUIET_PER_S: Final = 300.0  # records a second below which nothing waits
WAIT_PER_RECORD_RATE: Final = 1 / 250.0  # milliseconds of wait per record a second
WAIT_MAX_MS: Final = 20
MIN_BYTES: Final = 256 * 1024
WINDOW_S: Final = 0.1
_KEEP: Final = 0.5  # weight of the past per window


class Hold(NamedTuple):
    """What a fetch asks of the broker: answer when there are `min_bytes`, or after `wait_ms`."""

    min_bytes: int
    wait_ms: int


class FetchPace:
    """The pace of one consumer.

    `idle` is what a fetch asks for when it is quiet, and always if it waits for more than one byte: such a
    consumer is in no hurry at all.
    """

    def __init__(self, idle: Hold, *, wait_max_ms: int = WAIT_MAX_MS) -> None:
        self._idle, self._wait_max_ms = idle, wait_max_ms
        self._since, self._count, self._rate = 0.0, 0, 0.0

    def note(self, records: int, now_s: float) -> Hold:
        """Count what a fetch brought at `now_s` (a monotonic clock); what the next one should ask for."""
        self._count += records
        elapsed = now_s - self._since
        if elapsed >= WINDOW_S:
            windows = min(elapsed / WINDOW_S, 16.0)
            keep = _KEEP**windows
            self._rate = keep * self._rate + (1.0 - keep) * self._count / elapsed
            self._since, self._count = now_s, 0
        if self._rate < QUIET_PER_S or self._idle.min_bytes > 1:
            return self._idle
        wait_ms = min(self._wait_max_ms, max(1, round(self._rate * WAIT_PER_RECORD_RATE)))
        return Hold(MIN_BYTES, wait_ms)
