"""Appends of one turn of the event loop go to the log as one call.

A call to the producer costs a hundred microseconds, whatever it brings (`streaming.producer`).

Invariants: order is the order of `append`; every future ends as the call that carried it.

Spec: §10.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from qim_streams.errors import QimError, StoreError
from qim_streams.log_ports import Outgoing

TOPIC = "qim.room.v1"
AppendNowait = Callable[[Sequence[Outgoing]], Awaitable[list[int]]]


class TurnAppends:
    """`RoomLog` on a call that hands records over at once and is awaited for their offsets."""

    def __init__(self, append_nowait: AppendNowait) -> None:
        self._append = append_nowait
        self._turn: list[tuple[Outgoing, asyncio.Future[int]]] = []
        self._calls: set[asyncio.Task[None]] = set()

    def append(self, partition: int, key: bytes, value: bytes) -> "asyncio.Future[int]":
        """See `RoomLog.append`."""
        loop = asyncio.get_running_loop()
        if not self._turn:
            loop.call_soon(self._flush)
        future: asyncio.Future[int] = loop.create_future()
        self._turn.append((Outgoing(TOPIC, partition, key, value), future))
        return future

    def _flush(self) -> None:
        turn, self._turn = self._turn, []
        try:
            # Handed over in this very turn: the next turn's records come behind.
            waiting = self._append([record for record, _ in turn])
        except QimError as error:
            _fail(turn, error)
            return
        task = asyncio.get_running_loop().create_task(self._settle(waiting, turn))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _settle(
        self, waiting: Awaitable[list[int]], turn: list[tuple[Outgoing, asyncio.Future[int]]]
    ) -> None:
        try:
            offsets = await waiting
        except asyncio.CancelledError:
            _fail(turn, StoreError("the room log is closing"))
            raise
        except QimError as error:
            _fail(turn, error)
            return
        for (_, future), offset in zip(turn, offsets, strict=True):
            if not future.done():
                future.set_result(offset)


def _fail(turn: list[tuple[Outgoing, asyncio.Future[int]]], error: QimError) -> None:
    for _, future in turn:
        if not future.done():
            future.set_exception(error)
            future.exception()  # whoever waits gets it; nobody waiting is no defect
