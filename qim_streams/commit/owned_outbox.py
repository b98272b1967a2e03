"""OwnedOutbox: an Outbox whose acknowledgements prove that the owner still was the owner.

`begin` appends the barrier of an epoch (`log_fence`). From then on the owner is the only one who should
append to the partition, so what it appends gets one offset after the other. An offset that was skipped is a
record of somebody else, which is looked at in the log: with an older epoch it does not count for anybody, and
we go on; with a newer one there is a barrier before ours, and what we appended does not count.

Invariants: an acknowledgement that is given is one of a record that every reader takes; after a newer epoch
was seen, nothing is handed over and nothing is acknowledged, for good (until `begin` with another epoch). No
round trip is added: only a hole costs a look.

What it does not do: repeat anything; know of leases.

Spec: §3.5, §14.3, §14.6.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from qim_streams.commit.ports import Outbox, OutboxAppend, OutboxReader
from qim_streams.commit.relay import append_all
from qim_streams.errors import FencedError, InvariantViolation, RecordError, StoreUnavailable
from qim_streams.ownership.log_fence import BARRIER_KEY, NO_FENCE, encode_barrier
from qim_streams.records import decode_outbox

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.5


@dataclass(slots=True)
class _Call:
    acked: "asyncio.Future[list[int]]"
    result: "asyncio.Future[list[int]]"


@dataclass(slots=True)
class _Stand:
    """An epoch of ours in a partition."""

    partition: int
    epoch: int
    next: int  # the offset that our next record should get
    calls: deque[_Call] = field(default_factory=deque)
    looking: asyncio.Task[None] | None = None
    newer: int = NO_FENCE  # the epoch that ended ours


class OwnedOutbox:
    """`Outbox` of one writer process over all its partitions."""

    def __init__(
        self,
        outbox: Outbox,
        reader: OutboxReader,
        on_doubt: Callable[[str, BaseException | None], NoReturn],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`on_doubt` does not return: a barrier that is not acknowledged has an unknown outcome."""
        self._outbox, self._reader = outbox, reader
        self._on_doubt, self._sleep = on_doubt, sleep
        self._stands: dict[int, _Stand] = {}

    async def begin(self, partition: int, epoch: int) -> int:
        """Append the barrier of `epoch`; its offset. What older epochs append from now on does not count."""
        barrier = OutboxAppend(partition, BARRIER_KEY, encode_barrier(epoch))
        (offset,) = await append_all(self._outbox, [barrier], self._on_doubt, self._sleep)
        self._stands[partition] = _Stand(partition, epoch, offset + 1)
        return offset

    def append(self, records: Sequence[OutboxAppend]) -> Awaitable[list[int]]:
        """See the port; `records` are of one partition, after `begin`.

        FencedError, at once or awaited: another owner has a newer epoch.
        """
        stand = self._stands[records[0].partition]
        if stand.newer:
            raise FencedError(f"ob:{stand.partition}", stand.epoch, stand.newer)
        acked = asyncio.ensure_future(self._outbox.append(records))
        call = _Call(acked, asyncio.get_running_loop().create_future())
        stand.calls.append(call)
        if acked.done():
            self._settle(stand)
        else:
            acked.add_done_callback(lambda _: self._settle(stand))
        return call.result

    def _settle(self, stand: _Stand) -> None:
        """Give what is acknowledged, in order, as far as it is known to count."""
        while stand.calls and stand.calls[0].acked.done() and stand.looking is None:
            call = stand.calls[0]
            error = asyncio.CancelledError() if call.acked.cancelled() else call.acked.exception()
            if error is None and stand.newer:
                error = FencedError(f"ob:{stand.partition}", stand.epoch, stand.newer)
            if error is None:
                offsets = call.acked.result()
                if offsets[0] != stand.next or offsets[-1] - offsets[0] != len(offsets) - 1:
                    stand.looking = asyncio.ensure_future(self._look(stand, max(offsets)))
                    return
                stand.next = offsets[-1] + 1
            stand.calls.popleft()
            if call.result.done():
                continue
            if error is None:
                call.result.set_result(call.acked.result())
            else:
                call.result.set_exception(error)

    async def _look(self, stand: _Stand, last: int) -> None:
        """Read what lies between our records up to `last`."""
        while True:
            try:
                newest = await self._newest(stand.partition, stand.next, last)
                break
            except StoreUnavailable as error:
                log.warning("ob:%d: foreign records not read yet: %s", stand.partition, error)
                await self._sleep(LOOK_AGAIN_S)
            except InvariantViolation as error:  # retention took them: nobody can say who they were
                log.error("ob:%d: %s", stand.partition, error)
                newest = stand.epoch + 1
                break
        if newest > stand.epoch:
            log.error(
                "ob:%d epoch %d: an owner with epoch %d appends; what we append does not count",
                stand.partition, stand.epoch, newest,
            )  # fmt: skip
            stand.newer = newest
        else:
            log.info("ob:%d: what others appended before %d does not count", stand.partition, last)
            stand.next, call = last + 1, stand.calls.popleft()
            if not call.result.done():
                call.result.set_result(call.acked.result())
        stand.looking = None
        self._settle(stand)

    async def _newest(self, partition: int, start: int, last: int) -> int:
        """The highest epoch of the records `start` to `last`."""
        newest = NO_FENCE
        async for batch in self._reader.read(partition, start):
            for offset, _, value in batch:
                if offset > last:
                    continue
                try:
                    newest = max(newest, decode_outbox(value).fencing_epoch)
                except RecordError:
                    continue  # nothing that a writer appended
        return newest
