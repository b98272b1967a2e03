"""Messages from whichever tier holds them: the hot tier, else the archive.

The hot tier is asked first and the archive after it: a message that is trimmed in between is in the archive
already. What it does not do: keep anything.

Spec: §14.8.
"""

import logging
from collections.abc import Sequence
from typing import Protocol

from qim_streams.errors import StoreError

log = logging.getLogger(__name__)

Address = tuple[str, str, int]


class Records(Protocol):
    """A place that holds MessageRecords."""

    async def records(self, wanted: Sequence[Address]) -> list[bytes | None]:
        """MessageRecord bytes by (tenant, conversation, seq), None where this place has none."""


class HotThenArchive:
    """`Records` of both tiers, for a reader that can do without what only an unreachable archive holds."""

    def __init__(self, hot: Records, archive: Records) -> None:
        self._hot, self._archive = hot, archive

    async def records(self, wanted: Sequence[Address]) -> list[bytes | None]:
        """See `Records`. Errors of the hot tier are raised; an archive that fails counts as empty.

        Pushing is best effort: a message that was trimmed before it was pushed waits for no archive.
        """
        found = await self._hot.records(wanted)
        missing = [index for index, record in enumerate(found) if record is None]
        if missing:
            try:
                rows = await self._archive.records([wanted[index] for index in missing])
            except StoreError as error:
                log.warning("%d messages are not in the hot tier, and the archive: %s", len(missing), error)
                return found
            for index, row in zip(missing, rows, strict=True):
                found[index] = row
        return found
