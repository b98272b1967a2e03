"""`QimClient`: a device that stays connected, sends until answered, and gives out every event once.

The protocol lives in ``session``, the connection in ``keeper`` and ``link``, what is kept and handed out
in ``journal`` and ``stream``, what is sent in ``outbox``, what was missed in ``rebuild``; this module is
what the application calls. Nothing is started per message.

Invariants: a delivery is kept in the local store before the application gets it, and a message before
the server does; a send is settled once, with a receipt, a refusal, or `ClientStopped` (outcome UNKNOWN)
when the client ends first; after a terminal error nothing is sent any more.

Spec: §3, §6, §7, §8. Scenarios A13 C1 C2 I10 I13.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from random import random

import aiohttp

from qim_streams.client.conversations import ConversationSet
from qim_streams.client.deliveries import Delivery, SendReceipt, Stopped
from qim_streams.client.groups import Groups
from qim_streams.client.history import History
from qim_streams.client.journal import Batch, Journal
from qim_streams.client.keeper import Keeper, TokenSource, websocket_url
from qim_streams.client.options import ClientOptions, body_bytes_max
from qim_streams.client.outbox import Outbox, Settled
from qim_streams.client.phases import Phase
from qim_streams.client.presence import PresenceWatcher
from qim_streams.client.push import Push
from qim_streams.client.rebuild import Rebuilder
from qim_streams.client.requests import Requests
from qim_streams.client.rooms import Rooms
from qim_streams.client.session import Session
from qim_streams.client.sessions import ListedConversations, Sessions
from qim_streams.client.store import LocalStore, NoStore, Unsent
from qim_streams.client.stream import Stream
from qim_streams.errors import ClientStopped, QimError
from qim_streams.mentions import NOBODY, Mentions
from qim_streams.records import KIND_EDIT, KIND_RECALL

log = logging.getLogger("qim.client")


class QimClient:
    """One device of one user.

    `token` is an access token or an async function that gets one (asked at each connection, and again
    when one is refused). `on_deliveries` gets deliveries in batches, in place of `events()`; it must not
    block. Without a `store` nothing outlives the object. `conversations` makes the `ConversationSet` of
    rebuilds from session and requests. `http` is a session to share; it is not closed here.
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
        conversations: Callable[[Session, Requests], ConversationSet] = ListedConversations,
        http: aiohttp.ClientSession | None = None,
    ) -> None:
        self.options = options or ClientOptions()
        self._http, self._own_http = http, http is None
        self._store = store or NoStore()
        state = self._store.load()
        self.gaps = state.gaps  # marked by rebuilds: messages that history could not give
        self.session = session = Session(device_id, self.options, random, state)
        self.requests = Requests(self, random)
        self.groups = Groups(self.requests)
        self.history = History(self.requests)
        self.sessions = Sessions(session, self.requests)
        self.push = Push(session, self.requests)
        self.presence = PresenceWatcher(session, self.requests)
        self.rooms = Rooms(session, self.requests, random)
        self.keeper = Keeper(session, self.options, websocket_url(url), token, self._received, self._room)
        self._journal = Journal(self._store, state, self._hand_out, self._fail)
        listed = conversations(session, self.requests)
        self._rebuilder = Rebuilder(session, self.requests, listed, self.options, self._received, random)
        self._outbox = Outbox(session, self._journal, body_bytes_max(self.options), state.unsent)
        self._stream = Stream(self.options.events_max, on_deliveries, self._journal, lambda: self._stopped)
        self._pending: list[Delivery] = [*state.pending]  # kept by an earlier process and not given out
        self._changed = asyncio.Event()  # online, offline or stopped: waiters look again
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._rebuild_task: asyncio.Task[None] | None = None
        self._stopped: QimError | None = None
        self._state = (Phase.OFFLINE, False)

    # -- state

    @property
    def user_id(self) -> str:
        """The user, once an AUTH_OK has come (to this store); else empty."""
        return self.session.user_id

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
        return self._rebuilder.is_due

    @property
    def unsent(self) -> int:
        """Messages without a receipt or refusal, those of earlier processes included."""
        return len(self.session.sends)

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
            pending, self._pending = self._pending, []
            try:
                self._stream.give(pending)
            except Exception as failure:  # noqa: BLE001 - the application's: it did not take what was kept
                self._fail(failure)
                return
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
        """End the connection. Sends without an answer end with ClientStopped; a store keeps them.
        What was kept and not taken from `events()` the next client of the store gives out.
        """
        self._closing = True
        self._stream.close()
        task, self._task = self._task, None
        if task is not None:
            self.keeper.end(task)
            await asyncio.wait([task])
        if self._rebuild_task is not None:
            self._rebuild_task.cancel()
            await asyncio.wait([self._rebuild_task])
        await asyncio.gather(self.sessions.close(), self.presence.close())
        await self._journal.close()
        self._stop(ClientStopped("CLOSED", "the client was closed"))
        if self._own_http and self._http is not None:
            await self._http.close()

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
        mentions: Mentions = NOBODY,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Send a message to a conversation or a user and wait for its receipt.

        It is repeated under the same client_message_id until it is answered, over any number of
        connections. AdmissionRefused: not accepted (nothing happened). ClientStopped, TimeoutError: the
        outcome is unknown; sending again with the same client_message_id is safe and tells.
        """
        name = self._name(client_message_id)
        unsent = Unsent.message(name, body, conversation_id, to_user_id, mentions)
        return await self._outbox.add_and_settle(unsent, timeout_s)

    async def edit(
        self,
        conversation_id: str,
        conversation_seq: int,
        body: bytes,
        *,
        client_message_id: str | None = None,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Give an own message another body; the receipt is that of the edit. Otherwise as `send`."""
        name = self._name(client_message_id)
        edit = Unsent(name, body, conversation_id, None, KIND_EDIT, conversation_seq)
        return await self._outbox.add_and_settle(edit, timeout_s)

    async def recall(
        self,
        conversation_id: str,
        conversation_seq: int,
        *,
        client_message_id: str | None = None,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Take a message back, for everybody and for ever; otherwise as `edit`."""
        name = self._name(client_message_id)
        recall = Unsent(name, b"", conversation_id, None, KIND_RECALL, conversation_seq)
        return await self._outbox.add_and_settle(recall, timeout_s)

    def submit(
        self,
        body: bytes,
        settled: Settled | None = None,
        *,
        conversation_id: str | None = None,
        to_user_id: str | None = None,
        client_message_id: str | None = None,
        mentions: Mentions = NOBODY,
    ) -> str:
        """`send` without waiting: `settled` is called once with the receipt or the error.

        Returns the client_message_id. The message goes out once the store has it. `MessageSent` or
        `SendFailed` comes in the stream as well. AdmissionRefused: too many messages wait, or too large.
        """
        message_id = self._name(client_message_id)
        self._outbox.add(Unsent.message(message_id, body, conversation_id, to_user_id, mentions), settled)
        return message_id

    async def post(
        self,
        body: bytes,
        *,
        conversation_id: str | None = None,
        to_user_id: str | None = None,
        client_message_id: str | None = None,
        mentions: Mentions = NOBODY,
    ) -> str:
        """Hand a message over for good: returns its client_message_id once the store has it.

        With a store that outlives the process the message does, too; `MessageSent` or `SendFailed` tells
        its end, to this client or a later one of the same store. Errors as in `submit`; ClientStopped.
        """
        message_id = self._name(client_message_id)
        await self._outbox.add_and_keep(
            Unsent.message(message_id, body, conversation_id, to_user_id, mentions)
        )
        return message_id

    def give_up(self, client_message_id: str) -> None:
        """Stop repeating a message; whether it was committed stays unknown. Nothing is delivered for it."""
        self._outbox.give_up(client_message_id)

    def _name(self, given: str | None) -> str:
        """The client_message_id of a new message; ClientStopped when nothing is sent any more."""
        if self._stopped is not None:
            raise self._stopped
        return given or secrets.token_hex(16)

    # -- receiving

    def events(self) -> AsyncIterator[Delivery]:
        """Deliveries as they come: events once each, in order per conversation, and marks of the sync.

        One reader at a time. An event counts as taken when the next one is asked for (or the client is
        closed): what was kept and not taken comes first in the next process. Ends when the client is
        closed; raises ClientStopped after a terminal error.
        """
        return self._stream.events()

    async def checkpoint(self, timeout_s: float = 30.0) -> None:
        """Pull what there is up to the watermark, so that the cursor covers it; returns when it does."""
        await self.wait_online(timeout_s)
        self.session.checkpoint()
        self._received()
        self.wake()
        async with asyncio.timeout(timeout_s):
            while self.session.coverage.is_pulling:
                await self._wait_change()
            await self._journal.drained()

    def wake(self) -> None:
        """Frames were queued in the session: write them."""
        self.keeper.wake()

    def _hand_out(self, batch: Batch) -> None:
        """A batch was kept: messages may be sent, the rest is told and shown."""
        if batch.sends:
            for message in batch.sends:
                self.session.sends.queue(message)
            self.session.pump()
            self.wake()
        for told in batch.told:
            told()
        self._stream.give(batch.deliveries)

    # -- what the connection reports

    async def _run(self, http: aiohttp.ClientSession) -> None:
        try:
            why = await self.keeper.run(http)
            await self._journal.drained()
            self._stop(why)
        except asyncio.CancelledError:
            raise
        except BaseException as failure:
            self._stop(ClientStopped("FAILED", f"{type(failure).__name__}: {failure}"))
            raise

    def _fail(self, failure: Exception) -> None:
        """A callback or the store failed: going on could skip what it did not take."""
        log.error("the client stops", exc_info=failure)
        self._stop(ClientStopped("FAILED", f"{type(failure).__name__}: {failure}"))
        if self._task is not None:
            self.keeper.end(self._task)

    def _received(self) -> None:
        """After each frame and tick: deliver, and tell those who wait for a change of phase."""
        session, inbox, journal = self.session, self.session.inbox, self._journal
        if inbox.changed or session.gaps or session.rebuild is not journal.rebuild:
            changed, inbox.changed = inbox.changed, {}
            gaps, session.gaps = session.gaps, []
            self.gaps += gaps
            journal.add_history(session.rebuild, changed, gaps)
        if session.shown or session.cursor != journal.cursor or session.owner != journal.owner:
            shown, session.shown = session.shown, []
            journal.add(shown, session.owner, session.cursor)
        journal.write()
        state = (session.phase, session.coverage.is_pulling)
        if state != self._state:
            self._state = state
            self._change()
        online = session.phase is Phase.ONLINE
        if online and self._rebuild_task is None and self._rebuilder.is_due and not self._closing:
            self._rebuild_task = asyncio.create_task(self._rebuild())

    async def _rebuild(self) -> None:
        try:
            await self._rebuilder.run()
        except ClientStopped:
            pass  # the client has ended; the next one goes on where this one stood
        except Exception as failure:  # noqa: BLE001 - going on would leave conversations silent for ever
            self._fail(failure)
        finally:
            self._rebuild_task = None

    def _room(self) -> Awaitable[None] | None:
        """None while deliveries may pile up further; else something to wait for."""
        return self._wait_for_room() if self._stream.is_full else None

    async def _wait_for_room(self) -> None:
        self.session.pause(True)
        try:
            await self._stream.room()
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
        first, self._stopped = self._stopped is None, self._stopped or why
        self._outbox.stop(self._stopped)
        self.rooms.stop(self._stopped)
        say = first and not self._closing and isinstance(why, ClientStopped)
        self._stream.stop(Stopped(why.code, why.detail) if say and isinstance(why, ClientStopped) else None)
        self._change()
