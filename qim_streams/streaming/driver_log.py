"""What the Kafka client library says, without repeating itself.

While a broker is away librdkafka reports every attempt of every connection, many a second. One line of a
kind in `REPEAT_S` tells as much, and how many were left out.
"""

import logging
import time
from collections.abc import Callable

REPEAT_S = 5.0
KINDS_MAX = 256
_KIND_CHARS = 24  # "FAIL [client#producer-1]": what happened, not the address and the time


class Throttle(logging.Filter):
    """Lets one record of a kind and level through in `repeat_s`; critical ones always."""

    def __init__(self, repeat_s: float = REPEAT_S, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._repeat_s, self._monotonic = repeat_s, monotonic
        self._seen: dict[tuple[int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written; the count of those left out before is appended."""
        if record.levelno >= logging.CRITICAL:
            return True
        now_s, text = self._monotonic(), record.getMessage()
        kind = (record.levelno, text[:_KIND_CHARS])
        since_s, left_out = self._seen.get(kind, (now_s - self._repeat_s, 0))
        if now_s - since_s < self._repeat_s:
            self._seen[kind] = (since_s, left_out + 1)
            return False
        if len(self._seen) >= KINDS_MAX:
            self._seen.clear()
        self._seen[kind] = (now_s, 0)
        if left_out:
            record.msg, record.args = f"{text} (and {left_out} like it)", ()
        return True


def driver_logger(name: str) -> logging.Logger:
    """The logger to give to a client of the library."""
    logger = logging.getLogger(name)
    if not any(isinstance(one, Throttle) for one in logger.filters):
        logger.addFilter(Throttle())
    return logger
