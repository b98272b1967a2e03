"""The Faust worker, without what it does between its work's end and its process's.

mode's worker runs a task of one second at its end, to gather what still runs; then the interpreter frees
everything that was ever imported, piece by piece: a fifth of a second of a core, and many of a worker that
gives way to others on a busy machine. By then the application has drained, committed and closed everything
in order (`app.on_shutdown`), and a restart of the role waits for the process to end: the state directory is
its until then.

Invariants: a process that ends for an error ends with it, as mode has it.

Spec: §11.
"""

import asyncio
import logging
import os
import sys
from typing import Final, NoReturn

import faust

LAST_TURN_S: Final = 0.02  # for callbacks that are due


def _leave() -> NoReturn:
    """End now, with what was said written."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class PromptWorker(faust.Worker):
    """Ends when everything has ended."""

    def stop_and_shutdown(self) -> None:
        """Stop everything; returns only where an error is on its way."""
        super().stop_and_shutdown()
        if sys.exc_info()[0] is None:
            _leave()

    async def _sentinel_task(self) -> None:
        await asyncio.sleep(LAST_TURN_S)
