"""The writer's side of the internal RPC: sends and group commands in front of the services.

Invariants: see `rpc_listener`; group commands run to their end even when their connection is gone.

Spec: §3.
"""

import logging
from collections.abc import Callable, Sequence
from typing import NoReturn

from qim_streams.commit import metrics, rpc_protocol
from qim_streams.commit.lane_services import SendJob
from qim_streams.commit.rpc_listener import RpcListener, RpcRequest
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

GROUP_COMMANDS_MAX = 256  # under way at once
_BUSY = (int(GroupStatus.REFUSED), "OVERLOADED", "too many group commands at once", 500)
_NOT_OWNER = (int(GroupStatus.NOT_OWNER), "SHARD_MOVED", "another writer owns the conversation", 0)


class RpcServer(RpcListener):
    """Serves sends and group commands. `on_doubt` does not return."""

    def __init__(
        self,
        writer: ConversationWriter,
        groups: GroupService,
        secret: bytes,
        on_doubt: Callable[[str, BaseException | None], NoReturn],
    ) -> None:
        super().__init__(secret)
        self.writer, self._groups, self.on_doubt = writer, groups, on_doubt

    def take(self, requests: Sequence[RpcRequest]) -> None:
        """See `RpcListener.take`."""
        jobs: list[SendJob] = []
        for op, args, deadline_s, reply in requests:
            if op == Op.SEND:
                jobs.append(SendJob(rpc_protocol.read_send(args), reply, deadline_s))
            elif op == Op.GROUP:
                self.command(args, reply)
            else:
                raise ProtocolError("UNKNOWN_FRAME", f"operation {op!r}")
        if jobs:
            self.writer.submit(jobs)

    def served(self) -> int:
        """See `RpcListener.served`."""
        return len(self.writer.ready)

    def reasons(self) -> list[str]:
        """See `RpcListener.reasons`; a partition that is leased and long not recovered is one, too."""
        return super().reasons() + [f"ob:{one} is leased and not served yet" for one in self.writer.overdue]

    def command(self, args: object, reply: Callable[[tuple[object, ...]], object]) -> None:
        """Start a group command; `reply` gets the fields of its answer."""
        if self.working >= GROUP_COMMANDS_MAX:
            reply(_BUSY)
            return
        self.spawn(self._run(args, reply))

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
