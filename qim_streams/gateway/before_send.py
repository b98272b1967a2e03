"""AskingWriters: the way to the writers, past an application that wants to be asked first.

Only requests of tenants that asked for it take the detour; all others go straight on. Sends of one user in
one conversation stay in order: one whose ruling is there waits for those before it.

Spec: §3.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from qim_streams.commit.outcome import SendOutcome, SendRequest, refused
from qim_streams.gateway.ports import Answered, WriterLinks
from qim_streams.membership.commands import GroupCommand, GroupState
from qim_streams.webhooks.moderator import Ruling

log = logging.getLogger(__name__)

UNAVAILABLE_RETRY_MS = 2_000
Line = tuple[str, str, str]


class Asks(Protocol):
    """`webhooks.moderator.Moderator`."""

    def rules_on(self, request: SendRequest) -> bool:
        """Whether a request has to be asked for."""

    async def ask(self, request: SendRequest) -> Ruling:
        """The ruling."""


@dataclass(slots=True)
class _Waiting:
    request: SendRequest
    deadline_s: float
    reply: Answered
    task: "asyncio.Task[Ruling]"


class AskingWriters:
    """`ports.WriterLinks` that asks first."""

    def __init__(self, writers: WriterLinks, moderator: Asks) -> None:
        self._writers, self._moderator = writers, moderator
        self._lines: dict[Line, deque[_Waiting]] = {}

    async def group(self, command: GroupCommand, timeout_s: float) -> GroupState:
        """See the port: changes of groups are not asked for."""
        return await self._writers.group(command, timeout_s)

    def submit(self, request: SendRequest, timeout_s: float, reply: Answered) -> None:
        """See the port; a refusal of the application is answered REFUSED."""
        line = (request.tenant_id, request.sender_id, request.conversation_id)
        if line not in self._lines and not self._moderator.rules_on(request):
            self._writers.submit(request, timeout_s, reply)
            return
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._ruling(request))
        self._lines.setdefault(line, deque()).append(_Waiting(request, loop.time() + timeout_s, reply, task))
        task.add_done_callback(lambda _: self._pass(line))

    async def _ruling(self, request: SendRequest) -> Ruling:
        if not self._moderator.rules_on(request):  # a recall behind a send that is still asked for
            return Ruling(request.body)
        return await self._moderator.ask(request)

    def _pass(self, line: Line) -> None:
        """Let go what stands at the front and has its ruling."""
        waiting = self._lines.get(line)
        while waiting and waiting[0].task.done():
            self._let_go(waiting.popleft())
        if not waiting:
            self._lines.pop(line, None)

    def _let_go(self, one: _Waiting) -> None:
        left_s = one.deadline_s - asyncio.get_running_loop().time()
        outcome = _refusal(one.task, left_s)
        if outcome is not None:
            one.reply(outcome)
            return
        body = one.task.result().body
        assert body is not None
        self._writers.submit(one.request._replace(body=body), left_s, one.reply)


def _refusal(task: "asyncio.Task[Ruling]", left_s: float) -> SendOutcome | None:
    """Why a send goes no further; None: it does."""
    if task.cancelled():
        return refused("APPLICATION_UNAVAILABLE", "the question was cancelled", UNAVAILABLE_RETRY_MS)
    error = task.exception()
    if error is not None:
        log.error("before_send broke: %s", type(error).__name__, exc_info=error)
        return refused("APPLICATION_UNAVAILABLE", "the question could not be asked", UNAVAILABLE_RETRY_MS)
    ruling = task.result()
    if ruling.body is None and ruling.certain:
        return refused("REFUSED_BY_APPLICATION", ruling.reason or "the application refused it")
    if ruling.body is None:
        return refused("APPLICATION_UNAVAILABLE", "the application did not answer", UNAVAILABLE_RETRY_MS)
    if left_s <= 0:
        return refused("OVERLOADED", "the application took all of the time", UNAVAILABLE_RETRY_MS)
    return None
