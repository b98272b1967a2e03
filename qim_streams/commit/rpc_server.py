"""The writer's side of the internal RPC: an aiohttp WebSocket server in front of the services.

Invariants: no request is read before the handshake; at most `connections_max` connections, of which few may
be without authentication, and those end in 3 seconds; a peer that does not read its answers is not read
from; group commands run to their end even when their connection is gone.

Spec: §3.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any, NoReturn

from aiohttp import WSMsgType, web

from qim_streams.commit import metrics, rpc_protocol
from qim_streams.commit.lane_services import SendJob
from qim_streams.commit.outcome import SendOutcome
from qim_streams.commit.rpc_protocol import GroupStatus, Op
from qim_streams.commit.writer import ConversationWriter
from qim_streams.errors import (
    AdmissionRefused,
    FencedError,
    InvariantViolation,
    ProtocolError,
    RecordError,
    StoreError,
)
from qim_streams.membership.service import GroupService

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 3.0
CONNECTIONS_MAX = 1_024
STRANGERS_MAX = 64  # connections that have not authenticated yet
ANSWERS_MAX = 20_000  # unsent answers of one connection, from where on it is not read
GROUP_COMMANDS_MAX = 256  # under way at once
HEARTBEAT_S = 10.0
READY_PATH = "/readyz"
_BUSY = (int(GroupStatus.REFUSED), "OVERLOADED", "too many group commands at once", 500)
_NOT_OWNER = (int(GroupStatus.NOT_OWNER), "SHARD_MOVED", "another writer owns the conversation", 0)


class RpcServer:
    """Serves sends and group commands. `on_doubt` does not return."""

    def __init__(
        self,
        writer: ConversationWriter,
        groups: GroupService,
        secret: bytes,
        on_doubt: Callable[[str, BaseException | None], NoReturn],
    ) -> None:
        self.writer, self._groups = writer, groups
        self._secret, self.on_doubt = secret, on_doubt
        self._runner: web.AppRunner | None = None
        self._peers: set[_Peer] = set()
        self._strangers = 0
        self._commands: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (`port` 0: any free one). OSError when it is taken."""
        app = web.Application()
        app.router.add_get(rpc_protocol.PATH, self._accept)
        app.router.add_get(READY_PATH, self._ready)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, backlog=256)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def close(self, timeout_s: float = 5.0) -> None:
        """Wait for group commands and unsent answers, at most `timeout_s`, then close all connections."""
        if self._commands:
            await asyncio.wait(list(self._commands), timeout=timeout_s)
        for peer in list(self._peers):
            await peer.finish(timeout_s)
        if self._runner is not None:
            await self._runner.cleanup()

    async def _accept(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get(rpc_protocol.VERSION_HEADER) != str(rpc_protocol.VERSION):
            return web.Response(status=400, text=f"this writer speaks RPC version {rpc_protocol.VERSION}\n")
        if len(self._peers) >= CONNECTIONS_MAX or self._strangers >= STRANGERS_MAX:
            return web.Response(status=503, text="too many connections\n")
        socket = web.WebSocketResponse(
            max_msg_size=rpc_protocol.FRAME_BYTES_MAX, heartbeat=HEARTBEAT_S, compress=False
        )
        await socket.prepare(request)
        self._strangers += 1
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                node = await self._handshake(socket)
        except (ProtocolError, TimeoutError, ConnectionError, TypeError) as error:
            log.warning("connection from %s refused: %s", request.remote, error)
            await socket.close(code=4401, message=b"not authenticated")
            return socket
        finally:
            self._strangers -= 1
        peer = _Peer(self, socket, node)
        self._peers.add(peer)
        try:
            await peer.serve()
        finally:
            self._peers.discard(peer)
        return socket

    async def _ready(self, _request: web.Request) -> web.Response:
        """200 when a partition is served, else 503."""
        served = len(self.writer.ready)
        return web.Response(status=200 if served else 503, text=f"{served} partitions served\n")

    async def _handshake(self, socket: web.WebSocketResponse) -> str:
        nonce = secrets.token_bytes(rpc_protocol.NONCE_BYTES)
        await socket.send_bytes(rpc_protocol.pack((rpc_protocol.VERSION, nonce)))
        node, proof = rpc_protocol.check_client(self._secret, nonce, await socket.receive_bytes())
        await socket.send_bytes(rpc_protocol.pack((rpc_protocol.VERSION, proof)))
        return node

    def command(self, args: object, reply: Callable[[tuple[object, ...]], object]) -> None:
        """Start a group command; `reply` gets the fields of its answer."""
        if len(self._commands) >= GROUP_COMMANDS_MAX:
            reply(_BUSY)
            return
        task = asyncio.create_task(self._run(args, reply))
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)

    async def _run(self, args: object, reply: Callable[[tuple[object, ...]], object]) -> None:
        try:
            answer = await self._execute(args)
        except InvariantViolation as error:
            self.on_doubt("a group command found a contradiction", error)
        except Exception as error:
            log.exception("group command failed: %s", type(error).__name__)
            answer = (int(GroupStatus.REFUSED), "INTERNAL", type(error).__name__, None)
        metrics.GROUP_COMMANDS.labels(str(answer[1]) if answer[0] else "done").inc()
        reply(answer)

    async def _execute(self, args: object) -> tuple[object, ...]:
        try:
            command = rpc_protocol.read_group(args)
            owned = self.writer.epoch_of(command.tenant_id, command.conversation_id)
            if owned is None:
                return _NOT_OWNER
            state = await self._groups.execute(*owned, command)
            return rpc_protocol.group_answer(state)
        except FencedError:
            return _NOT_OWNER
        except AdmissionRefused as error:
            return (int(GroupStatus.REFUSED), error.code, error.detail, error.retry_after_ms)
        except ProtocolError as error:
            return (int(GroupStatus.REFUSED), "FIELD_INVALID", error.detail, None)
        except StoreError as error:
            log.warning("group command not done: %s", error)
            return (int(GroupStatus.REFUSED), "STORE_UNAVAILABLE", "the hot tier is not available", 500)
        except RecordError as error:
            log.error("group command found damaged rows: %s", error)
            return (int(GroupStatus.REFUSED), "INTERNAL", "stored rows are damaged", None)


