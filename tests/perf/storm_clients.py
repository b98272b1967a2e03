"""The clients of a storm: each comes back with its cursor, tries again as the SDK does, checks what comes.

A client is a coroutine on the load generator's WebSocket client. Order and delays are those of
``qim_streams.client``: full jitter before the first try, the server's `retry_after_ms` or back-off after a
failure, `sync_delay_hint_ms` before the first pull, the newest cursor with every AUTH. Every entry is held
against what was acknowledged: its place, its body, once, in order; what comes again at or below a position
that the client has is dropped, as a client does, and counted as `repeated`.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qim_streams.client.backoff import backoff_ms, retry_ms, spread_ms
from qim_streams.client.options import ClientOptions
from qim_streams.errors import ProtocolError
from qim_streams.loadgen import message
from qim_streams.loadgen.frames import DRIVERS
from qim_streams.loadgen.socket import LeanSocket
from qim_streams.wire.frames import Auth, ClientFrame, Ping, PullMailbox, SyncComplete
from tests.perf.storm_filling import Group
from tests.perf.talking import ENCODING

OPTIONS = ClientOptions()
ANSWER_S = OPTIONS.answer_ms / 1_000
DRIVER = DRIVERS[ENCODING]
DEVICE = "phone"
PING_S = 25.0


class Refused(Exception):
    """The server answered with an ERROR, or the connection did not do. `after_ms`: what it asked for."""

    def __init__(self, name: str, after_ms: int | None = None) -> None:
        super().__init__(name)
        self.name, self.after_ms = name, after_ms


class Watch:
    """What all clients share: the account, when they were ready, what went wrong.

    `groups` by conversation; `run` is what the bodies must carry; `clock` gives seconds.
    """

    def __init__(self, url: str, groups: Mapping[str, Group], run: int, clock: Callable[[], float]) -> None:
        self.url, self.groups, self.run, self.clock = url, groups, run, clock
        self.random = random.random
        self.ready: list[float] = []  # when a client was ONLINE_READY, in order
        self.sync_s: list[float] = []  # from its own first try to ONLINE_READY
        self.noted: Counter[str] = Counter()
        self.entries = 0


class Away:
    """One client. `seen` has a byte per entry that it must get, round by round."""

    def __init__(self, watch: Watch, user_id: str, token: str, groups: Sequence[Group], each: int) -> None:
        self.user_id, self.token = user_id, token
        self.cursor: str | None = None
        self.is_online = False
        self._all, self._groups, self._each = watch, groups, each
        self.seen = bytearray(len(groups) * each)
        self._place = (-1, 0)
        self._last = [-1] * len(groups)
        self._socket: LeanSocket | None = None
        self._rid = 0
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._written_s = 0.0

    @property
    def missing(self) -> int:
        """Entries that never came."""
        return self.seen.count(0)

    # -- life

    async def leave_word(self) -> None:
        """Sign on for the first time, keep the cursor, go away."""
        attempt = 0
        while self.cursor is None:
            try:
                await self._connect()
                await self._sync()
            except (Refused, OSError, TimeoutError, ProtocolError) as failure:
                attempt += 1
                if attempt > 20:
                    raise
                self._all.noted[f"before the outage: {_name(failure)}"] += 1
                await asyncio.sleep(backoff_ms(attempt, 100, 2_000, self._all.random()) / 1_000)
            finally:
                self.leave()

    async def come_back(self) -> None:
        """Until ONLINE_READY; ends only then or when it is cancelled."""
        options, attempt, asked = OPTIONS, 1, None
        began_s = self._all.clock()
        while True:
            delay = retry_ms(
                attempt, options.backoff_base_ms, options.backoff_cap_ms, asked, self._all.random()
            )
            await asyncio.sleep(delay / 1_000)
            try:
                await self._connect()
                await self._sync()
                break
            except (Refused, OSError, TimeoutError, ProtocolError) as failure:
                self._all.noted[_name(failure)] += 1
                asked = failure.after_ms if isinstance(failure, Refused) else None
                attempt += 1
                self.leave()
        self.is_online = True
        now_s = self._all.clock()
        self._all.ready.append(now_s)
        self._all.sync_s.append(now_s - began_s)

    def leave(self) -> None:
        """Close the socket, if any."""
        socket, self._socket = self._socket, None
        self.is_online = False
        if socket is not None:
            socket.close()

    def tick(self, now_s: float) -> None:
        """A sign of life, when one is due."""
        if self.is_online and self._socket is not None and now_s - self._written_s > PING_S:
            self._write(Ping(self._next_rid()))

    # -- one connection

    async def _connect(self) -> None:
        codec = DRIVER.codec
        socket = self._socket = LeanSocket(
            self._all.url,
            codec.subprotocol,
            codec.binary,
            self._on_message,
            lambda code: self._lost(socket, code),
        )
        try:
            await socket.open(OPTIONS.connect_timeout_s)
        except TimeoutError:
            raise Refused("connect: timeout") from None
        except ProtocolError:
            if socket.retry_after_ms is None:
                raise
            raise Refused("503 with Retry-After", socket.retry_after_ms) from None

    async def _sync(self) -> None:
        auth = await self._auth()
        after, up_to = auth["after_seq"], auth["sync_to_seq"]
        if after < up_to and self.cursor is not None:
            await asyncio.sleep(spread_ms(auth["sync_delay_hint_ms"], self._all.random()) / 1_000)
            await self._pull(after, up_to)
        ready = await self._ask(SyncComplete(self._next_rid(), up_to), "ONLINE_READY")
        self.cursor = ready["cursor"]

    async def _auth(self) -> dict[str, Any]:
        self._rid = 0
        frame = Auth(self._next_rid(), self.token, DEVICE, self.cursor)
        answer = await self._answered(frame, "AUTH")
        if answer["t"] == "ERROR" and answer["name"] == "CURSOR_REBASED":
            self._all.noted["CURSOR_REBASED"] += 1
            self.cursor = answer["new_cursor"]
            answer = await self._answered(Auth(self._next_rid(), self.token, DEVICE, self.cursor), "AUTH")
        return _right(answer, "AUTH_OK")

    async def _pull(self, after: int, up_to: int) -> None:
        attempt = 0
        while after < up_to:
            frame = PullMailbox(self._next_rid(), after, up_to, OPTIONS.pull_entries, OPTIONS.pull_bytes)
            try:
                batch = await self._ask(frame, "MAILBOX_BATCH")
            except Refused as refused:
                if refused.after_ms is None:
                    raise
                self._all.noted[refused.name] += 1
                attempt += 1
                await asyncio.sleep(
                    retry_ms(attempt, 200, 10_000, refused.after_ms, self._all.random()) / 1e3
                )
                continue
            self._take(batch["entries"])
            after = batch["covered_through_seq"]
            self.cursor = batch.get("cursor") or self.cursor

    async def _ask(self, frame: ClientFrame, name: str) -> dict[str, Any]:
        return _right(await self._answered(frame, type(frame).__name__), name)

    async def _answered(self, frame: ClientFrame, what: str) -> dict[str, Any]:
        answer = self._answer = asyncio.get_running_loop().create_future()
        self._write(frame)
        try:
            async with asyncio.timeout(ANSWER_S):
                received: dict[str, Any] = await answer
                return received
        except TimeoutError:
            raise Refused(f"{what}: no answer in {ANSWER_S:g} s") from None
        finally:
            self._answer = None

    def _write(self, frame: ClientFrame) -> None:
        if self._socket is None or not self._socket.is_open:
            raise Refused("connection lost")
        self._written_s = self._all.clock()
        self._socket.put(DRIVER.codec.encode(frame))
        self._socket.flush()

    def _next_rid(self) -> int:
        self._rid += 1
        return self._rid

    # -- what comes

    def _on_message(self, data: bytes) -> None:
        frame = DRIVER.parse(data)
        kind = frame["t"]
        if kind == "PUSH_EVENTS":
            self._all.noted["entries that came by push"] += len(frame["events"])
            self._take(frame["events"])
        elif kind in ("LIVE_LOST", "GOODBYE"):
            self._all.noted[kind] += 1
        elif self._answer is not None and not self._answer.done() and frame.get("rid") in (self._rid, None):
            self._answer.set_result(frame)
        elif kind == "ERROR":
            self._all.noted[frame["name"]] += 1

    def _lost(self, socket: LeanSocket, code: int | None) -> None:
        if socket is not self._socket:
            return
        self._socket = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Refused(f"connection lost ({code or 'no close frame'})"))
        elif self.is_online:
            self.is_online = False
            self._all.noted["lost after ONLINE_READY"] += 1

    def _take(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Hold entries against what was said."""
        watch, place = self._all, self._place
        for event in events:
            here = (event["mailbox_seq"], event["event_ordinal"])
            if here <= place:
                watch.noted["repeated"] += 1
                continue
            place = here
            watch.entries += 1
            said = event["message"]
            group = watch.groups.get(said["conversation_id"])
            at = None if group is None else group.places.get(said["conversation_seq"])
            if group is None or at is None or self._groups[group.round] is not group:
                watch.noted["WRONG: not of this client"] += 1
                continue
            self._check(group, at, group.said[said["conversation_seq"]], said["body"])
        self._place = place

    def _check(self, group: Group, at: int, key: int, body: bytes) -> None:
        noted = self._all.noted
        read = message.read_key(body, self._all.run)
        if read is None or read[0] != key:
            noted["WRONG: another body"] += 1
        index = group.round * self._each + at
        if self.seen[index]:
            noted["WRONG: twice"] += 1
        elif at <= self._last[group.round]:
            noted["WRONG: out of order"] += 1
        self.seen[index] = 1
        self._last[group.round] = max(at, self._last[group.round])


def _right(answer: dict[str, Any], name: str) -> dict[str, Any]:
    if answer["t"] == "ERROR":
        raise Refused(answer["name"], answer.get("retry_after_ms") if answer.get("temporary") else None)
    if answer["t"] != name:
        raise Refused(f"{answer['t']} instead of {name}")
    return answer


def _name(failure: Exception) -> str:
    return failure.name if isinstance(failure, Refused) else f"{type(failure).__name__}: {failure}"
