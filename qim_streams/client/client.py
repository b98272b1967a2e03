"""`QimClient`: a device that stays connected, sends until answered, and gives out every event once.

The protocol lives in ``session``, the connection in ``keeper`` and ``link``; this module is what the
application calls, and hands deliveries to it. Nothing is started per message.

Invariants: a delivery reaches the local store before the application; a send is settled once, with a
receipt, a refusal, or `ClientStopped` (outcome UNKNOWN) when the client ends first; after a terminal
error nothing is sent any more.

Spec: §3, §6, §7, §8 (step 0). Scenarios A13 C1 C2 I10 I13.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from random import random
from typing import NamedTuple

import aiohttp

from qim_streams.client.deliveries import Delivery, RebuildRequired
from qim_streams.client.groups import Groups
from qim_streams.client.keeper import Keeper, TokenSource, websocket_url
from qim_streams.client.options import ClientOptions
from qim_streams.client.sends import Outgoing
from qim_streams.client.session import Phase, Session
from qim_streams.client.store import LocalStore, Unsent
from qim_streams.errors import AdmissionRefused, ClientStopped, ConfigError, QimError
from qim_streams.wire.frames import Error, Event, SendAck

Settled = Callable[["SendReceipt | QimError"], None]


class SendReceipt(NamedTuple):
    """The message is committed. Repeating the send with its client_message_id gives the same."""

    client_message_id: str
    conversation_id: str
    message_id: bytes
    conversation_seq: int
    committed_at: int


class QimClient:
    """One device of one user.

    `token` is an access token or an async function that gets one (asked at each connection).
    `on_deliveries` gets deliveries in batches, in place of `events()`; it must not block.
    `on_rebuild` runs in a task after CURSOR_EXPIRED once the client is online again; when it returns,
    the history counts as closed. `http` is a session to share; it is not closed here.
    """

    def __init__(
        self,
        url: str,
        token: TokenSource,
        device_id: str,
        *,
        options: ClientOptions | None = None,
        store: LocalStore | None = None,
        on_deliveries: Callable[[Sequence[Delivery]], None] | None = None,
        on_rebuild: Callable[["QimClient"], Awaitable[None]] | None = None,
        http: aiohttp.ClientSession | None = None,
    ) -> None:
        self.options = options or ClientOptions()
        self.groups = Groups(self, random)
        self._store, self._http, self._own_http = store, http, http is None
        self._on_deliveries, self._on_rebuild = on_deliveries, on_rebuild
        state = store.load() if store is not None else None
        self.session = Session(
            device_id,
            self.options,
            random,
            state.cursor if state else None,
            state.positions if state else None,
        )
        self.keeper = Keeper(
            self.session, self.options, websocket_url(url), token, self._received, self._room
        )
        self._rebuild_pending = state.rebuild_pending if state else False
        self._saved_cursor = self.session.cursor
        for unsent in state.unsent if state else ():
            self.session.send(Outgoing(*unsent, settled=self._settle))
        self._waiting: dict[str, Settled] = {}
        self._deliveries: deque[Delivery] = deque()
        self._arrived, self._space = asyncio.Event(), asyncio.Event()
        self._changed = asyncio.Event()  # online, offline or stopped: waiters look again
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._rebuild_task: asyncio.Task[None] | None = None
        self._stopped: QimError | None = None
        self._state = (Phase.OFFLINE, False)

    # -- state

    @property
    def user_id(self) -> str:
        """The user of the token, once AUTH_OK came; else empty."""
        return self.session.auth.user_id if self.session.auth else ""

    @property
    def cursor(self) -> str | None:
        """The cursor as of now; it covers only what was given out."""
        return self.session.cursor

    @property
    def connections(self) -> int:
        """How many times this client came online."""
        return self.keeper.connections

    @property
    def is_online(self) -> bool:
        """Whether live events come."""
        return self.session.phase is Phase.ONLINE

    @property
    def rebuild_pending(self) -> bool:
        """Whether messages may be missing that only history has (Spec: §8)."""
        return self._rebuild_pending

    # -- life

    async def connect(self, timeout_s: float = 30.0) -> None:
        """Connect and sync; returns when online. The client keeps itself connected until `close`.

        ClientStopped for a terminal answer; TimeoutError when it is not online in time (it goes on
        trying: close it or wait again with `wait_online`).
        """
        self.start()
        await self.wait_online(timeout_s)

    def start(self) -> None:
        """Begin to connect without waiting; what is sent meanwhile goes out once it can."""
        if self._task is None and self._stopped is None:
            if self._http is None:
                self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
            name = f"qim-client-{self.session.device_id}"
            self._task = asyncio.create_task(self._run(self._http), name=name)

    async def wait_online(self, timeout_s: float | None = None) -> None:
        """Wait until live events come. ClientStopped, TimeoutError as in `connect`."""
        async with asyncio.timeout(timeout_s):
            while not self.is_online:
                await self._wait_change()

    async def wait_authenticated(self) -> None:
        """Wait until requests can be sent. ClientStopped when that will never be."""
        while self.session.auth is None:
            await self._wait_change()

    async def close(self) -> None:
        """End the connection. Sends without an answer end with ClientStopped; a store keeps them."""
        self._closing = True
        task, self._task = self._task, None
        if task is not None:
            self.keeper.end(task)
            await asyncio.wait([task])
        if self._rebuild_task is not None:
            self._rebuild_task.cancel()
            await asyncio.wait([self._rebuild_task])
        self._stop(ClientStopped("CLOSED", "the client was closed"))
        if self._own_http and self._http is not None:
            await self._http.close()
        if self._store is not None:
            self._store.close()

    async def __aenter__(self) -> "QimClient":
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- sending

    async def send(
        self,
        body: bytes,
        *,
        conversation_id: str | None = None,
        to_user_id: str | None = None,
        client_message_id: str | None = None,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Send a message to a conversation or a user and wait for its receipt.

        It is repeated under the same client_message_id until it is answered, over any number of
        connections. AdmissionRefused: not accepted (nothing happened). ClientStopped, TimeoutError: the
        outcome is unknown; sending again with the same client_message_id is safe and tells.
        """
        future: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()

        def settled(result: SendReceipt | QimError) -> None:
            if future.done():
                return
            if isinstance(result, QimError):
                future.set_exception(result)
            else:
                future.set_result(result)

        message_id = self.submit(
            body,
            settled,
            conversation_id=conversation_id,
            to_user_id=to_user_id,
            client_message_id=client_message_id,
        )
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        finally:
            if not future.done() or future.cancelled():
                self.give_up(message_id)

    def submit(
        self,
        body: bytes,
        settled: Settled,
        *,
        conversation_id: str | None = None,
        to_user_id: str | None = None,
        client_message_id: str | None = None,
    ) -> str:
        """`send` without waiting: `settled` is called once with the receipt or the error.

        Returns the client_message_id. AdmissionRefused when too many messages wait.
        """
        if (conversation_id is None) == (to_user_id is None):
            raise ConfigError("send: give either conversation_id or to_user_id")
        if self._stopped is not None:
            raise self._stopped
        message_id = client_message_id or secrets.token_hex(16)
        self.session.send(Outgoing(message_id, body, conversation_id, to_user_id, self._settle))
        self._waiting[message_id] = settled
        if self._store is not None:
            self._store.add_unsent(Unsent(message_id, body, conversation_id, to_user_id))
        self.wake()
        return message_id

    def give_up(self, client_message_id: str) -> None:
        """Stop repeating a message; whether it was committed stays unknown."""
        if self.session.sends.cancel(client_message_id):
            self._waiting.pop(client_message_id, None)
            if self._store is not None:
                self._store.settle(client_message_id)

    def _settle(self, message: Outgoing, answer: SendAck | Error) -> None:
        if self._store is not None:
            self._store.settle(message.client_message_id)
        settled = self._waiting.pop(message.client_message_id, None)
        if settled is None:
            return
        if isinstance(answer, SendAck):
            settled(SendReceipt(*answer[1:]))
        else:
            settled(AdmissionRefused(answer.name, answer.detail))

    # -- receiving

    async def events(self) -> AsyncIterator[Delivery]:
        """Deliveries as they come: events once each, in order per conversation, and marks of the sync.

        One reader at a time. Ends when the client is closed; raises ClientStopped after a terminal error.
        """
        while True:
            while self._deliveries:
                yield self._deliveries.popleft()
                if len(self._deliveries) == self.options.events_max // 2:
                    self._space.set()
            if self._stopped is not None:
                if self._closing:
                    return
                raise self._stopped
            self._arrived.clear()
            await self._arrived.wait()

    async def checkpoint(self, timeout_s: float = 30.0) -> None:
        """Pull what there is up to the watermark, so that the cursor covers it; returns when it does."""
        await self.wait_online(timeout_s)
        self.session.checkpoint()
        self._received()
        self.wake()
        async with asyncio.timeout(timeout_s):
            while self.session.coverage.is_pulling:
                await self._wait_change()

    def wake(self) -> None:
        """Frames were queued in the session: write them."""
        self.keeper.wake()

    def _deliver(self) -> None:
        session = self.session
        shown, session.shown = session.shown, []
        for one in shown:
            if type(one) is RebuildRequired:
                self._rebuild_pending = True
        if self._store is not None and (shown or session.cursor != self._saved_cursor):
            events = [one for one in shown if type(one) is Event]
            self._store.apply(events, session.cursor, self._rebuild_pending)
            self._saved_cursor = session.cursor
        if not shown:
            return
        if self._on_deliveries is not None:
            self._on_deliveries(shown)
        else:
            self._deliveries.extend(shown)
            self._arrived.set()

    # -- what the connection reports

    async def _run(self, http: aiohttp.ClientSession) -> None:
        try:
            self._stop(await self.keeper.run(http))
        except asyncio.CancelledError:
            raise
        except BaseException as failure:
            # A failing callback or store: going on could skip what it did not take.
            self._stop(ClientStopped("FAILED", f"{type(failure).__name__}: {failure}"))
            raise

    def _received(self) -> None:
        """After each frame and tick: deliver, and tell those who wait for a change of phase."""
        session = self.session
        if session.shown or session.cursor != self._saved_cursor:
            self._deliver()
        state = (session.phase, session.coverage.is_pulling)
        if state != self._state:
            if session.phase is Phase.ONLINE and self._state[0] is not Phase.ONLINE:
                self._went_online()
            self._state = state
            self._change()

    def _went_online(self) -> None:
        if self._rebuild_pending and self._on_rebuild is not None and self._rebuild_task is None:
            self._rebuild_task = asyncio.create_task(self._rebuild(self._on_rebuild))

    async def _rebuild(self, rebuild: Callable[["QimClient"], Awaitable[None]]) -> None:
        try:
            await rebuild(self)
        finally:
            self._rebuild_task = None
        self._rebuild_pending = False
        if self._store is not None:
            self._store.apply((), self.session.cursor, False)

    def _room(self) -> Awaitable[None] | None:
        """None while deliveries may pile up further; else something to wait for."""
        if len(self._deliveries) < self.options.events_max:
            return None
        return self._wait_for_room()

    async def _wait_for_room(self) -> None:
        self._space.clear()
        self.session.pause(True)
        try:
            await self._space.wait()
        finally:
            self.session.pause(False)

    def _change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _wait_change(self) -> None:
        if self._stopped is not None:
            raise self._stopped
        await self._changed.wait()

    def _stop(self, why: QimError) -> None:
        if self._stopped is None:
            self._stopped = why
        self.session.sends.drain()
        waiting, self._waiting = self._waiting, {}
        for settled in waiting.values():
            settled(self._stopped)
        self._arrived.set()
        self._change()