class _Peer:
    """One authenticated connection."""

    def __init__(self, server: RpcServer, socket: web.WebSocketResponse, node: str) -> None:
        self._server, self._socket, self._node = server, socket, node
        self._answers: list[bytes] = []
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._closed = False

    async def serve(self) -> None:
        """Read requests until the connection ends."""
        log.info("connected: %s", self._node)
        sender = asyncio.create_task(self._send())
        try:
            async for message in self._socket:
                if message.type is not WSMsgType.BINARY:
                    break
                self._handle(message.data)
                if len(self._answers) > ANSWERS_MAX:
                    self._drained.clear()
                    await self._drained.wait()
        except ProtocolError as error:
            log.warning("%s broke the protocol: %s", self._node, error)
            await self._socket.close(code=1002, message=b"protocol error")
        finally:
            self._closed = True
            self._drained.set()
            sender.cancel()
            log.info("disconnected: %s", self._node)

    async def finish(self, timeout_s: float) -> None:
        """Send what is answered, then close."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._answers and not self._closed:
                    self._drained.clear()
                    await self._drained.wait()
        except TimeoutError:
            log.warning("%s did not read its last answers", self._node)
        await self._socket.close(code=1001, message=b"stopping")

    def _handle(self, data: object) -> None:
        now_s = asyncio.get_running_loop().time()
        jobs: list[SendJob] = []
        for item in rpc_protocol.unpack(data):
            rid, op, left_ms, args = _item(item)
            if op == Op.SEND:
                request = rpc_protocol.read_send(args)
                jobs.append(SendJob(request, _Reply(self, rid), now_s + left_ms / 1_000))
            elif op == Op.GROUP:
                self._server.command(args, _Reply(self, rid))
            else:
                raise ProtocolError("UNKNOWN_FRAME", f"operation {op!r}")
        if jobs:
            self._server.writer.submit(jobs)

    def answer(self, rid: int, fields: tuple[object, ...]) -> None:
        """Queue an answer; what is queued in one turn of the loop goes as one frame."""
        if self._closed:
            return  # the caller is gone; it repeats the request and gets the same answer
        if not self._answers:
            self._wake.set()
        self._answers.append(rpc_protocol.pack((rid, *fields)))

    async def _send(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._answers:
                    await self._socket.send_bytes(rpc_protocol.frame_of(_slice(self._answers)))
                self._drained.set()
        except (ConnectionError, RuntimeError) as error:
            # The reader sees the end of the connection too and cleans up.
            log.info("answers to %s not sent: %s", self._node, error)
            self._closed = True
            self._drained.set()


class _Reply:
    """The way back of one request."""

    __slots__ = ("_peer", "_rid")

    def __init__(self, peer: _Peer, rid: int) -> None:
        self._peer, self._rid = peer, rid

    def __call__(self, outcome: SendOutcome | tuple[object, ...]) -> None:
        self._peer.answer(self._rid, outcome)


def _item(item: Any) -> tuple[int, int, int, object]:
    if not isinstance(item, list) or len(item) < 4:
        raise ProtocolError("BAD_FRAME", "a request has four parts")
    rid, op, left_ms, args = item[:4]
    if type(rid) is not int or type(op) is not int or type(left_ms) is not int:
        raise ProtocolError("BAD_FRAME", "rid, operation and time left are numbers")
    return rid, op, left_ms, args


def _slice(packed: list[bytes]) -> list[bytes]:
    """Take what fits one frame off the front of `packed`."""
    size = count = 0
    while count < len(packed) and size < rpc_protocol.FRAME_TARGET_BYTES:
        size += len(packed[count])
        count += 1
    taken = packed[:count]
    del packed[:count]
    return taken
