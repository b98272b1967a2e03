"""One connection to one writer, for `rpc_client`: connect, authenticate, send in batches, read answers.

Calls that are pushed in one turn of the event loop leave as one frame; under load a frame is followed by a
rest of a few milliseconds (`pacing`). When the connection breaks, every
call without an answer is given back to the owner of the link, which finds the right writer again.

Invariants: a call is given back or answered exactly once; the link ends with its connection and is not
used again.

Spec: §3.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any

import aiohttp

from qim_streams.commit import rpc_protocol
from qim_streams.errors import ProtocolError
from qim_streams.pacing import Pace
from qim_streams.tls import LinkTls

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 3.0
HEARTBEAT_S = 5.0
REST_MAX_MS = 20.0  # between two frames, under load


class Call:
    """A request of this process. `answer(call, fields)` is called exactly once; the fields are None
    when there was no answer. `nbytes` is about what it takes in a frame.

    `handed`: it has left to a writer that has not answered yet. `unsure`: such a writer will never answer.
    """

    __slots__ = (
        "answer",
        "args",
        "deadline_s",
        "handed",
        "link",
        "nbytes",
        "number",
        "op",
        "partition",
        "rid",
        "unsure",
    )

    def __init__(
        self,
        op: int,
        args: tuple[object, ...],
        partition: int,
        deadline_s: float,
        nbytes: int,
        answer: Callable[["Call", list[Any] | None], object],
    ) -> None:
        self.op, self.args, self.partition = op, args, partition
        self.deadline_s, self.nbytes, self.answer = deadline_s, nbytes, answer
        self.handed = self.unsure = False
        self.number = 0  # of the owner of the links
        self.link: WriterLink | None = None  # that has it now
        self.rid = 0  # of the link that has it now


class WriterLink:
    """`on_answer(call, fields)` and `on_end(link, calls without an answer)` are plain calls on the loop."""

    def __init__(
        self,
        address: str,
        secret: bytes,
        node: str,
        on_answer: Callable[[Call, list[Any]], object],
        on_end: Callable[["WriterLink", list[Call]], object],
        tls: LinkTls | None = None,
    ) -> None:
        self.address = address
        self._tls = tls
        self._secret, self._node = secret, node
        self._on_answer, self._on_end = on_answer, on_end
        self._out: list[Call] = []
        self._pending: dict[int, Call] = {}
        self._rid = 0
        self._wake = asyncio.Event()
        self._pace = Pace(REST_MAX_MS)
        self._task = asyncio.create_task(self._run(), name=f"link-{address}")
        self.ended = False
        self.connected = False

    def push(self, call: Call) -> None:
        """Send a call, at once or when connected."""
        self._rid += 1
        call.rid = self._rid
        self._pending[call.rid] = call
        self._out.append(call)
        self._wake.set()

    def forget(self, call: Call) -> None:
        """Do not wait for this call's answer any more; if it has not left yet, it will not."""
        if self._pending.get(call.rid) is call:
            del self._pending[call.rid]
            if not call.handed:
                self._out.remove(call)

    async def close(self) -> None:
        """End the connection; calls without an answer are given back."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            await self._serve()
        except (aiohttp.ClientError, ProtocolError, OSError, TimeoutError, TypeError) as error:
            log.warning("link to %s: %s: %s", self.address, type(error).__name__, error)
        finally:
            self.ended = True
            calls = list(self._pending.values())
            self._pending.clear()
            self._on_end(self, calls)

    async def _serve(self) -> None:
        headers = {rpc_protocol.VERSION_HEADER: str(rpc_protocol.VERSION)}
        scheme = "http" if self._tls is None else "https"
        async with aiohttp.ClientSession() as session:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                socket = await session.ws_connect(
                    f"{scheme}://{self.address}{rpc_protocol.PATH}",
                    headers=headers,
                    max_msg_size=rpc_protocol.FRAME_BYTES_MAX,
                    heartbeat=HEARTBEAT_S,
                    compress=0,
                    ssl=True if self._tls is None else self._tls.context,
                    server_hostname=None if self._tls is None else self._tls.name or None,
                )
                await self._handshake(socket)
            self.connected = True
            sender = asyncio.create_task(self._send(socket))
            try:
                await self._read(socket)
            finally:
                sender.cancel()
                await asyncio.gather(sender, return_exceptions=True)

    async def _handshake(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        nonce = rpc_protocol.read_challenge(await socket.receive_bytes())
        own = secrets.token_bytes(rpc_protocol.NONCE_BYTES)
        proof = rpc_protocol.client_proof(self._secret, nonce, own, self._node)
        await socket.send_bytes(rpc_protocol.pack((rpc_protocol.VERSION, own, self._node, proof)))
        rpc_protocol.check_server(self._secret, nonce, own, await socket.receive_bytes())

    async def _send(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                count = len(self._out)
                while self._out:
                    await socket.send_bytes(self._next_frame())
                rest_ms = self._pace.note(count, asyncio.get_running_loop().time())
                if rest_ms:  # what comes meanwhile makes up the writer's next groups
                    await asyncio.sleep(rest_ms / 1_000)
        except (aiohttp.ClientError, OSError) as error:
            log.info("link to %s: not sent: %s", self.address, error)
            await socket.close()  # the reader ends, and with it the link

    def _next_frame(self) -> bytes:
        """Calls up to about FRAME_TARGET_BYTES, by what they count for in the bound of their owner."""
        now_s = asyncio.get_running_loop().time()
        items: list[tuple[object, ...]] = []
        size = 0
        for call in self._out:
            left_ms = int((call.deadline_s - now_s) * 1_000)
            items.append((call.rid, call.op, left_ms if left_ms > 0 else 0, call.args))
            call.handed = True
            size += call.nbytes
            if size >= rpc_protocol.FRAME_TARGET_BYTES:
                break
        del self._out[: len(items)]
        return rpc_protocol.pack(items)

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                raise ProtocolError("BAD_FRAME", f"a {message.type.name} frame")
            for fields in rpc_protocol.unpack(message.data):
                if type(fields) is not list or len(fields) < 2:
                    raise ProtocolError("BAD_FRAME", "an answer without fields")
                call = self._pending.pop(fields[0], None)
                if call is not None:  # else its deadline has passed
                    del fields[0]
                    self._on_answer(call, fields)
