"""Leaving the process when a promise is in doubt.

A worker that is unsure whether a record was applied, acknowledged or skipped must not go on: Faust's
own shutdown commits offsets, so even an orderly stop may lose the record in question. The process
exits at once; the supervisor starts it again and it resumes at its own watermark.

Exit codes: 70 doubt at run time, 1 a wrong configuration at start (as in ``runtime``).

Spec: §11, §14.1.
"""

import logging
import os
import sys
import threading
from typing import Final, NoReturn

EXIT_DOUBT: Final = 70
EXIT_CONFIG: Final = 1
_FLUSH_SECONDS_MAX: Final = 2.0

log = logging.getLogger(__name__)


def _exit(code: int) -> NoReturn:
    os._exit(code)


def die(why: str, error: BaseException | None = None, *, code: int = EXIT_DOUBT) -> NoReturn:
    """Log `why` (and the traceback of `error`) as critical and end the process now.

    Runs no finalizer and no shutdown hook, so that nothing more is committed. A log handler that
    hangs delays the exit by two seconds at most.
    """
    watchdog = threading.Timer(_FLUSH_SECONDS_MAX, _exit, (code,))
    watchdog.daemon = True
    watchdog.start()
    log.critical("exit %d: %s", code, why, exc_info=error)
    for handler in (*logging.getLogger().handlers, *log.handlers):
        handler.flush()
    sys.stderr.flush()
    try:
        _exit(code)
    finally:
        watchdog.cancel()  # reached only where a test replaced _exit
