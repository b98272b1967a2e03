"""How requests of a session are answered. WriterRequests: what it asks of writers: sends, edits, recalls and
changes of groups.

Invariants: every request is answered exactly once, from a callback of the writers' links or from a task,
so the socket is read meanwhile; who asks comes from the session, never from a frame.

Spec: §3.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial

from qim_streams.commit.outcome import SendOutcome
from qim_streams.errors import ProtocolError, QimError
from qim_streams.gateway import requests
from qim_streams.gateway.services import Services
from qim_streams.gateway.session_ports import RefusableSession
from qim_streams.wire.answers import error_for
from qim_streams.wire.frames import Error
from qim_streams.wire.frames_group import GroupFrame

log = logging.getLogger(__name__)


async def answering(
    session: RefusableSession, work: Callable[[], Awaitable[None]], rid: int, answered: Callable[[], None]
) -> None:
    """Run `work`, which answers; if it raises, `answered` is called and the answer is an ERROR."""
    try:
        await work()
    except (QimError, TimeoutError) as failure:
        answer = error_for(failure, rid)
    except Exception as failure:
        log.exception("a request failed unforeseen")
        answer = error_for(failure, rid)
    else:
        return
    answered()
    session.refuse(answer)


class WriterRequests:
    """Of one session."""

    __slots__ = ("_all", "_session")

    def __init__(self, services: Services, session: RefusableSession) -> None:
        self._all, self._session = services, session

    def on_send(self, frame: requests.SendFrame) -> None:
        """A send, an edit or a recall."""
        session = self._session
        try:
            self._require_serving()
            limit = self._all.settings.message_body_bytes_max
            request = requests.send_request(frame, session.address, limit)
        except ProtocolError as failure:
            session.connection.request_answered()
            session.refuse(error_for(failure, frame.rid, client_message_id=frame.client_message_id))
            return
        self._all.counters.sends += 1
        answered = partial(self._sent, frame.rid, frame.client_message_id, request.conversation_id)
        self._all.writers.submit(request, self._all.settings.send_deadline_ms / 1_000, answered)

    def on_group(self, frame: GroupFrame) -> None:
        """Any of the group frames."""
        self._session.spawn(partial(self._group, frame), frame.rid, self._session.connection.request_answered)

    def _sent(self, rid: int, client_message_id: str, conversation_id: str, outcome: SendOutcome) -> None:
        self._session.connection.request_answered()
        if not self._session.is_open:
            return
        answer = requests.send_answer(rid, client_message_id, conversation_id, outcome)
        if isinstance(answer, Error):
            self._all.counters.sends_refused += 1
        else:
            self._all.counters.sends_acked += 1
        self._session.send(answer)

    async def _group(self, frame: GroupFrame) -> None:
        self._require_serving()
        command = requests.group_command(frame, self._session.address, self._all.new_group_id())
        state = await self._all.writers.group(command, self._all.settings.send_deadline_ms / 1_000)
        await self._all.sessions.entering.changed(command, state)
        self._session.connection.request_answered()
        self._session.send(requests.group_answer(frame.rid, state))

    def _require_serving(self) -> None:
        if self._all.draining:
            raise ProtocolError("SHUTTING_DOWN", "this gateway is about to stop")
