"""The RoomWriter's side of the internal RPC.

Spec: §10.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from qim_streams.commit.rpc_listener import RpcListener, RpcRequest
from qim_streams.errors import AdmissionRefused, InvariantViolation, ProtocolError
from qim_streams.rooms.commands import Request, read_request, refused
from qim_streams.rooms.writer import RoomWriter

log = logging.getLogger(__name__)

COMMANDS_MAX: Final = 20_000  # under way at once
_BUSY = refused(AdmissionRefused("OVERLOADED", "too many requests at once", retry_after_ms=500))


class RoomRpcServer(RpcListener):
    """`on_doubt` does not return."""

    def __init__(
        self,
        writer: RoomWriter,
        secret: bytes,
        on_doubt: Callable[[str, BaseException | None], NoReturn],
    ) -> None:
        super().__init__(secret)
        self._writer, self._on_doubt = writer, on_doubt

    def take(self, requests: Sequence[RpcRequest]) -> None:
        """See `RpcListener.take`."""
        for op, args, _, reply in requests:
            if self.working >= COMMANDS_MAX:
                reply(_BUSY)
                continue
            try:
                request = read_request(op, args)
            except ProtocolError as error:
                reply(refused(AdmissionRefused("FIELD_INVALID", error.detail)))
                continue
            self.spawn(self._run(request, reply))

    def served(self) -> int:
        """See `RpcListener.served`."""
        return len(self._writer.ready)

    async def _run(self, request: Request, reply: Callable[[Any], object]) -> None:
        try:
            answer = await self._writer.execute(request)
        except InvariantViolation as error:
            self._on_doubt("a room request found a contradiction", error)
        except Exception as error:
            log.exception("a room request failed unforeseen")
            answer = refused(AdmissionRefused("INTERNAL", type(error).__name__))
        reply(answer)
