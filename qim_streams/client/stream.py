"""The stream of deliveries between the journal and the application: a callback, or a queue to iterate.

Back-pressure: while `backlog` (what waits here and in the journal) is at `events_max`, the socket is not
read; the server then holds its pushes back and at last says LIVE_LOST, which a pull repairs. A callback
is called on the event loop and takes everything at once.

Invariants: nothing is dropped and nothing comes twice; an event counts as taken (`Journal.took`) when the
callback has returned, or when the next one is asked for or the stream is closed.

Spec: §6, §7.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from qim_streams.client.changes import as_delivery
from qim_streams.client.deliveries import Delivery, Stopped
from qim_streams.client.journal import Journal
from qim_streams.errors import QimError
from qim_streams.wire.frames import Event

log = logging.getLogger("qim.client")


class Stream:
    """One reader at a time. `ended` says why there will be no more, or None."""

    def __init__(
        self,
        events_max: int,
        callback: Callable[[Sequence[Delivery]], None] | None,
        journal: Journal,
        ended: Callable[[], QimError | None],
    ) -> None:
        self._events_max, self._callback, self._journal, self._ended = events_max, callback, journal, ended
        self._queue: deque[Delivery] = deque()
        self._in_hand = 0  # events that were given by the iterator and may still be worked on
        self._arrived, self._space = asyncio.Event(), asyncio.Event()
        self._closed = False

    @property
    def backlog(self) -> int:
        """Deliveries that wait for the store or the application."""
        return len(self._queue) + self._journal.waiting

    def give(self, deliveries: Sequence[Delivery]) -> None:
        """Hand out deliveries that were kept; a failing callback raises."""
        if deliveries and self._callback is not None:
            self._callback([as_delivery(one) if type(one) is Event else one for one in deliveries])
            self._journal.took(sum(type(one) is Event for one in deliveries), caught_up=True)
        elif deliveries:
            self._queue.extend(deliveries)
            self._arrived.set()
        if self.backlog < self._events_max:
            self._space.set()

    async def events(self) -> AsyncIterator[Delivery]:
        """See `QimClient.events`."""
        while not self._closed:
            self._took()
            if self._queue:
                one = self._queue.popleft()
                self._in_hand = int(type(one) is Event)
                if self.backlog <= self._events_max // 2:
                    self._space.set()
                yield as_delivery(one) if type(one) is Event else one
                continue
            why = self._ended()
            if why is not None:
                raise why
            self._arrived.clear()
            await self._arrived.wait()

    @property
    def is_full(self) -> bool:
        """Whether no more should be read from the server."""
        return self.backlog >= self._events_max

    async def room(self) -> None:
        """Wait until the application or the store has caught up."""
        while self.is_full:
            self._space.clear()
            await self._space.wait()

    def stop(self, mark: Stopped | None) -> None:
        """There will be no more: give the last mark, and wake the reader to find out why."""
        if mark is not None and self._callback is not None:
            try:
                self._callback([mark])
            except Exception:  # it may be the very callback whose failure is the reason
                log.exception("the application did not take the last mark")
        elif mark is not None:
            self._queue.append(mark)
        self._arrived.set()

    def close(self) -> None:
        """The application wants no more: what is queued stays in the store, if that keeps anything."""
        self._closed = True
        self._took()
        self._arrived.set()

    def _took(self) -> None:
        taken, self._in_hand = self._in_hand, 0
        self._journal.took(taken, caught_up=not self._queue)
