"""ArchivedTargets: reads the targets of edits and recalls that the hot tier no longer has.

A writer asks the archive beside its lanes, never in them: while an archive is slow or away, only the edits
and recalls of old messages wait or are refused; messages go on.

Invariants: at most `waiting_max` requests wait and `at_once` reads run; each is bounded in time; every job
is handed back with the target's record, or answered.

Spec: §8, §14.8.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from qim_streams.archive.tiers import Records
from qim_streams.commit.lane_services import SendJob
from qim_streams.commit.outcome import refused, refused_by
from qim_streams.commit.ports import CommitStatus
from qim_streams.errors import StoreError

log = logging.getLogger(__name__)

WAITING_MAX: Final = 1_000
AT_ONCE_MAX: Final = 16
TIMEOUT_S: Final = 3.0
RETRY_MS: Final = 1_000


class ArchivedTargets:
    """Of one writer process."""

    def __init__(
        self,
        archive: Records,
        waiting_max: int = WAITING_MAX,
        at_once: int = AT_ONCE_MAX,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._archive, self._waiting_max, self._timeout_s = archive, waiting_max, timeout_s
        self._slots = asyncio.Semaphore(at_once)
        self._tasks: set[asyncio.Task[None]] = set()

    def fetch(self, job: SendJob, found: Callable[[SendJob], None]) -> None:
        """Read the target of `job`; then `found` is called with it, or it is answered. Returns at once."""
        if len(self._tasks) >= self._waiting_max:
            job.answer(refused("OVERLOADED", "too many changes of archived messages at once", RETRY_MS))
            return
        task = asyncio.get_running_loop().create_task(self._fetch(job, found), name="archived-target")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fetch(self, job: SendJob, found: Callable[[SendJob], None]) -> None:
        one = job.request
        try:
            async with asyncio.timeout(self._timeout_s), self._slots:
                (record,) = await self._archive.records(
                    [(one.tenant_id, one.conversation_id, one.target_seq)]
                )
        except (StoreError, TimeoutError) as error:
            log.warning("an archived message cannot be changed now: %s", error or type(error).__name__)
            job.answer(refused("STORE_UNAVAILABLE", "the archive cannot be read now", RETRY_MS))
            return
        if record is None:
            job.answer(refused_by(CommitStatus.NO_TARGET))
            return
        job.archived = record
        found(job)
