"""Drivers that repeat themselves: at most one line per kind of message and interval, and no debug lines.

Faust's worker opens the root logger at DEBUG and filters in the handler: aiokafka then builds a record
per partition and fetch, a fifth of its thread's CPU, to be thrown away.

While a broker is away aiokafka logs about sixty errors per second, all saying the same. The first of
each kind passes; what was held back is counted in the next line of its kind.

Strangers repeat themselves, too: servers log each request that is none, aiohttp with a traceback and what
was sent. Of those a line without either is left, now and then: nobody fills a disk or writes into a log.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

NOISY: Final = (
    "aiokafka",
    "aiokafka.client",
    "aiokafka.cluster",
    "aiokafka.conn",
    "aiokafka.consumer.consumer",
    "aiokafka.consumer.fetcher",
    "aiokafka.consumer.group_coordinator",
    "aiohttp.server",
    "uvicorn.error",
    "qim_streams.commit.rpc_listener",
    "qim_streams.streaming.producer",
    "qim_streams.streaming.topics",
    "qim_streams.trace.kafka_log",
)
CHATTY: Final = ("aiokafka", "faust", "mode", "asyncio")
INTERVAL_S: Final = 5.0
_KINDS_MAX: Final = 1_000


class NoForeignWords(logging.Filter):
    """Takes what a stranger sent out of a record about a request that could not be read."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Always true; the record is changed."""
        kind = record.exc_info[0] if record.exc_info else None
        if kind is not None and kind.__module__ == "aiohttp.http_exceptions":
            record.msg, record.args = "a request could not be read: %s", (kind.__name__,)
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


class QuietRepeats(logging.Filter):
    """Passes one record per message template and interval."""

    def __init__(self, interval_s: float = INTERVAL_S, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._interval_s, self._clock = interval_s, clock
        self._next: dict[str, float] = {}
        self._held: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether `record` passes; it gets the number of those held back since the last one."""
        if record.levelno < logging.WARNING or record.levelno >= logging.CRITICAL:
            return True
        kind, now = str(record.msg), self._clock()
        if now < self._next.get(kind, 0.0):
            self._held[kind] = self._held.get(kind, 0) + 1
            return False
        if len(self._next) >= _KINDS_MAX:
            self._next.clear()
            self._held.clear()
        self._next[kind] = now + self._interval_s
        held = self._held.pop(kind, 0)
        if held:
            record.msg = f"{record.msg} ({held} more of these)"
        return True


def quiet_drivers() -> None:
    """Put the filter on the loggers that repeat themselves, and INFO on those whose level nobody chose.

    Once per process is enough; twice is harmless.
    """
    for name in CHATTY:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    server = logging.getLogger("aiohttp.server")
    if not any(isinstance(item, NoForeignWords) for item in server.filters):
        server.addFilter(NoForeignWords())  # before the other: it counts by what is said
    for name in NOISY:
        logger = logging.getLogger(name)
        if not any(isinstance(item, QuietRepeats) for item in logger.filters):
            logger.addFilter(QuietRepeats())
