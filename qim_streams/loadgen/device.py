"""One device of the generator: sign-on, live stream, sends until their outcome is known, pulls.

Sends: an ack or a refusal of a first attempt ends a send. Any other error, and the loss of the
connection, leave the outcome open: the same client_message_id is sent again (after the error's delay, or
after the next sign-on) until an ack comes. A refusal of a repeat says nothing about the first attempt, so
it is repeated, too.

Reception: the live stream promises every event above sync_to_seq once and in order. After a loss of
the connection, and after LIVE_LOST, the device pulls from the last event it had and goes on.

Spec: §6, §7.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from qim_streams.errors import ProtocolError
from qim_streams.loadgen.frames import Driver
from qim_streams.loadgen.socket import LeanSocket
from qim_streams.wire.codes import BY_CODE
from qim_streams.wire.frames import (
    Auth,
    AuthOk,
    ClientFrame,
    Error,
    MailboxBatch,
    OnlineReady,
    Ping,
    PullMailbox,
    ServerFrame,
    SyncComplete,
)

log = logging.getLogger(__name__)

REFUSALS = frozenset(code for code in BY_CODE if 400 <= code < 500) | {500, 100, 101, 102, 103}
CONNECT_S, ANSWER_S = 10.0, 20.0
RECONNECT_FIRST_S, RECONNECT_LAST_S = 0.05, 2.0
CONTROL_RID = 0xF000_0000  # above every message number
_SEQ_END = 1 << 32


class Pending:
    """A send without a final answer."""

    __slots__ = ("body", "conversation", "in_doubt", "intended_ns", "target", "written_at")

    def __init__(self, intended_ns: int, conversation: int, target: Any, body: bytes) -> None:
        self.intended_ns, self.conversation, self.target, self.body = intended_ns, conversation, target, body
        self.in_doubt = False
        self.written_at = 0.0  # loop time of the last attempt


class Owner(Protocol):
    """What a device tells its process."""

    driver: Driver
    url: str
    clock_ns: Any
    run: int

    def client_message_id(self, number: int) -> bytes:
        """The id of a message of this process."""

    def token(self, user: int) -> str:
        """An access token."""

    def acked(self, device: "Device", number: int, pending: Pending, seq: int, now_ns: int) -> None:
        """A SEND_ACK came."""

    def refused(self, device: "Device", number: int, pending: Pending, code: int) -> None:
        """A send was refused for good."""

    def event(self, device: "Device", event: dict[str, Any], now_ns: int, fresh: bool, live: bool) -> None:
        """An event came."""

    def note(self, what: str) -> None:
        """Count something that happened."""


class Device:
    """Device of user number `user`. `sent_bytes` wait in the socket until `flush`."""

    def __init__(self, owner: Owner, user: int, user_id: str) -> None:
        self._owner, self.user, self.user_id, self.device_id = owner, user, user_id, "bench"
        self.pending: dict[int, Pending] = {}
        self.place = (-1, 0)  # mailbox position of the last event
        self.start_seq = -1  # what was there before the run
        self.auth: AuthOk | None = None
        self.online = False
        self._socket: LeanSocket | None = None
        self._calls: dict[int, asyncio.Future[ServerFrame]] = {}
        self._rid = CONTROL_RID
        self._task: asyncio.Task[None] | None = None
        self._wanted = True
        self._loop = asyncio.get_running_loop()
        self._repeats: set[int] = set()

    # -- connection

    async def connect(self) -> None:
        """Sign on once; OSError, TimeoutError or ProtocolError when that fails."""
        driver = self._owner.driver
        socket = LeanSocket(
            self._owner.url,
            driver.codec.subprotocol,
            driver.codec.binary,
            self._on_message,
            lambda code: self._lost(socket, code),
        )
        self._socket = socket
        await socket.open(CONNECT_S)
        try:
            await self._sign_on()
        except BaseException:
            socket.close()
            raise
        self.online = True
        self._repeat_all()

    async def _sign_on(self) -> None:
        auth = await self.call(lambda rid: Auth(rid, self._owner.token(self.user), self.device_id, None))
        if not isinstance(auth, AuthOk):
            raise ProtocolError("BAD_TOKEN", f"AUTH was answered {_name(auth)}")
        first = self.auth is None
        self.auth = auth
        if first:
            self.start_seq = auth.sync_to_seq
            self.place = (auth.sync_to_seq, _SEQ_END)
        else:
            await self.pull(self.place[0] - 1, auth.sync_to_seq)
        ready = await self.call(lambda rid: SyncComplete(rid, auth.sync_to_seq))
        if not isinstance(ready, OnlineReady):
            raise ProtocolError("SYNC_INCOMPLETE", f"SYNC_COMPLETE was answered {_name(ready)}")

    async def pull(self, after_seq: int, up_to_seq: int) -> None:
        """Read (after_seq, up_to_seq] of the mailbox into the account. `after_seq` may be -2."""
        assert self.auth is not None
        at = max(after_seq, self.auth.trim_watermark, -1)
        while at < up_to_seq:
            start = at
            batch = await self.call(lambda rid, start=start: PullMailbox(rid, start, up_to_seq))
            if isinstance(batch, Error) and batch.temporary:
                await asyncio.sleep((batch.retry_after_ms or 100) / 1_000)
                continue
            if not isinstance(batch, MailboxBatch):
                raise ProtocolError("PULL_OUT_OF_RANGE", f"PULL_MAILBOX was answered {_name(batch)}")
            at = batch.covered_through_seq
            if not batch.has_more:
                return

    async def call(self, make: Any) -> ServerFrame:
        """Send a request and wait for its answer (an ERROR is an answer, too)."""
        socket = self._socket
        if socket is None or not socket.is_open:
            raise ConnectionResetError("not connected")
        self._rid += 1
        frame: ClientFrame = make(self._rid)
        answer = self._calls[self._rid] = self._loop.create_future()
        socket.put(self._owner.driver.codec.encode(frame))
        socket.flush()
        try:
            async with asyncio.timeout(ANSWER_S):
                received: ServerFrame = await answer
                return received
        finally:
            self._calls.pop(frame.rid, None)

    def _lost(self, socket: LeanSocket, code: int | None) -> None:
        if socket is not self._socket:
            return
        was_online, self.online, self._socket = self.online, False, None
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError(f"closed with {code}"))
        self._calls.clear()
        for pending in self.pending.values():
            pending.in_doubt = True
        if was_online and self._wanted:
            self._owner.note("connections_lost")
            self._task = self._loop.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        delay_s = RECONNECT_FIRST_S
        while self._wanted:
            try:
                await self.connect()
                return
            except (OSError, TimeoutError, ProtocolError) as failure:
                log.info("user %s cannot sign on yet: %s", self.user_id, failure)
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, RECONNECT_LAST_S)

    async def close(self) -> None:
        """Close for good."""
        self._wanted = False
        if self._task is not None:
            self._task.cancel()
        if self._socket is not None:
            self._socket.close()
        self.online = False

    def tick(self) -> None:
        """Sign of life; repeats sends that nobody answered for longer than a server may take."""
        if self.online and self._socket is not None:
            late = self._loop.time() - ANSWER_S
            for number, pending in self.pending.items():
                if pending.written_at < late:
                    pending.in_doubt = True
                    self._owner.note("unanswered")
                    self._write(number, pending)
            self._rid += 1
            self._socket.put(self._owner.driver.codec.encode(Ping(self._rid)))
            self._socket.flush()

    # -- sends

    def send(self, number: int, pending: Pending) -> bool:
        """Queue a message; False when it has to wait for the next sign-on."""
        self.pending[number] = pending
        return self._write(number, pending)

    def flush(self) -> None:
        """Write what `send` queued."""
        if self._socket is not None:
            self._socket.flush()

    def _write(self, number: int, pending: Pending) -> bool:
        if not self.online or self._socket is None:
            return False
        owner = self._owner
        pending.written_at = self._loop.time()
        self._socket.put(
            owner.driver.send_message(number, owner.client_message_id(number), pending.body, pending.target)
        )
        return True

    def _repeat_all(self) -> None:
        for number, pending in self.pending.items():
            self._write(number, pending)
        self.flush()

    def _repeat(self, number: int) -> None:
        self._repeats.discard(number)
        pending = self.pending.get(number)
        if pending is not None and self._write(number, pending):
            self.flush()

    # -- reception

    def _on_message(self, data: bytes) -> None:
        owner = self._owner
        frame = owner.driver.parse(data)
        kind = frame["t"]
        if kind == "SEND_ACK":
            number = frame["rid"]
            pending = self.pending.pop(number, None)
            if pending is not None:
                owner.acked(self, number, pending, frame["conversation_seq"], owner.clock_ns())
        elif kind == "PUSH_EVENTS":
            self._events(frame["events"], True)
        elif kind == "PING":
            return
        else:
            self._other(kind, frame, data)

    def _events(self, events: Sequence[dict[str, Any]], live: bool) -> None:
        owner, place = self._owner, self.place
        now_ns = owner.clock_ns()
        for event in events:
            here = (event["mailbox_seq"], event["event_ordinal"])
            fresh = here > place
            if fresh:
                place = here
            owner.event(self, event, now_ns, fresh, live)
        self.place = place

    def _other(self, kind: str, raw: dict[str, Any], data: bytes) -> None:
        if kind == "MAILBOX_BATCH":
            self._events(raw["entries"], False)
        frame = self._owner.driver.codec.decode_server(data)
        if isinstance(frame, Error) and frame.rid is not None and frame.rid in self.pending:
            self._on_error(frame.rid, frame)
        elif kind == "LIVE_LOST":
            self._owner.note("live_lost")
            self._loop.create_task(self._refill(raw["lane_watermark"]))
        elif (answer := self._calls.pop(getattr(frame, "rid", None) or -1, None)) is not None:
            if not answer.done():
                answer.set_result(frame)
        elif kind == "GOODBYE":
            self._owner.note("goodbyes")

    async def _refill(self, up_to_seq: int) -> None:
        try:
            await self.pull(self.place[0] - 1, up_to_seq)
        except (OSError, TimeoutError, ProtocolError) as failure:
            log.info("user %s cannot pull: %s", self.user_id, failure)  # the reconnection pulls again

    def _on_error(self, number: int, frame: Error) -> None:
        pending = self.pending[number]
        self._owner.note(f"error_{frame.name}")
        if frame.code in REFUSALS and not pending.in_doubt:
            del self.pending[number]
            self._owner.refused(self, number, pending, frame.code)
            return
        pending.in_doubt = True
        if number not in self._repeats:
            self._repeats.add(number)
            self._loop.call_later((frame.retry_after_ms or 500) / 1_000, self._repeat, number)


def _name(frame: ServerFrame) -> str:
    return f"{frame.name} ({frame.detail})" if isinstance(frame, Error) else type(frame).__name__
