"""Table recovery that ends: two repairs of Faust's.

* The signal "all changelog records are applied" is cleared by its sender at once; a waiter that comes a
  moment later waits for ever. `KeptSignal` keeps it until the recovery that it belongs to has taken it.
* Recovery waits for the record at the end of each changelog; where compaction, retention or a control
  record left a hole there, it never comes. When the driver has read past the end and nothing arrived, the
  partition is read again once from its last record; the same result again means that there is none.

Spec: §14.7.
"""

import asyncio
import logging
from typing import Any, Final

from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery
from faust.types import TP
from mode import Service

log = logging.getLogger(__name__)

_LOOK_INTERVAL_S: Final = 1.0


class KeptSignal(asyncio.Event):
    """An event that only its owner clears; `clear` does nothing."""

    def clear(self) -> None:
        """Kept: see `drop`."""

    def drop(self) -> None:
        """Clear for good, at the start of a recovery."""
        super().clear()


class EndingRecovery(Recovery):
    """Faust's recovery with the two repairs of the module text."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kept_signal = KeptSignal()
        self._signal_recovery_end = self._kept_signal
        self._looked_again: dict[TP, int] = {}

    def _set_recovery_started(self) -> None:
        self._kept_signal.drop()
        self._looked_again.clear()
        super()._set_recovery_started()

    @Service.task
    async def _look_past_holes(self) -> None:
        async for _ in self.itertimer(_LOOK_INTERVAL_S, name="recovery-holes"):
            if self.in_recovery and self.tables.changelog_queue.empty():
                for tp in self._read_through():
                    await self._look_again(tp)

    def _read_through(self) -> list[TP]:
        """Changelog partitions that the driver has read to the end while their last record is missing."""
        position = self.app.consumer.fetch_position
        missing = [tp for tp, count in self.active_remaining().items() if count > 0 and tp in self.active_tps]
        return [tp for tp in missing if (position(tp) or 0) > self.active_highwaters[tp]]

    async def _look_again(self, tp: TP) -> None:
        offset, end = self.active_offsets[tp], self.active_highwaters[tp]
        if self._looked_again.get(tp) != offset:
            self._looked_again[tp] = offset
            await self.app.consumer.seek_wait({tp: max(offset, 0)})
            return
        log.warning("%s[%d]: no record after offset %d: the changelog ends with a hole", *tp, offset)
        self.active_offsets[tp] = end  # the signal follows within the wait of Faust's reading loop (5 s)


class PromptTableManager(TableManager):
    """Faust's table manager without its first second of sleep: every table is declared at import."""

    _recovery: EndingRecovery | None = None

    async def on_start(self) -> None:
        """Register the tables and start recovery."""
        if not self.should_stop:
            await self._update_channels()
            await self.recovery.start()

    @property
    def recovery(self) -> EndingRecovery:
        """The recovery service of this manager."""
        if self._recovery is None:
            self._recovery = EndingRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery
