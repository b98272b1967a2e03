"""Keeps first, then hands out: the order between the store, the application and the server.

What one connection brings and what the application does collects here; one transaction takes all of it
(so a slow disk makes larger transactions, not a longer queue). Once it is kept, and not before, events
and marks go to the application, receipts to their senders, and new messages to the session that sends
them. A slow store works in a thread of its own; the event loop never waits for it.

Invariants: one transaction at a time; things are handed out in the order in which they were added; a
store or a receiver that fails ends the journal and hands out nothing more, because going on could skip
what was not kept; the application's progress (`took`) is kept with the next transaction, and at the
latest after 256 events, and when it has caught up, or (a slow store) after 50 ms: so much may be given
again by the next process when this one is killed.

Spec: §3 (5), §7, §8.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from qim_streams.client.deliveries import Delivery, Gap
from qim_streams.client.sends import Outgoing
from qim_streams.client.store import Change, LocalState, LocalStore, Rebuild, Unsent
from qim_streams.wire.frames import Event

TOOK_MAX = 256
TOOK_DELAY_S = 0.05


@dataclass(slots=True)
class Batch:
    """What goes into one transaction and is handed out after it."""

    deliveries: list[Delivery] = field(default_factory=list)
    sends: list[Outgoing] = field(default_factory=list)
    told: list[Callable[[], None]] = field(default_factory=list)  # called once all this is kept
    settled: list[str] = field(default_factory=list)
    history: dict[str, int | None] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)


class Journal:
    """Between a session, a store and an application. Runs on one event loop.

    `hand_out` gets each batch once it is kept; `failed` the one exception that ends the journal.
    """

    def __init__(
        self,
        store: LocalStore,
        state: LocalState,
        hand_out: Callable[[Batch], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.owner, self.cursor, self.rebuild = state.owner, state.cursor, state.rebuild
        self._store, self._hand_out, self._failed = store, hand_out, failed
        self._number = state.number  # of the last event
        self._given = state.number - len(state.pending)
        self._given_kept = self._given
        self._next = Batch()
        self._in_work = 0  # deliveries of the transaction that is under way
        self._dirty = self._busy = self._broken = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._pool: ThreadPoolExecutor | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """Deliveries that are not handed out yet."""
        return len(self._next.deliveries) + self._in_work

    # -- what is to be kept

    def add(self, deliveries: Sequence[Delivery], owner: str | None, cursor: str | None) -> None:
        """Deliveries, and the cursor that stands after them. `write` follows."""
        self._next.deliveries.extend(deliveries)
        self.owner, self.cursor, self._dirty = owner, cursor, True

    def add_history(self, rebuild: Rebuild, history: Mapping[str, int | None], gaps: Sequence[Gap]) -> None:
        """How far the rebuild is. `write` follows."""
        self.rebuild, self._dirty = rebuild, True
        self._next.history.update(history)
        self._next.gaps.extend(gaps)

    def send(self, message: Outgoing, told: Callable[[], None] | None) -> None:
        """A message to keep and then to send; `told` is called once it is kept. `write` follows."""
        self._next.sends.append(message)
        self._tell(told)

    def settle(self, client_message_id: str, told: Callable[[], None] | None) -> None:
        """A message leaves the outbox; `told` is called once that is kept. `write` follows."""
        self._next.settled.append(client_message_id)
        self._tell(told)

    def _tell(self, told: Callable[[], None] | None) -> None:
        if told is not None:
            self._next.told.append(told)
        self._dirty = True

    def took(self, events: int, caught_up: bool) -> None:
        """The application is done with so many more events; `caught_up`: nothing more lies ready."""
        self._given += events
        behind, slow = self._given - self._given_kept, self._store.is_slow
        if behind >= TOOK_MAX or (behind and caught_up and not slow):
            self._keep_taken()
        elif behind and slow and self._timer is None and not self._broken:
            self._timer = asyncio.get_running_loop().call_later(TOOK_DELAY_S, self._keep_taken)

    def _keep_taken(self) -> None:
        self._stop_timer()
        if self._given > self._given_kept:
            self._dirty = True
            self.write()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- keeping

    def write(self) -> None:
        """Keep and hand out what was added; returns at once when a transaction is under way."""
        while self._dirty and not self._busy and not self._broken:
            batch, change = self._take()
            self._busy, self._in_work = True, len(batch.deliveries)
            self._idle.clear()
            if self._store.is_slow:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(1, "qim-store")
                work = asyncio.get_running_loop().run_in_executor(self._pool, self._store.apply, change)
                work.add_done_callback(lambda done, batch=batch: self._written(batch, done))  # type: ignore[misc]
                return
            try:
                self._store.apply(change)
            except Exception as failure:  # noqa: BLE001 - whatever a store raises: nothing may be skipped
                self._end(failure)
                return
            self._release(batch)

    def _written(self, batch: Batch, done: "asyncio.Future[None]") -> None:
        failure = done.exception() if not done.cancelled() else RuntimeError("the store's thread is gone")
        if failure is not None:
            self._end(failure if isinstance(failure, Exception) else RuntimeError(str(failure)))
            return
        self._release(batch)
        self.write()

    def _release(self, batch: Batch) -> None:
        self._in_work = 0
        try:
            self._hand_out(batch)
        except Exception as failure:  # noqa: BLE001 - the application's: it did not take what it got
            self._end(failure)
            return
        self._busy = False
        if not self._dirty:
            self._idle.set()

    def _end(self, failure: Exception) -> None:
        self._broken, self._busy, self._in_work = True, False, 0
        self._idle.set()
        self._failed(failure)

    def _take(self) -> tuple[Batch, Change]:
        batch, self._next = self._next, Batch()
        self._dirty = False
        events = [one for one in batch.deliveries if type(one) is Event]
        first = self._number + 1
        self._number += len(events)
        self._given_kept = self._given
        change = Change(
            self.owner,
            self.cursor,
            self.rebuild,
            self._given,
            first,
            events,
            [
                Unsent(
                    one.client_message_id,
                    one.body,
                    one.conversation_id,
                    one.to_user_id,
                    one.kind,
                    one.target_seq,
                    one.mentions,
                )
                for one in batch.sends
            ],
            batch.settled,
            batch.history,
            batch.gaps,
        )
        return batch, change

    async def drained(self) -> None:
        """Wait until everything that was added is kept and handed out, or the journal has ended."""
        while (self._dirty or self._busy) and not self._broken:
            await self._idle.wait()

    async def close(self) -> None:
        """Keep what is left, then close the store. Safe to repeat."""
        self._keep_taken()
        self.write()
        await self.drained()
        self._broken = True
        if self._pool is None:
            self._store.close()
            return
        pool, self._pool = self._pool, None
        await asyncio.get_running_loop().run_in_executor(pool, self._store.close)
        pool.shutdown(wait=False)
