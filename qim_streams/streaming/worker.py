"""The Faust worker, without the second that it sleeps before its process ends.

mode's worker runs a task of one second at its end, to gather what still runs. By then the application has
drained, committed and closed everything in order (`app.on_shutdown`), and a restart of the role waits for the
process to end: the state directory is its until then.

Spec: §11.
"""

import asyncio

import faust

LAST_TURN_S = 0.02  # for callbacks that are due


class PromptWorker(faust.Worker):
    """Ends when everything has ended."""

    async def _sentinel_task(self) -> None:
        await asyncio.sleep(LAST_TURN_S)
